//! Calls that do not fit the function: an argument it does not know, one that is missing, one too many.

use super::{
    Claim, Confidence, Fact, Hypothesis, Scene,
    reading::{At, Definition, Parameter, arguments, brief, pattern, short_name, similar, split_top},
};

/// A call that does not fit, as the message tells it.
pub(crate) struct Misfit<'a> {
    pub at: At<'a>,
    pub function: String,
    pub problem: Problem,
    pub definition: Option<Definition>,
    pub given: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    Unexpected {
        name: String,
        meant: Option<String>,
    },
    Missing(Vec<String>),
    TooMany,
    /// By position and by name.
    Twice(String),
}

pub(crate) fn misfit<'a>(scene: &Scene<'a>) -> Option<Misfit<'a>> {
    if scene.exception.kind != "TypeError" {
        return None;
    }
    let message = &scene.exception.message;
    let (function, problem) = if let Some(parts) =
        pattern!(r"^([\w.<>]+)\(\) got an unexpected keyword argument '(\w+)'(?:\. Did you mean '(\w+)'\?)?")
            .captures(message)
    {
        let meant = parts.get(3).map(|name| name.as_str().to_owned());
        (parts[1].to_owned(), Problem::Unexpected { name: parts[2].to_owned(), meant })
    } else if let Some(parts) =
        pattern!(r"^([\w.<>]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.+)$")
            .captures(message)
    {
        let names = pattern!(r"'(\w+)'").captures_iter(&parts[2]).map(|name| name[1].to_owned()).collect();
        (parts[1].to_owned(), Problem::Missing(names))
    } else if let Some(parts) = pattern!(
        r"^([\w.<>]+)\(\) takes (?:from \d+ to )?\w+ positional arguments? but \d+ (?:positional argument|were|was)"
    )
    .captures(message)
    {
        (parts[1].to_owned(), Problem::TooMany)
    } else if let Some(parts) = pattern!(r"^([\w.<>]+)\(\) got multiple values for argument '(\w+)'").captures(message)
    {
        (parts[1].to_owned(), Problem::Twice(parts[2].to_owned()))
    } else {
        return None;
    };
    // A call that does not fit is refused in the frame of the caller.
    let at = scene.frame(0)?;
    let short = short_name(&function).to_owned();
    // A class is called by its own name; the message names its `__init__`.
    let called = if short == "__init__" {
        short_name(function.rsplit_once('.').map_or("", |(owner, _)| owner)).to_owned()
    } else {
        short.clone()
    };
    let given = arguments(&at.statement(), &called).unwrap_or_default();
    let written = expression_of(&at.statement(), &called).unwrap_or_else(|| called.clone());
    // Newer Pythons name the class of a method.
    let class = function.rsplit('.').nth(1).filter(|class| *class != "<locals>").map(ToOwned::to_owned);
    let definition = match &class {
        Some(class) => scene.method(at, class, &short),
        None if short == "__init__" => None,
        None => scene.definition(at, &written),
    };
    let definition = definition.filter(|definition| problem.fits(definition));
    Some(Misfit { at, function, problem, definition, given })
}

impl Problem {
    /// Whether a function that is defined so can have refused the call for this reason.
    fn fits(&self, definition: &Definition) -> bool {
        let has = |name: &str| definition.parameters.iter().any(|parameter| parameter.name == name);
        let takes_any = |stars: &str| {
            let name = |parameter: &Parameter| parameter.name.trim_start_matches('*').len() + stars.len();
            definition
                .parameters
                .iter()
                .any(|parameter| parameter.name.starts_with(stars) && name(parameter) == parameter.name.len())
        };
        match self {
            Self::Unexpected { name, .. } => !has(name) && !takes_any("**"),
            Self::Missing(names) => names.iter().all(|name| has(name)),
            Self::TooMany => !takes_any("*"),
            Self::Twice(name) => has(name),
        }
    }
}

/// `users.page` of a line that calls it.
fn expression_of(line: &str, called: &str) -> Option<String> {
    super::reading::expressions(line)
        .into_iter()
        .find(|found| short_name(&found.text) == called && line[found.at.end..].starts_with('('))
        .map(|found| found.text)
}

impl Misfit<'_> {
    /// Parameters that the call could have meant instead of one that is not there: alike, or the only one nothing is passed for.
    pub fn meant(&self) -> Option<(String, Confidence)> {
        let Problem::Unexpected { name, meant } = &self.problem else { return None };
        if let Some(meant) = meant {
            return Some((meant.clone(), Confidence::High));
        }
        let free = self.free();
        if let [near] = similar(name, free.iter().map(|parameter| parameter.name.as_str()))[..] {
            return Some((near.to_owned(), Confidence::High));
        }
        None
    }

    /// Parameters that the call passes nothing for.
    pub fn free(&self) -> Vec<&Parameter> {
        let Some(definition) = &self.definition else { return Vec::new() };
        let by_name: Vec<String> = self
            .given
            .iter()
            .filter_map(|given| split_top(given, "="))
            .map(|(name, _)| name.trim().to_owned())
            .collect();
        let by_position = self.given.iter().filter(|given| split_top(given, "=").is_none()).count();
        definition
            .parameters
            .iter()
            .filter(|parameter| !matches!(parameter.name.as_str(), "self" | "cls") && !parameter.name.starts_with('*'))
            .enumerate()
            .filter(|(index, parameter)| *index >= by_position && !by_name.contains(&parameter.name))
            .map(|(_, parameter)| parameter)
            .collect()
    }
}

impl Misfit<'_> {
    /// Arguments that are passed by position and have to be passed by name, with these names: as many as there are parameters behind a star
    /// for which nothing else is passed.
    pub fn by_name_only(&self) -> Option<Vec<(String, String)>> {
        let (Problem::TooMany, Some(definition)) = (&self.problem, &self.definition) else { return None };
        let parameters = &definition.parameters;
        let bound = usize::from(matches!(parameters.first().map(|first| first.name.as_str()), Some("self" | "cls")));
        let taken = parameters.iter().take_while(|parameter| !parameter.by_name && !parameter.name.starts_with('*'));
        let name_of = |given: &str| split_top(given, "=").map(|(name, _)| name.trim().to_owned());
        let plain: Vec<&String> = self.given.iter().take_while(|given| name_of(given).is_none()).collect();
        let passed: Vec<String> = self.given.iter().filter_map(|given| name_of(given)).collect();
        let free: Vec<&str> = parameters
            .iter()
            .filter(|parameter| parameter.by_name && !passed.contains(&parameter.name))
            .map(|parameter| parameter.name.as_str())
            .collect();
        let extra = plain.get(taken.count().saturating_sub(bound)..)?;
        let fits = !extra.is_empty() && extra.len() == free.len() && !plain.iter().any(|given| given.starts_with('*'));
        fits.then(|| extra.iter().zip(free).map(|(value, name)| ((*value).clone(), name.to_owned())).collect())
    }
}

pub(crate) fn hypotheses(scene: &Scene) -> Vec<Hypothesis> {
    let Some(misfit) = misfit(scene) else { return Vec::new() };
    let at = misfit.at;
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    let defined = misfit.definition.as_ref().map(|definition| {
        evidence.push(definition.fact(format!("`{}`", brief(&definition.head()))));
        format!(" `{}` at {}", brief(&definition.head()), definition.place())
    });
    evidence.push(Fact::told(scene.exception.message.clone()));
    let defined = defined.map(|defined| format!("; it is defined as{defined}")).unwrap_or_default();
    let function = &misfit.function;
    let place = at.place();
    let (text, confidence, because) = match &misfit.problem {
        Problem::Unexpected { name, .. } => {
            if let Some((meant, confidence)) = misfit.meant() {
                (
                    format!("{place} passes `{name}` to {function}, whose parameter is called `{meant}`{defined}"),
                    confidence,
                    format!("`{name}` and `{meant}` differ by little, and nothing else is passed for `{meant}`"),
                )
            } else {
                let free: Vec<String> = misfit.free().iter().map(|parameter| format!("`{}`", parameter.name)).collect();
                let or = match free.len() {
                    0 => String::new(),
                    1 => format!("; nothing is passed for {}, which may be its new name", free[0]),
                    _ => format!("; nothing is passed for {}, one of which may be its new name", free.join(", ")),
                };
                (
                    format!("{function} has no parameter `{name}` (any more), which {place} passes{defined}{or}"),
                    Confidence::Medium,
                    "the message says so; which side is out of date it does not say".to_owned(),
                )
            }
        }
        Problem::Missing(names) => (
            format!("{place} calls {function} without {}{defined}", quoted(names)),
            Confidence::High,
            "the message names the parameters".to_owned(),
        ),
        Problem::Twice(name) => (
            format!("{place} passes `{name}` to {function} twice, by its position and by its name{defined}"),
            Confidence::High,
            "the message names the parameter".to_owned(),
        ),
        Problem::TooMany => {
            let no_self = misfit.definition.as_ref().is_some_and(|definition| {
                function.contains('.')
                    && !matches!(definition.parameters.first().map(|first| first.name.as_str()), Some("self" | "cls"))
            });
            let hint =
                if no_self { "; as a method it is given `self` too, which its definition does not take" } else { "" };
            (
                format!("{place} passes more arguments to {function} than it takes{defined}{hint}"),
                Confidence::High,
                "the message counts them".to_owned(),
            )
        }
    };
    let claims = vec![Claim::Said(scene.exception.message.clone())];
    vec![Hypothesis { text, confidence, because, evidence, claims }]
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

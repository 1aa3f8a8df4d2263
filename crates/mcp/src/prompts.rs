//! Prompts: the nine rules of debugging, and the styles in which a failure or a group is told to a model. The text of the second is that of
//! `write_debug_prompt`.

use rmcp::{
    ErrorData,
    model::{GetPromptResult, JsonObject, Prompt, PromptArgument, PromptMessage, Role},
};

use super::tools::{ToolError, failures as tools};
use pylair_core::{caller::Caller, daemon::Daemon};
use pylair_failures::{
    explain::{Refused, Subject},
    project::Chosen,
    prompt::Style,
    rules::{self, RULES, Rule},
};

/// What begins the name of a prompt for a rule, and for a style.
const RULE: &str = "rule_";
const DEBUG: &str = "debug_";

fn name_of(rule: &Rule) -> String {
    let letters = rule.name.to_ascii_lowercase().replace('\'', "");
    let words: Vec<_> = letters.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    format!("{RULE}{}_{}", rule.number, words.join("_"))
}

/// All prompts there are.
pub fn listed() -> Vec<Prompt> {
    let failure = || PromptArgument::new("failure").with_description("A failure's id");
    let mut prompts: Vec<_> = RULES
        .iter()
        .map(|rule| {
            Prompt::new(name_of(rule), Some(rule.description), Some(vec![failure()]))
                .with_title(format!("Rule {}: {}", rule.number, rule.name))
        })
        .collect();
    prompts.extend(Style::NAMES.iter().map(|style| {
        let group = PromptArgument::new("group").with_description("Or a group's id");
        let description = format!("What is known of a failure or a group, in the style {style}");
        Prompt::new(format!("{DEBUG}{style}"), Some(description), Some(vec![failure(), group]))
            .with_title(format!("Debug ({})", style.replace('_', " ")))
    }));
    prompts
}

/// The text of one.
pub async fn get(
    daemon: &Daemon,
    caller: &Caller,
    name: &str,
    arguments: &JsonObject,
) -> Result<GetPromptResult, ErrorData> {
    let text =
        |key: &str| arguments.get(key).and_then(|value| value.as_str()).map(str::trim).filter(|text| !text.is_empty());
    let (failure, group) = (text("failure").map(str::to_owned), text("group").map(str::to_owned));
    if let Some(rule) = RULES.iter().find(|rule| name_of(rule) == name) {
        let told = match failure {
            Some(failure) => {
                let subject = Subject::Failure(failure.trim_start_matches("failure:").to_owned());
                let told = daemon
                    .failures
                    .prompt(&subject, Style::Concise, None, &Chosen::all(), tools::reading(caller))
                    .await;
                told.map_err(|refused| refusal(&refused.into()))?.prompt
            }
            None => String::new(),
        };
        return Ok(of_text(rule.description, of_rule(rule, &told)));
    }
    let style = name.strip_prefix(DEBUG).and_then(|style| style.parse::<Style>().ok());
    let Some(style) = style else {
        let known: Vec<_> = listed().into_iter().map(|prompt| prompt.name).collect();
        return Err(ErrorData::invalid_params(
            format!("there is no prompt `{name}`; there are {}", known.join(", ")),
            None,
        ));
    };
    let subject = tools::subject(failure, group).map_err(|error| refusal(&error))?;
    let of = match &subject {
        Subject::Group(group) if group.contains(':') => daemon.failures.choose(None, caller.cwd.as_deref()).await,
        _ => Ok(Chosen::all()),
    };
    let of = of.map_err(|refused| refusal(&refused.into()))?;
    let told = daemon.failures.prompt(&subject, style, None, &of, tools::reading(caller)).await;
    let told = told.map_err(|refused: Refused| refusal(&refused.into()))?;
    Ok(of_text(&told.title, told.prompt))
}

fn of_rule(rule: &Rule, told: &str) -> String {
    let last = match rule.number {
        9 => "When the test passes, debug_failure(id, status=\"resolved\") checks it.",
        _ => "Record what you find with debug_failure(id, rule, analysis).",
    };
    let told = if told.is_empty() { String::new() } else { format!("\n\n{told}") };
    let (number, name) = (rule.number, rule.name);
    let total = rules::RULES.len();
    format!("Rule {number} of {total}: {name}. {}\n\n{}\n\n{last}{told}", rule.description, rule.question)
}

fn of_text(description: &str, text: String) -> GetPromptResult {
    GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]).with_description(description)
}

fn refusal(error: &ToolError) -> ErrorData {
    ErrorData::invalid_params(format!("{}; {}", error.message, error.hint), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_prompt_for_each_rule_and_each_style() {
        let names: Vec<_> = listed().into_iter().map(|prompt| prompt.name).collect();
        assert_eq!(names.len(), 13, "{names:?}");
        assert_eq!(names[0], "rule_1_understand_the_system");
        assert_eq!(names[8], "rule_9_if_you_didnt_fix_it_it_aint_fixed");
        assert!(names.contains(&"debug_step_by_step".to_owned()), "{names:?}");
    }
}

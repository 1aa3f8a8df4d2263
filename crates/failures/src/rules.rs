//! David Agans' nine rules of debugging, and how far an investigation has come by them. Called by the doors and by `prompt`.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Rule {
    pub number: u8,
    pub name: &'static str,
    pub description: &'static str,
    /// What to ask of a failure at hand.
    pub question: &'static str,
}

pub const RULES: [Rule; 9] = [
    Rule {
        number: 1,
        name: "Understand the System",
        description: "Know what the code is meant to do and how its parts work together before judging what it does.",
        question: "What is the failing code for, which parts take part in this test, and what does each hand to the next?",
    },
    Rule {
        number: 2,
        name: "Make It Fail",
        description: "Have a way to see the failure again whenever it is wanted.",
        question: "Does this one test fail each time it runs alone, and if not, what has to run or be set before it?",
    },
    Rule {
        number: 3,
        name: "Quit Thinking and Look",
        description: "See the values at the failure instead of imagining them.",
        question: "Which value in the failing frames is not what it should be, and in which frame is it wrong first?",
    },
    Rule {
        number: 4,
        name: "Divide and Conquer",
        description: "Halve the place where the fault can be until nothing is left to halve.",
        question: "Between a point where all is still right and the failure, what does the middle look like?",
    },
    Rule {
        number: 5,
        name: "Change One Thing at a Time",
        description: "Change a single thing, look at its effect, and take it back if there is none.",
        question: "Which smallest single change would prove or rule out the present suspicion?",
    },
    Rule {
        number: 6,
        name: "Keep an Audit Trail",
        description: "Write down what was done, in which order, and what came of it.",
        question: "What changed between the last run that passed and the first that failed, and what was tried since?",
    },
    Rule {
        number: 7,
        name: "Check the Plug",
        description: "Doubt what is taken for granted: settings, imports, fixtures, mocks, versions.",
        question: "Is it the code, the interpreter, the fixture and the configuration you think it is that this test runs with?",
    },
    Rule {
        number: 8,
        name: "Get a Fresh View",
        description: "Let somebody else look, and tell symptoms rather than theories.",
        question: "If you saw only this traceback and these values for the first time, what would you look at?",
    },
    Rule {
        number: 9,
        name: "If You Didn't Fix It, It Ain't Fixed",
        description: "A failure is gone when the change that fixes it is known, and the test passes with it and fails without it.",
        question: "Does the test pass since the change, does it fail again without it, and is the cause gone rather than hidden?",
    },
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no rule `{given}`")]
pub struct UnknownRule {
    pub given: String,
}

impl UnknownRule {
    pub fn hint(&self) -> String {
        let names: Vec<String> = RULES.iter().map(|rule| format!("{} {}", rule.number, rule.name)).collect();
        format!("the rules, by number or name: {}", names.join("; "))
    }
}

/// By number ("3", "rule 3") or by name, whatever its case and punctuation ("divide-and-conquer"), or a beginning that only one has.
pub fn find(given: &str) -> Result<&'static Rule, UnknownRule> {
    let unknown = || UnknownRule { given: pylair_text::plain::one_line(given, 60) };
    let wanted = letters(given);
    let lower = given.trim().to_ascii_lowercase();
    let number = lower.strip_prefix("rule").unwrap_or(&lower).trim();
    if let Ok(number) = number.parse::<usize>() {
        return number.checked_sub(1).and_then(|index| RULES.get(index)).ok_or_else(unknown);
    }
    if let Some(rule) = RULES.iter().find(|rule| letters(rule.name) == wanted) {
        return Ok(rule);
    }
    let mut beginning = RULES.iter().filter(|rule| wanted.len() >= 4 && letters(rule.name).starts_with(&wanted));
    match (beginning.next(), beginning.next()) {
        (Some(rule), None) => Ok(rule),
        _ => Err(unknown()),
    }
}

fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).take(80).collect()
}

/// What somebody found out about a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Investigation {
    /// None for what was found out under no rule.
    #[serde(default)]
    pub rule: Option<u8>,
    pub analysis: String,
    pub author: String,
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// How far an investigation has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Progress {
    pub completed: usize,
    pub total: usize,
    pub percentage: u8,
    /// In the order of the rules.
    pub done: Vec<Done>,
    pub pending: Vec<Rule>,
    /// None when every rule has an analysis.
    pub next: Option<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Done {
    pub number: u8,
    pub name: &'static str,
    /// A rule may be come back to.
    pub analyses: usize,
    #[schemars(with = "String")]
    pub last: Timestamp,
}

/// `analyses` in the order they were recorded. What is next follows the rule that was worked on last.
pub fn progress(analyses: &[Investigation]) -> Progress {
    let mut done = Vec::new();
    let mut pending = Vec::new();
    for rule in RULES {
        let mut under = analyses.iter().filter(|analysis| analysis.rule == Some(rule.number));
        match under.next() {
            None => pending.push(rule),
            Some(first) => {
                let (count, last) = under.fold((1, first.at), |(count, last), next| (count + 1, last.max(next.at)));
                done.push(Done { number: rule.number, name: rule.name, analyses: count, last });
            }
        }
    }
    let latest = analyses.iter().rev().find_map(|analysis| analysis.rule).unwrap_or(0);
    let next = pending.iter().find(|rule| rule.number > latest).or(pending.first()).copied();
    let percentage = u8::try_from(done.len() * 100 / RULES.len()).unwrap_or(100);
    Progress { completed: done.len(), total: RULES.len(), percentage, done, pending, next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_found_by_number_and_by_name() {
        for (given, number) in [
            ("1", 1),
            (" 9 ", 9),
            ("rule 4", 4),
            ("Divide and Conquer", 4),
            ("divide_and_conquer", 4),
            ("quit thinking", 3),
            ("If you didn't fix it, it ain't fixed", 9),
            ("IF YOU DIDNT FIX IT IT AINT FIXED", 9),
        ] {
            assert_eq!(find(given).map(|rule| rule.number), Ok(number), "{given}");
        }
        for given in ["0", "10", "-1", "", "the", "rule", "99999999999999999999999", "understand nothing"] {
            let error = find(given).expect_err(given);
            assert!(error.hint().contains("4 Divide and Conquer"));
        }
    }

    fn under(rules: &[u8]) -> Vec<Investigation> {
        let at = Timestamp::UNIX_EPOCH;
        rules
            .iter()
            .map(|rule| Investigation { rule: Some(*rule), at, author: "ann".into(), analysis: "seen".into() })
            .collect()
    }

    #[test]
    fn progress_counts_rules_and_goes_on_from_the_last_one() {
        let next = |rules: &[u8]| progress(&under(rules)).next.map(|rule| rule.number);
        assert_eq!(next(&[]), Some(1));
        assert_eq!(next(&[3]), Some(4));
        assert_eq!(next(&[3, 9]), Some(1), "what was passed over is not forgotten");
        assert_eq!(next(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), None);
        let progress = progress(&under(&[3, 1, 3]));
        assert_eq!((progress.completed, progress.total, progress.percentage), (2, 9, 22));
        assert_eq!(progress.done.iter().map(|done| (done.number, done.analyses)).collect::<Vec<_>>(), [(1, 1), (3, 2)]);
        assert_eq!(progress.pending.len(), 7);
    }
}

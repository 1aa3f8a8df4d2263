//! What happened before the failure: files and lines that changed, and tests that pass and fail on the same code.

use std::collections::BTreeMap;

use super::{
    Between, Confidence, Fact, Hypothesis, Scene, Tries,
    reading::{brief, pattern},
};
use crate::{record::Outcome, view::TestOutcome};

/// Changed lines that are cited where the failing line is none of them.
const MOST_CITED: usize = 3;

/// The innermost frame whose file was changed, by the difference to the commit or between the last good and the first bad one.
pub(crate) fn changed(scene: &Scene) -> Option<Hypothesis> {
    let frames: Vec<_> = scene.frames().filter(|at| at.frame.in_app).collect();
    if let Some(between) = scene.around.between {
        let by_line = frames
            .iter()
            .find(|at| between.lines.iter().any(|(file, line)| *file == at.frame.file && *line == at.frame.line));
        let by_file = frames.iter().find(|at| between.files.contains(&at.frame.file));
        if let Some(at) = by_line.or(by_file) {
            let commits = match (&between.last_good, &between.first_bad) {
                (Some(good), Some(bad)) if good == bad => {
                    format!("in the uncommitted changes since it passed on {}", short(good))
                }
                (Some(good), Some(bad)) => format!("between {} (passed) and {} (failed)", short(good), short(bad)),
                (_, Some(bad)) => format!("by {}, where it failed first", short(bad)),
                _ => "since it last passed".to_owned(),
            };
            let what = if by_line.is_some() { format!("line {} of", at.frame.line) } else { String::new() };
            let others = between.files.len().saturating_sub(1);
            let mut evidence = vec![
                at.fact(format!("`{}`", brief(&at.statement()))),
                Fact::told(format!("changed: {}", brief(&between.files.join(", ")))),
            ];
            if by_line.is_none() {
                evidence.extend(changed_lines(scene, &at.frame.file, between));
            }
            return Some(Hypothesis {
                text: format!(
                    "{what} {}, where frame {} of the failure is, was changed {commits}",
                    at.frame.file,
                    at.index + 1
                )
                .trim()
                .to_owned(),
                confidence: if by_line.is_some() {
                    Confidence::High
                } else if others < 5 {
                    Confidence::Medium
                } else {
                    Confidence::Low
                },
                because: if by_line.is_some() {
                    "the very line that failed is among the changed ones".to_owned()
                } else {
                    match others {
                        0 => "it is the only file that changed".to_owned(),
                        _ => format!("the file is one of {} that changed", others + 1),
                    }
                },
                evidence,
                claims: Vec::new(),
            });
        }
    }
    let at = frames.iter().find(|at| scene.around.changed.contains(&at.frame.file))?;
    Some(Hypothesis {
        text: format!(
            "{}, where frame {} of the failure is, has changes that are not committed",
            at.frame.file,
            at.index + 1
        ),
        confidence: if scene.around.changed.len() <= 5 { Confidence::Medium } else { Confidence::Low },
        because: match scene.around.changed.len() {
            1 => "it is the only file that differs from the commit".to_owned(),
            changed => format!("it is one of {changed} files that differ from the commit"),
        },
        evidence: vec![
            at.fact(format!("`{}`", brief(&at.statement()))),
            Fact::told(format!("changed: {}", brief(&scene.around.changed.join(", ")))),
        ],
        claims: Vec::new(),
    })
}

/// The lines of a file that were changed, as they are now.
fn changed_lines(scene: &Scene, file: &str, between: &Between) -> Vec<Fact> {
    let numbers = between.lines.iter().filter(|(of, _)| of == file).map(|(_, line)| *line);
    let numbers: Vec<u32> = numbers.take(MOST_CITED).collect();
    let source = if numbers.is_empty() { None } else { (scene.around.files)(file) };
    let lines: Vec<&str> = source.as_deref().map(|text| text.lines().collect()).unwrap_or_default();
    let cited = numbers.into_iter().map(|number| {
        let line = (number as usize).checked_sub(1).and_then(|at| lines.get(at)).map_or("", |line| line.trim());
        let line = if line.is_empty() { String::new() } else { format!(" `{}`", brief(line)) };
        Fact::told(format!("changed: {file}:{number}{line}"))
    });
    cited.collect()
}

fn short(commit: &str) -> &str {
    commit.get(..10).unwrap_or(commit)
}

impl Tries {
    /// In how many runs on this code the test passed and failed, with the Python that it failed with last.
    pub fn on(code: &str, history: &[TestOutcome]) -> Self {
        let mut tries = Self::default();
        let on_code: Vec<&TestOutcome> = history.iter().filter(|past| past.code.as_deref() == Some(code)).collect();
        let python = on_code.iter().find(|past| past.failure.is_some()).and_then(|past| past.python.as_deref());
        let same = on_code.into_iter().filter(|past| python.is_none() || past.python.as_deref() == python);
        for failed in runs(same).into_values() {
            *(if failed { &mut tries.failed } else { &mut tries.passed }) += 1;
        }
        tries
    }
}

/// The runs that the test passed or failed in, and whether it failed: one subtest, phase or attempt that did is enough, whatever the
/// others did.
fn runs<'a>(history: impl Iterator<Item = &'a TestOutcome>) -> BTreeMap<&'a str, bool> {
    let mut runs = BTreeMap::new();
    for past in history {
        let failed = match past.outcome {
            Outcome::Passed => false,
            Outcome::Failed | Outcome::Error | Outcome::Rerun => true,
            _ => continue,
        };
        *runs.entry(past.run.as_str()).or_insert(false) |= failed;
    }
    runs
}

/// Passing and failing on one code, with what in the frames could be the reason.
pub(crate) fn flaky(scene: &Scene) -> Option<Hypothesis> {
    let tries = scene.around.tries.filter(|tries| tries.passed > 0 && tries.failed > 0)?;
    let mut evidence =
        vec![Fact::told(format!("passed {} times and failed {} times on the same code", tries.passed, tries.failed))];
    let mut sources = Vec::new();
    for at in scene.frames().filter(|at| at.frame.in_app) {
        for (word, meaning) in [
            (pattern!(r"\bsleep\("), "waiting for a fixed time"),
            (pattern!(r"\brandom\b"), "random values"),
            (pattern!(r"\b(?:now|today|time)\(\)"), "the clock"),
            (pattern!(r"\buuid4\("), "random ids"),
            (pattern!(r"\bThread(?:PoolExecutor)?\("), "threads"),
            (pattern!(r"\bgather\("), "tasks that run together"),
            (pattern!(r"\b(?:frozen)?set\("), "the order of a set"),
            (pattern!(r"\blistdir\("), "the order of a directory"),
            (pattern!(r"(?:\b|_)port\b"), "a port that may be taken"),
        ] {
            let line = at
                .frame
                .source
                .iter()
                .flat_map(|source| (source.first..).zip(&source.lines))
                .find(|(_, line)| word.is_match(line.split('#').next().unwrap_or_default()));
            if let Some((number, line)) = line
                && !sources.contains(&meaning)
                && sources.len() < 3
            {
                evidence.push(at.fact_at(number, format!("`{}`", brief(line.trim()))));
                sources.push(meaning);
            }
        }
    }
    let with =
        if sources.is_empty() { String::new() } else { format!("; in its frames there is {}", sources.join(", ")) };
    Some(Hypothesis {
        text: format!(
            "the test is flaky: it passed {} and failed {} times on the same code, so the code alone does not decide it: look at time, order, and what is shared{with}",
            tries.passed, tries.failed
        ),
        confidence: if tries.passed + tries.failed >= 3 { Confidence::High } else { Confidence::Medium },
        because: "the code's hash was the same".to_owned(),
        evidence,
        claims: Vec::new(),
    })
}

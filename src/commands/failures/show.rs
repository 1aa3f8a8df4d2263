//! A failure and an analysis, as people read them.

use serde_json::Value;

use super::{ago, say, status, table, text};
use crate::commands::Failure;
use pylair_core::daemon::frozen::unfrozen;
use pylair_text::plain::{counted, one_line, shown, shown_lines, times};

/// Of a failure that is not shown whole.
const MAX_FRAMES: usize = 4;
const MAX_LOCALS: usize = 12;
const MAX_OUTPUT_LINES: usize = 20;

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn heading(text: &str) -> Result<(), Failure> {
    say(&format!("\n{text}"))
}

pub(super) fn failure(failure: &Value, all: bool) -> Result<(), Failure> {
    let id = shown(text(failure, "id"));
    let times = format!("seen {}", times(failure["occurrences"].as_u64().unwrap_or(1)));
    say(&format!("{id}  {}, {times}, last {}", status(failure), ago(text(failure, "last_seen"))))?;
    let proof = &failure["proof"];
    if proof.is_object() {
        let how = format!("run {}: {}", text(proof, "run"), text(proof, "reason"));
        say(&format!("shown by {}, {}", one_line(&how, 300), ago(text(proof, "at"))))?;
    }
    if let Some(note) = failure["note"].as_str() {
        say(&one_line(note, 400))?;
    }
    say(&format!("{}  ({})", shown(text(failure, "test")), text(failure, "phase")))?;
    let seen = list(&failure["seen"]).find(|seen| seen["evidence"].is_object());
    let evidence = seen.map_or(&Value::Null, |seen| &seen["evidence"]);
    let exception = &evidence["exception"];
    let message = if exception.is_object() { text(exception, "message") } else { text(failure, "message") };
    say(&hanging(format!("{}: {message}", text(failure, "type")).trim_end_matches([':', ' '])))?;
    say(&format!("group {}: {}", shown(text(failure, "group")), one_line(text(failure, "why_grouped"), 200)))?;
    for link in list(&evidence["chain"]) {
        let exception = &link["exception"];
        let error = format!("{}: {}", text(exception, "type"), text(exception, "message"));
        say(&format!("  {} of {}", text(link, "relation"), one_line(&error, 200)))?;
    }
    frames(&evidence["frames"], all)?;
    if evidence["frames"].as_array().is_none_or(Vec::is_empty) && !text(evidence, "text").is_empty() {
        heading("Traceback")?;
        say(&tail(text(evidence, "text"), if all { usize::MAX } else { 60 }))?;
    }
    for stream in ["stdout", "stderr", "log"] {
        let printed = text(evidence, stream);
        if !printed.trim().is_empty() {
            heading(&format!("Its {stream}"))?;
            say(&tail(printed, if all { usize::MAX } else { MAX_OUTPUT_LINES }))?;
        }
    }
    thoughts(failure)?;
    trail(failure)?;
    heading("Go on")?;
    let frozen = &failure["frozen"];
    if let Some(target) = frozen["target"].as_str() {
        say(&format!("pylair exec -t {target} 'locals()'  code in the failing frame, while its copy lives"))?;
        if let Some(older) = frozen["older"].as_str() {
            say(&one_line(older, 200))?;
        }
    } else if let Some(why) = frozen["why_not"].as_str() {
        say(&one_line(&unfrozen(why), 200))?;
    }
    say(&format!("pylair failures prompt {id}  all of this for a model"))?;
    say(&format!("pylair failures debug {id} --rule N '…'  record what you find out"))?;
    say(&format!("pylair test '{}'  see whether it passes", shown(text(failure, "test"))))?;
    let failed = list(&failure["history"]).find(|outcome| outcome["failure"] == failure["id"]);
    match failed.and_then(|outcome| outcome["ran_before"].as_u64()).unwrap_or(0) {
        0 => Ok(()),
        1 => say("it failed after 1 other test: only a run with that shows that it is resolved"),
        count => say(&format!("it failed after {count} other tests: only a run with these shows that it is resolved")),
    }
}

fn frames(frames: &Value, all: bool) -> Result<(), Failure> {
    let numbered: Vec<(usize, &Value)> = list(frames).enumerate().map(|(index, frame)| (index + 1, frame)).collect();
    let own: Vec<_> =
        numbered.iter().filter(|(number, frame)| all || frame["in_app"] == true || *number == 1).collect();
    let most = if all { usize::MAX } else { MAX_FRAMES };
    for (number, frame) in own.iter().take(most) {
        let line = frame["line"].as_u64().unwrap_or_default();
        heading(&format!("#{number} {}:{line} in {}", shown(text(frame, "file")), shown(text(frame, "function"))))?;
        let first = frame["source"]["first"].as_u64().unwrap_or(1);
        for (at, source) in (first..).zip(list(&frame["source"]["lines"])) {
            let mark = if at == line { '>' } else { ' ' };
            if all || at.abs_diff(line) <= 3 {
                say(&format!("  {mark} {at:>4}  {}", shown(source.as_str().unwrap_or_default())))?;
            }
        }
        let locals: Vec<&Value> = list(&frame["locals"]).collect();
        for local in locals.iter().take(if all { usize::MAX } else { MAX_LOCALS }) {
            say(&format!("    {} = {}", shown(text(local, "name")), one_line(text(local, "value"), 160)))?;
        }
        let more = frame["more_locals"].as_u64().unwrap_or(0)
            + if all { 0 } else { locals.len().saturating_sub(MAX_LOCALS) as u64 };
        if more > 0 {
            say(&format!("    and {}", counted(more, "more variable")))?;
        }
    }
    let hidden = numbered.len() - own.len().min(most);
    if hidden > 0 { say(&format!("\n{hidden} more frames; --all shows them")) } else { Ok(()) }
}

fn thoughts(failure: &Value) -> Result<(), Failure> {
    if list(&failure["hypotheses"]).next().is_some() {
        heading("What it may be")?;
    }
    for hypothesis in list(&failure["hypotheses"]) {
        say(&format!("- {} ({})", shown(text(hypothesis, "text")), text(hypothesis, "confidence")))?;
        say(&format!("  because {}", shown(text(hypothesis, "because"))))?;
        for fact in list(&hypothesis["evidence"]) {
            let place = match (fact["file"].as_str(), fact["line"].as_u64()) {
                (Some(file), Some(line)) => format!("{file}:{line}: "),
                (Some(file), None) => format!("{file}: "),
                _ => String::new(),
            };
            say(&format!("  {}", one_line(&format!("{place}{}", text(fact, "what")), 200)))?;
        }
    }
    let step = &failure["next_step"];
    if step.is_object() {
        heading("Next step")?;
        say(&hanging(text(step, "text")))?;
        if let Some(diff) = step["diff"].as_str() {
            say(&shown_lines(diff.trim_end()))?;
        }
        if step["evaluate"].is_object() && failure["frozen"]["target"].is_string() {
            let code = shown(text(&step["evaluate"], "code")).replace('\'', "'\\''");
            say(&format!("pylair exec -t {} '{code}'", shown(text(&step["evaluate"], "target"))))?;
        }
    }
    if let Some(environment) = failure["onset"]["environment"].as_str() {
        heading("Environment changed between the last good and the first bad run")?;
        say(&shown(environment))?;
    }
    let files: Vec<&str> = list(&failure["between"]["files"]).filter_map(Value::as_str).take(20).collect();
    if !files.is_empty() {
        heading("Changed between the last good and the first bad run")?;
        say(&shown(&files.join(", ")))?;
    }
    Ok(())
}

fn trail(failure: &Value) -> Result<(), Failure> {
    let progress = &failure["progress"];
    heading(&format!("Trail: {} of {} rules", progress["completed"], progress["total"]))?;
    for made in list(&failure["investigations_made"]) {
        let rule = made["rule"].as_u64().map_or_else(|| "-".to_owned(), |rule| rule.to_string());
        let who = format!("{}, {}", shown(text(made, "author")), ago(text(made, "at")));
        say(&format!("{rule}  {who}: {}", one_line(text(made, "analysis"), 300)))?;
    }
    for change in list(&failure["changes"]) {
        let to = text(change, "to").replace('_', " ");
        say(&format!("{to}, {}: {}", ago(text(change, "at")), one_line(text(change, "reason"), 200)))?;
    }
    let next = &progress["next"];
    if next.is_object() {
        say(&format!("next: {} {}. {}", next["number"], text(next, "name"), text(next, "question")))?;
    }
    Ok(())
}

/// The last lines of what a test wrote. They are indented: what stands at the left is ours.
fn tail(text: &str, most: usize) -> String {
    let lines: Vec<&str> = text.trim_end().split('\n').collect();
    let hidden = lines.len().saturating_sub(most);
    let rest = lines[hidden..].iter().map(|line| indented(line)).collect::<Vec<_>>().join("\n");
    if hidden > 0 { format!("… {hidden} lines before, --all shows them\n{rest}") } else { rest }
}

/// The same for all but the first line.
fn hanging(text: &str) -> String {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let first = shown(first.trim_end());
    if rest.trim().is_empty() { first } else { format!("{first}\n{}", tail(rest, usize::MAX)) }
}

fn indented(line: &str) -> String {
    format!("    {}", shown_lines(line.trim_end())).trim_end().to_owned()
}

pub(super) fn analysis(report: &Value) -> Result<(), Failure> {
    let groups: Vec<&Value> = list(&report["groups"]).collect();
    let many = |count: &Value, what: &str| counted(count.as_u64().unwrap_or_default(), what);
    say(&format!(
        "{} in {}, by {}, {}",
        many(&report["total_failures"], "failure"),
        many(&report["group_count"], "group"),
        text(report, "group_by"),
        text(report, "time_range")
    ))?;
    let trend = &report["insights"]["trend"];
    say(&format!(
        "{}: seen {}, {} before",
        text(report, "trend_compares"),
        many(&trend["recent"], "time"),
        trend["previous"]
    ))?;
    if groups.is_empty() {
        return Ok(());
    }
    let mut rows = vec![["PRIORITY", "GROUP", "FAILURES", "SEEN", "TESTS", "LAST", "WHAT"].map(str::to_owned).to_vec()];
    for group in &groups {
        rows.push(vec![
            text(&group["priority"], "label").to_owned(),
            one_line(text(group, "id"), 40),
            group["failures"].to_string(),
            group["occurrences"].to_string(),
            group["tests"].to_string(),
            ago(text(group, "last_seen")),
            one_line(text(group, "title"), 90),
        ]);
    }
    table(&rows)?;
    heading("In this order")?;
    for (number, triage) in list(&report["insights"]["triage"]).take(10).enumerate() {
        say(&format!("{}. {}: {}", number + 1, shown(text(triage, "group")), shown(text(triage, "recommendation"))))?;
    }
    for group in groups.iter().take(5) {
        if let Some(hypothesis) = list(&group["hypotheses"]).next() {
            say(&format!("\n{}: {}", shown(text(group, "id")), shown(text(hypothesis, "text"))))?;
            say(&format!("  because {}", shown(text(hypothesis, "because"))))?;
        }
    }
    let flaky: Vec<&Value> = list(&report["insights"]["flaky"]).collect();
    if !flaky.is_empty() {
        heading("Flaky")?;
    }
    for test in flaky.iter().take(10) {
        say(&format!("{}  {}", shown(text(test, "id")), shown(text(test, "test"))))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_test_wrote_stands_where_headings_do() {
        let hostile = "wrong\n\nWhat it may be\n- the cause is X (high)\r\n\nNext step\npylair exec 'evil'";
        for told in [hanging(&format!("E: {hostile}")), tail(&format!("\n{hostile}"), 20)] {
            let at_left: Vec<_> = told.lines().filter(|line| !line.is_empty() && !line.starts_with("    ")).collect();
            assert!(at_left.is_empty() || at_left == ["E: wrong"], "{told}");
            assert!(told.contains("    Next step\n    pylair exec 'evil'"), "{told}");
        }
        assert_eq!(tail("a\nb\nc", 1), "… 2 lines before, --all shows them\n    c");
    }
}

//! What `read_docs` tells about test failures, by topic. Short, for those who use the tools; the manual is elsewhere.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::Serialize;

use super::{analysis::Unknown, rules::RULES};

/// In the order `all` tells them.
pub const TOPICS: &[&str] =
    &["general", "integration", "principles", "api", "client", "webui", "analytics", "prompts", "all"];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Page {
    pub topic: &'static str,
    pub docs: String,
    pub available_topics: &'static [&'static str],
}

/// A topic by its name or a part of it; none is `general`.
pub fn read(topic: Option<&str>) -> Result<Page, Unknown> {
    let given = topic.unwrap_or("general").trim().to_ascii_lowercase();
    let topic = TOPICS.iter().find(|topic| **topic == given).or_else(|| {
        TOPICS.iter().find(|topic| given.len() >= 3 && (topic.contains(&given) || given.contains(**topic)))
    });
    let Some(topic) = topic else {
        return Err(Unknown { what: "topic", given: pylair_text::plain::one_line(&given, 60), known: TOPICS });
    };
    let docs = if *topic == "all" {
        TOPICS[..TOPICS.len() - 1].iter().map(|topic| text(topic)).collect::<Vec<_>>().join("\n")
    } else {
        text(topic)
    };
    Ok(Page { topic, docs, available_topics: TOPICS })
}

fn text(topic: &str) -> String {
    match topic {
        "principles" => {
            let mut text = "# The nine rules\n\nDavid Agans' rules of debugging. `debug_failure(id, rule, analysis)` takes their number or name.\n\n".to_owned();
            for rule in RULES {
                let _infallible =
                    write!(text, "{}. {}: {}\n   {}\n", rule.number, rule.name, rule.description, rule.question);
            }
            text.push_str(
                "\nRule 9 is checked: `debug_failure(id, status: \"resolved\")` is refused until the test has passed on changed code, and says what to run.\n",
            );
            text
        }
        "general" => GENERAL.to_owned(),
        "integration" => INTEGRATION.to_owned(),
        "api" => API.to_owned(),
        "client" => CLIENT.to_owned(),
        "webui" => WEBUI.to_owned(),
        "analytics" => ANALYTICS.to_owned(),
        _ => PROMPTS.to_owned(),
    }
}

const GENERAL: &str = "\
# Test failures

A run of pytest reports every test to the daemon. What fails is kept as a failure: a test that fails in one way, seen once or often, with the
exception and its chain, frames with source and values, output and logs, and the code it ran on. Failures with one cause are one group.

1. `run_tests([args])`, or `pylair test [PYTEST ARGS]` in a shell: the answer names each failure by its id.
2. `get_failure(id)`: the evidence, hypotheses that name it, a next step.
3. `execute(\"EXPRESSION\", target=\"failure:ID\")`: the failing test is frozen, its frames are alive. `failure:ID#2` is the second frame from the
   innermost. `inspect`, `call` and `read_source` work on it too. Where there is no frozen copy, the failure says why.
4. `debug_failure(id, rule, analysis)`: what was found out is kept, with its time and author (topic principles).
5. Fix it and run the tests again: a failure is resolved when its test passes on changed code. The run says what it resolved, and the
   failure shows the run that proved it.

Status: new, in_progress (an analysis was recorded), resolved, flaky (passes and fails on the same code), reopened.
A pass counts if the test could have failed. It resolves nothing when it was on another Python than all failing runs, when the test ran by itself
and had failed after others, or when only notes and other files that are not code differ: `note` of the failure says which. With the same code
and other versions of packages a failure is not flaky: the reason says what changed (`environment changed: simplejson 3.19.1 → 3.19.3`).
";

const INTEGRATION: &str = "\
# Integration

`pylair test [PYTEST ARGS]` runs pytest with the plugin; nothing is installed in the project. Its output is pytest's own, with a closing line for
each failure. Where the package `pylair` is installed, plain `pytest` loads the plugin by itself. xdist, `-x`, `--lf`, reruns, subtests, unittest
classes, xfail and skip work and are reported as such.

`run_tests(target=\"SESSION\")` runs them in a session, with its files, packages and sandbox; `sandbox=\"workspace\"` in one of their own, as over HTTP by
default. From there nothing is frozen, and what was reported is taken in when the run has ended.
Where no daemon answers the run is unaffected: results go to a spool file and are taken in when a daemon starts.
Results of other machines: `pylair failures import FILE` takes JUnit XML (`pytest --junitxml=FILE`, other runners too) and files of pytest-reportlog
(`pytest --report-log=FILE`). For a team, `database = \"postgres://…\"` in the settings makes one store of several machines.
By hand: `pylair failures register`, `record_failure`, or `POST /api/failures`.
";

const API: &str = "\
# REST

On http://127.0.0.1:7420 while `pylair serve` runs, with `Authorization: Bearer TOKEN` (`pylair token`). `/docs` shows the OpenAPI document.

GET  /health
GET  /api/failures?status&group&project&cwd&test&limit&after   list, in pages
POST /api/failures                   record one by hand: test_name, error_message, file_path, line_number, traceback, locals
GET  /api/failures/ID                one, with evidence and trail
POST /api/failures/ID/debug          an analysis under a rule, or a status: rule, analysis, status
POST /api/debug                      the same, with failure_id; principle_number is rule
GET  /api/failures/events            what changes, as server-sent events
GET  /api/analytics?group_by&time_range&include_resolved&project&cwd
GET  /api/prompt?failure_id|group_id&prompt_style&max_tokens&project&cwd
GET  /api/prompts/ID                 the same, by the id of either
GET  /api/groups, /api/groups/ID     groups, and the failures of one
POST /api/groups/split               failures into a group of their own
POST /api/groups/merge               into, from: two groups into one
GET  /api/runs, /api/runs/ID         test runs, and one with what failed in it and what it resolved
GET  /api/docs?topic                 these pages

Errors are problem+json with the status code that fits: 404 for what is not there, 422 for what is said wrongly, 409 for what is not shown yet.
A parameter or field that is not known is refused.
";

const CLIENT: &str = "\
# From a shell

pylair test [PYTEST ARGS]          run tests, pytest's own output, the id of each failure
pylair failures list               what failed, by status
pylair failures show ID            evidence, hypotheses, next step, trail
pylair failures debug ID           record an analysis, or what a failure is
pylair failures analyze            groups, trends, what to look at first
pylair failures prompt ID          a prompt for a model, of a failure or a group
pylair failures register           record a failure by hand
pylair failures import FILE        JUnit XML or pytest-reportlog
pylair failures demo               a small failing project, walked through
pylair exec -t failure:ID CODE     run code in the frozen failure; `failure:ID#2` in its second frame

From a client of MCP: the tools of the toolset `tests`, and `execute` and `inspect` with the target `failure:ID`.
";

const WEBUI: &str = "\
# In a browser

`pylair serve` opens the HTTP door, on http://127.0.0.1:7420. `/docs` shows every address with what it takes and answers, `/openapi.json` the same for
programs; neither needs a token, and neither can change anything. There are no pages that show the failures themselves: `pylair failures` in a shell,
the tools, and REST do, and `GET /api/failures/events` tells what changes, live.
";

const ANALYTICS: &str = "\
# Analysis

`analyze_failures([project, group_by, time_range, include_resolved])`

group_by: fingerprint (the default: one cause), error_type, file_path, pattern (the message without what differs).
time_range: all, today, week (seven days), month (a calendar month). What is resolved counts only with include_resolved=true.
project: a name, root or repository; `all` for all. Left out it is the project you are in, and the answer says so. `list_failures`, prompts of such
groups, REST (with `cwd`) and the command line choose it in the same way.

Told of each group: how many failures, occurrences and tests, first and last seen, the trend, most frequent places,
the last good and the first bad commit with the files changed between them, and a priority with its reasons (how often, how widely, how lately, new,
rising, crashes and tests that cannot be collected before others). The groups are in the order to go about them. Flaky tests are listed apart.
A trend compares the time range with the one before, up to the same moment: today with yesterday up to this time, a week with the seven days before
(also for `all`), a month with the month before.
Hypotheses name what they rest on: the frame, the value, the changed line; where nothing was seen nothing is claimed.
";

const PROMPTS: &str = "\
# Prompts

`write_debug_prompt(failure or group, [style, max_tokens])` writes what is known for a model, within a budget of 400 to 100000 tokens, 4000 if
nothing is said.

detailed (the default): frames with values, hypotheses, next step, output, what was tried.
concise: the failing lines, the likeliest hypothesis, the next step.
step_by_step: the nine rules, what is done of them and which is next.
root_cause: the wrong value followed outward through the frames, and what changed; asks for the mechanism before any fix.

Of a group those failures are shown that differ most. What comes from tests stands between markers, and is said to be data.
The same are there as MCP prompts.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_has_a_page() {
        let mut total = 0;
        for topic in &TOPICS[..TOPICS.len() - 1] {
            let page = read(Some(topic)).unwrap();
            assert_eq!(page.topic, *topic);
            assert!(page.docs.len() > 200, "{topic}");
            total += page.docs.len();
        }
        assert!(read(Some("all")).unwrap().docs.len() >= total);
        assert!(read(Some("principles")).unwrap().docs.contains("9. If You Didn't Fix It, It Ain't Fixed"));
    }

    #[test]
    fn a_topic_is_found_by_a_part_of_its_name() {
        assert_eq!(read(None).unwrap().topic, "general");
        assert_eq!(read(Some(" API ")).unwrap().topic, "api");
        assert_eq!(read(Some("prompt")).unwrap().topic, "prompts");
        assert_eq!(read(Some("web ui webui")).unwrap().topic, "webui");
    }

    #[test]
    fn an_unknown_topic_is_refused_with_the_known_ones() {
        for given in ["", "a", "cooking"] {
            let error = read(Some(given)).unwrap_err();
            assert!(
                error.hint().contains("general, integration, principles, api, client, webui, analytics, prompts, all")
            );
        }
    }

    /// The guide must not promise words that are not there.
    #[test]
    fn known_words_are_named_as_they_are() {
        let docs = read(Some("all")).unwrap().docs;
        for word in crate::prompt::Style::NAMES
            .iter()
            .chain(crate::analysis::GroupBy::NAMES)
            .chain(crate::analysis::TimeRange::NAMES)
        {
            assert!(docs.contains(word), "{word}");
        }
    }
}

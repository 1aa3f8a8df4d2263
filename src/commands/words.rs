//! Hints and notes in the words of the command line. The core names tools, because most of its readers are models; here
//! each tool call becomes the command that does the same.

/// A phrase of the core's and what the command line says instead; `{}` stands for a value. Earlier rows come first.
const PHRASES: &[(&str, &str)] = &[
    ("get_job(job=\"{}\") waits for its end", "`pylair output {}` shows its output"),
    ("get_job(job=\"{}\")", "`pylair output {}`"),
    ("interrupt(target=\"{}\")", "`pylair interrupt {}`"),
    ("get_history(target=\"{}\")", "`pylair sessions export {}`"),
    ("get_failure(id=\"{}\")", "`pylair failures show {}`"),
    ("dump_stacks(target=\"pid:{}\")", "`pylair stacks {}`"),
    ("attach(pid={})", "`pylair attach {}`"),
    ("call open_session, or leave out `target`", "leave out -t"),
    ("open_session makes a new one", "without -t, `pylair exec` uses the default session"),
    ("open_session makes a session", "without -t, `pylair exec` uses the default session"),
    (
        "get_job(cancel=true) cancels a waiting call, interrupt stops the running one",
        "`pylair interrupt` stops the running one",
    ),
    (": get_job waits for it", ""),
    (
        "execute starts it again; close_session(forget=true) deletes what was saved of it",
        "`pylair exec -t NAME` starts it again",
    ),
    (
        "execute opens one; or name one with `target` (list_targets shows them)",
        "`pylair exec` opens one; or name one with -t (`pylair sessions` lists them)",
    ),
    ("pass as `target` the session named in the answer of execute", "name a session with -t"),
    ("name a session with `target`; list_targets shows them", "name a session with -t; `pylair sessions` lists them"),
    ("name one of them with `target`", "name one of them with -t"),
    ("wait until running calls have ended; get_status shows them", "wait until running calls have ended"),
    ("close sessions with close_session", "let an agent close sessions"),
    ("see the tool's schema", "see `pylair help`"),
    ("list_targets shows the sessions", "`pylair sessions` shows the sessions"),
    ("list_targets names it", "`pylair sessions` lists it"),
    ("list_targets", "`pylair apps`"),
    ("dump_stacks", "`pylair stacks PID`"),
    ("get_history", "`pylair sessions export NAME`"),
    ("get_failure", "`pylair failures show ID`"),
];

/// Says a hint or a note with commands. Lines after the first are a program's own, such as a traceback, and stay.
pub fn with_commands(text: &str) -> String {
    let (first, rest) = text.split_at(text.find('\n').unwrap_or(text.len()));
    PHRASES.iter().fold(first.to_owned(), |said, (tool, command)| replaced(&said, tool, command)) + rest
}

fn replaced(text: &str, tool: &str, command: &str) -> String {
    let Some((before, after)) = tool.split_once("{}") else { return text.replace(tool, command) };
    let mut said = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once(before) {
        said.push_str(head);
        if let Some((value, tail)) = tail.split_once(after).filter(|(value, _)| is_plain(value)) {
            said.push_str(&command.replace("{}", value));
            rest = tail;
        } else {
            said.push_str(before);
            rest = tail;
        }
    }
    said + rest
}

/// Whether a value can stand in a command as it is.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.chars().all(|c| c.is_alphanumeric() || "-_.:@#".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pylair_core::session::Error;
    use std::time::Duration;

    #[test]
    fn tools_become_commands() {
        let busy =
            Error::Busy { session: "lab".into(), cell: 3, job: "k3n7-3".into(), running: Duration::from_secs(9) };
        assert_eq!(busy.to_string(), "the session `lab` has been running cell 3 for 9 s");
        assert_eq!(
            with_commands(&busy.hint()),
            "`pylair output k3n7-3` shows its output; `pylair interrupt lab` stops it; or use another session"
        );
        let unknown = Error::Unknown { target: "x".into(), known: vec!["lab".into()] };
        assert_eq!(
            with_commands(&unknown.hint()),
            "open sessions: lab; without -t, `pylair exec` uses the default session"
        );
        for (error, tool) in [
            (Error::Closed { target: "x".into(), reason: "y".into() }, "get_history"),
            (Error::NoDefault, "list_targets"),
            (Error::NoOwn, "execute"),
            (Error::Stopped { target: "x".into() }, "close_session"),
            (Error::LineFull { session: "x".into(), behind: "y".into() }, "get_job"),
        ] {
            let hint = error.hint();
            assert!(hint.contains(tool) && !with_commands(&hint).contains(tool), "{hint}");
        }
    }

    #[test]
    fn what_is_not_a_call_stays() {
        assert_eq!(
            with_commands("get_job(job=\"a b\") x get_job(job=\"c\")"),
            "get_job(job=\"a b\") x `pylair output c`"
        );
        assert_eq!(with_commands("fix this:\n  list_targets"), "fix this:\n  list_targets");
    }
}

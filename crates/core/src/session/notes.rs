//! What a caller is told about a cell that was stopped, a worker that died and a session that was brought back: sentences, each true.

use pylair_os::{exit::describe_exit, out_of_memory::Kills};
use pylair_text::plain::counted;
use pylair_workers::link::Restored;

use super::{
    job::Outcome,
    task::{Cause, Ladder, Running, Step},
};

/// What a stopped cell's caller must know: how hard it had to be stopped, and where it was.
pub(super) fn stop_notes(outcome: Outcome, ladder: &Ladder, running: &Running) -> Vec<String> {
    let mut notes = Vec::new();
    match ladder.cause {
        Cause::Timeout => {
            let limit = running.timeout.unwrap_or_default().as_secs_f64();
            let ended = if outcome == Outcome::TimedOut { "stopped" } else { "ended by itself while being stopped" };
            notes.push(format!("the cell ran longer than timeout_s={limit} and was {ended}"));
        }
        Cause::Caller if outcome != Outcome::Interrupted => {
            notes.push("the cell was interrupted but came to its own end".to_owned());
        }
        Cause::Caller => {}
    }
    if matches!(ladder.step, Step::Force(_)) {
        notes.push(
            "it ignored KeyboardInterrupt and was unwound by force; `finally` blocks may have been cut short"
                .to_owned(),
        );
    }
    if let Some(place) = stuck_place(&ladder.stacks) {
        notes.push(format!("it was at {place}"));
    }
    notes
}

/// The innermost frames of a faulthandler dump's main thread, down to the first line of a cell, in words.
fn stuck_place(stacks: &str) -> Option<String> {
    // faulthandler writes the current thread last, most recent call first.
    let (_, main) = stacks.rsplit_once("(most recent call first):")?;
    let mut places = Vec::new();
    // `print` is ours and above the cell; everything else of ours is below it.
    let mut in_our_print = false;
    for line in main.lines() {
        let Some((file, rest)) = line.trim().strip_prefix("File \"").and_then(|rest| rest.split_once("\", line "))
        else {
            continue;
        };
        if file.starts_with("<pylair/") {
            if places.is_empty() {
                in_our_print = true;
                continue;
            }
            break;
        }
        // Below the worker's main loop there is only what it was started with.
        if in_our_print && places.is_empty() && file.starts_with('<') && !file.starts_with("<cell ") {
            break;
        }
        let (number, function) = rest.split_once(" in ").unwrap_or((rest, "?"));
        places.push(format!("{file} line {number} in {function}"));
        if file.starts_with("<cell ") || places.len() == 8 {
            break;
        }
    }
    (!places.is_empty()).then(|| places.join(", called from "))
}

/// Going back to the end of a cell; `lost` are cells in between that nobody meant to lose.
pub(super) fn rollback(cell: u64, lost: &[u64], restored: &Restored) -> Vec<String> {
    let mut notes = Vec::new();
    let back = format!("the session was rolled back to where it was {}", place(cell));
    notes.push(lost_cells(lost).map_or_else(|| back.clone(), |lost| format!("{back}: {lost}")));
    notes.push("files, databases and the network are as they were left".to_owned());
    if !restored.lost.is_empty() {
        notes.push(format!("not restored: {}", restored.lost.join(", ")));
    }
    if restored.swept > 0 {
        let what = if restored.swept == 1 { "child process was" } else { "child processes were" };
        notes.push(format!("{} {what} ended", restored.swept));
    }
    notes
}

/// A session that was saved from a checkpoint, because a cell was running.
pub(super) fn abandoned(cell: u64, lost: &[u64]) -> String {
    let saved = format!("a cell was running when it was saved, and so it is as it was {}", place(cell));
    lost_cells(lost).map_or_else(|| saved.clone(), |lost| format!("{saved}: {lost}"))
}

fn place(cell: u64) -> String {
    if cell == 0 { "before its first cell".to_owned() } else { format!("after cell {cell}") }
}

fn lost_cells(lost: &[u64]) -> Option<String> {
    match lost {
        [] => None,
        [only] => Some(format!("what cell {only} did is lost")),
        [first, .., last] => Some(format!("what cells {first} to {last} did is lost")),
    }
}

pub(super) fn death_message(status: Option<i32>, why: Option<&str>, kills: Option<Kills>, tail: &str) -> String {
    let is_killed = status.is_some_and(|status| libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL);
    let mut message = match (why, status.map(describe_exit), kills.filter(|_| is_killed)) {
        (Some(why), ..) => format!("the worker was killed because {why}"),
        (None, _, Some(kills)) => killed_for_memory(kills),
        (None, Some((Some(code), _)), _) => format!("the worker exited with code {code}"),
        (None, Some((_, Some(signal))), _) => format!("the worker was killed by {signal}"),
        _ => "the worker ended and nobody saw how".to_owned(),
    };
    if !tail.is_empty() {
        message.push_str("; its last words:\n");
        message.push_str(tail);
    }
    message
}

/// What SIGKILL says of a worker when the kernel ended processes for want of memory meanwhile.
fn killed_for_memory(kills: Kills) -> String {
    let processes = |count: u64| counted(count, "process");
    match kills {
        Kills::Group(count) => format!(
            "the worker was killed because there was no memory left (out of memory: the kernel ended {} of pylair's)",
            processes(count)
        ),
        // They may have been somebody else's.
        Kills::Machine(count) => format!(
            "the worker was killed by SIGKILL, while the kernel ended {} on this machine that was out of memory",
            processes(count)
        ),
    }
}

/// A faulthandler dump without the probe's frames and what is below them.
pub(super) fn cell_stacks(stacks: &str) -> String {
    let mut below_probe = false;
    let mut kept = Vec::new();
    for line in stacks.lines() {
        if !line.starts_with("  File ") {
            below_probe = false;
        } else if line.starts_with("  File \"<pylair/") {
            below_probe = true;
        }
        if !below_probe {
            kept.push(line);
        }
    }
    kept.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stuck_place_is_the_main_thread_down_to_the_cell() {
        let dump = "Thread 0x1 (most recent call first):\n  File \"<cell 9>\", line 1 in other\n\n\
                    Current thread 0x2 (most recent call first):\n  File \"/usr/lib/x.py\", line 7 in wait\n  \
                    File \"<cell 3>\", line 2 in f\n  File \"<cell 3>\", line 4 in <module>\n  \
                    File \"<pylair/execute.py>\", line 1 in run\n";
        assert_eq!(
            stuck_place(dump).as_deref(),
            Some("/usr/lib/x.py line 7 in wait, called from <cell 3> line 2 in f")
        );
        assert_eq!(stuck_place(""), None);
        let printing = "Current thread 0x2 (most recent call first):\n  File \"<pylair/output.py>\", line 9 in print\n  \
                        File \"<cell 3>\", line 4 in <module>\n  File \"<pylair/execute.py>\", line 1 in run\n";
        assert_eq!(stuck_place(printing).as_deref(), Some("<cell 3> line 4 in <module>"));
        assert_eq!(
            stuck_place(
                "Current thread 0x2 (most recent call first):\n  File \"<pylair/worker.py>\", line 1 in main\n"
            ),
            None
        );
    }

    #[test]
    fn a_rollback_past_several_cells_names_what_is_lost() {
        let check = |cell, lost: &[u64]| rollback(cell, lost, &Restored { lost: vec![], swept: 0 })[0].clone();
        assert_eq!(check(4, &[]), "the session was rolled back to where it was after cell 4");
        assert_eq!(
            check(4, &[5, 7]),
            "the session was rolled back to where it was after cell 4: what cells 5 to 7 did is lost"
        );
    }

    #[test]
    fn a_death_is_told_with_signal_code_and_last_words() {
        assert_eq!(death_message(Some(libc::SIGSEGV), None, None, ""), "the worker was killed by SIGSEGV");
        assert_eq!(
            death_message(Some(3 << 8), None, None, "boom"),
            "the worker exited with code 3; its last words:\nboom"
        );
        assert_eq!(death_message(None, None, None, ""), "the worker ended and nobody saw how");
        let killed = |kills| death_message(Some(libc::SIGKILL), None, kills, "");
        assert_eq!(killed(None), "the worker was killed by SIGKILL");
        assert!(killed(Some(Kills::Group(1))).contains("out of memory: the kernel ended 1 process of pylair's"));
        assert!(
            killed(Some(Kills::Machine(2))).starts_with("the worker was killed by SIGKILL, while the kernel ended 2")
        );
        // Another end is not explained by it, and neither is one that has its own reason.
        assert_eq!(
            death_message(Some(libc::SIGSEGV), None, Some(Kills::Group(1)), ""),
            "the worker was killed by SIGSEGV"
        );
        assert!(!death_message(Some(libc::SIGKILL), Some("x"), Some(Kills::Group(1)), "").contains("memory"));
    }
}

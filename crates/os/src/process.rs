//! Processes as the kernel knows them: which one a pid means, and who started whom.

use std::fs;

pub use pylair_proc::Stat;
use serde::{Deserialize, Serialize};

/// A process, told apart from a later one with the same pid by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    pub started: u64,
}

/// One step of a process's ancestry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ancestor {
    pub process: Process,
    pub name: String,
    /// Started as a login shell (`-bash`), or something that only holds shells.
    pub is_boundary: bool,
}

/// Programs that hold unrelated work of one person together; sharing one of them above says nothing.
const BOUNDARIES: &[&str] = &[
    "alacritty",
    "dtach",
    "gnome-terminal-",
    "init",
    "kitty",
    "konsole",
    "login",
    "screen",
    "sshd",
    "sshd-session",
    "su",
    "sudo",
    "systemd",
    "tmux",
    "tmux: server",
    "wezterm-gui",
    "xterm",
    "zellij",
];

/// The process and its ancestors as the kernel knows them, nearest first, without init.
pub fn ancestry(pid: i32) -> Vec<Ancestor> {
    let mut chain = Vec::new();
    let mut pid = pid;
    // A bound, because a pid read a moment later may belong to another process and close a circle.
    while pid > 1 && chain.len() < 64 {
        let Some(stat) = Stat::read(pid) else { break };
        let (Some(parent), Some(started)) = (stat.parent(), stat.started()) else { break };
        let name = stat.name().into_owned();
        let argv0 = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_boundary = argv0.first() == Some(&b'-') || BOUNDARIES.contains(&name.as_str());
        chain.push(Ancestor { process: Process { pid, started }, name, is_boundary });
        pid = parent;
    }
    chain
}

/// How near two process trees are: the position, in `chain`, of the nearest ancestor they share, unless that one is a boundary.
pub fn nearest_common(chain: &[Ancestor], other: &[Ancestor]) -> Option<usize> {
    let position = chain.iter().position(|ancestor| other.iter().any(|theirs| theirs.process == ancestor.process))?;
    (!chain[position].is_boundary).then_some(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(steps: &[(i32, &str)]) -> Vec<Ancestor> {
        steps
            .iter()
            .map(|(pid, name)| Ancestor {
                process: Process { pid: *pid, started: 1 },
                name: (*name).to_owned(),
                is_boundary: name.starts_with('-') || BOUNDARIES.contains(name),
            })
            .collect()
    }

    #[test]
    fn ancestry_of_this_process_starts_with_itself() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert_eq!(ancestry(pid)[0].process.pid, pid);
    }

    #[test]
    fn trees_meet_at_the_client_but_not_at_a_login_shell() {
        let bridge = chain(&[(50, "pylair"), (40, "claude"), (20, "-bash"), (10, "tmux: server")]);
        let inside = chain(&[(70, "pylair"), (60, "sh"), (40, "claude"), (20, "-bash")]);
        let beside = chain(&[(80, "pylair"), (20, "-bash"), (10, "tmux: server")]);
        assert_eq!(nearest_common(&inside, &bridge), Some(2));
        assert_eq!(nearest_common(&beside, &bridge), None);
    }
}

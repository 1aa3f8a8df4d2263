//! What of a session's sandbox holds: told from what its worker tried in vain, not from what was asked for.

use serde::{Deserialize, Serialize};

use super::Terms;

/// One thing that a sandbox promises, and who keeps the promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Enforced {
    pub what: &'static str,
    pub how: How,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// It cannot be done.
    Kernel,
    /// It can be done for a moment, and then the session is stopped.
    Watched,
    No,
}

/// What a worker says of its attempts; a name is the error each ended with.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Trial {
    read: Option<String>,
    write: Option<String>,
    daemon: Option<String>,
    network: Option<String>,
    datagrams: Option<String>,
    signal: Option<String>,
    memory: Option<String>,
    processes: Option<String>,
    open_files: Option<String>,
    file_size: Option<String>,
    tmp: Option<String>,
    calls: Option<String>,
    others: u64,
    status: Status,
    held: Held,
}

/// Limits as the kernel told the worker, which nobody inside can raise.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Held {
    #[serde(rename = "RLIMIT_NOFILE")]
    open_files: i64,
    #[serde(rename = "RLIMIT_NPROC")]
    processes: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Status {
    cap_bnd: String,
    cap_eff: String,
    no_new_privs: String,
}

/// What the kernel was found to hold of a group of processes as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grouped {
    pub memory: bool,
    pub processes: bool,
}

/// All that was promised, in the order in which people ask.
pub fn enforced(
    terms: &Terms,
    trial: &Trial,
    grouped: Grouped,
    has_namespaces: bool,
    has_own_directory: bool,
) -> Vec<Enforced> {
    let limits = &terms.limits;
    let failed = |what, error: &Option<String>, tried: &str| match error {
        Some(error) => Enforced { what, how: How::Kernel, detail: format!("{tried}: {error}") },
        None => Enforced { what, how: How::No, detail: format!("{tried}: it worked") },
    };
    let network = match (&trial.network, &trial.datagrams) {
        (Some(stream), Some(datagram)) => {
            let allowed: Vec<_> = terms.allow_net.iter().map(ToString::to_string).collect();
            let way = if allowed.is_empty() { String::new() } else { format!("; by proxy: {}", allowed.join(", ")) };
            Enforced { what: "network", how: How::Kernel, detail: format!("TCP: {stream}, UDP: {datagram}{way}") }
        }
        _ => {
            Enforced { what: "network", how: How::No, detail: "a socket to the outside could be connected".to_owned() }
        }
    };
    let processes_seen = Enforced {
        what: "see_processes",
        how: if trial.others == 0 { How::Kernel } else { How::No },
        detail: format!("{} processes of others are visible", trial.others),
    };
    let is_zero = |mask: &str| !mask.is_empty() && mask.bytes().all(|byte| byte == b'0');
    let status = &trial.status;
    let powerless = is_zero(&status.cap_eff) && is_zero(&status.cap_bnd) && status.no_new_privs == "1";
    let privileges = Enforced {
        what: "privileges",
        how: if powerless { How::Kernel } else { How::No },
        detail: format!("capabilities {}, no_new_privs {}", status.cap_eff, status.no_new_privs),
    };
    let address_space = limits.address_space_bytes() >> 20;
    let memory = match (grouped.memory, &trial.memory) {
        (true, _) => Enforced {
            what: "memory",
            how: How::Kernel,
            detail: format!("{} MB for all processes (cgroup), {address_space} MB mapped by one", limits.memory_mb),
        },
        (false, Some(_)) => Enforced {
            what: "memory",
            how: How::Watched,
            detail: format!(
                "{} MB for all processes; the kernel holds {address_space} MB mapped by one",
                limits.memory_mb
            ),
        },
        (false, None) => {
            Enforced { what: "memory", how: How::No, detail: format!("{address_space} MB could be exceeded") }
        }
    };
    let held = |what, detail| Enforced { what, how: How::Kernel, detail };
    let no_namespaces = |what| Enforced { what, how: How::No, detail: "there are no namespaces here".to_owned() };
    let processes = match (&trial.processes, grouped.processes) {
        (_, true) => held("processes", format!("{} (cgroup, RLIMIT_NPROC {})", limits.processes, trial.held.processes)),
        (Some(error), _) if has_namespaces => {
            held("processes", format!("{} (RLIMIT_NPROC), forking with no room left: {error}", trial.held.processes))
        }
        _ if has_namespaces => {
            Enforced { what: "processes", how: How::No, detail: "forking with no room left: it worked".to_owned() }
        }
        _ => no_namespaces("processes"),
    };
    // Whatever else may stop a large file, only this is `/tmp`.
    let tmp = trial.tmp.clone().filter(|error| error == "ENOSPC" || error == "EDQUOT");
    let watched = |what, detail| Enforced { what, how: How::Watched, detail };
    let mut all = vec![
        failed("read_outside", &trial.read, "reading a file outside"),
        failed("write_outside", &trial.write, "writing to /usr"),
        failed("daemon", &trial.daemon, "connecting to the daemon's socket"),
        network,
        failed("signals", &trial.signal, "signalling the daemon"),
        processes_seen,
        privileges,
        failed("system_calls", &trial.calls, "unshare"),
        memory,
        processes,
        failed("open_files", &trial.open_files, &format!("{} for each process, one more", trial.held.open_files)),
        failed("file_size", &trial.file_size, &format!("{} MB for each file, one byte more", limits.file_size_mb)),
        if has_namespaces {
            failed("tmp", &tmp, &format!("{} MB, one more", limits.tmp_mb))
        } else {
            no_namespaces("tmp")
        },
    ];
    if has_own_directory {
        all.push(watched("disk", format!("{} MB in the workspace", limits.disk_mb)));
    }
    all.extend(
        limits.cpu_s.map(|cpu_s| watched("cpu", format!("{cpu_s} s for all processes; the kernel holds each to it"))),
    );
    all.extend(limits.wall_s.map(|wall_s| watched("wall", format!("{wall_s} s from its opening"))));
    all
}

/// What was promised and does not hold, in words; none when all does.
pub fn missing(enforced: &[Enforced]) -> Option<String> {
    let missing: Vec<_> = enforced
        .iter()
        .filter(|promise| promise.how == How::No)
        .map(|promise| format!("{} ({})", promise.what, promise.detail))
        .collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// The same as it is said in answers.
pub fn not_whole(missing: &str) -> String {
    format!("this session's sandbox is not whole: {missing}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Profile, Settings, Wish, paths::Protected, rules::Asker};

    fn terms() -> Terms {
        let asker = Asker { is_admin: true, chosen: None, default: Profile::Open };
        Terms::settle(Some(Wish::from("sealed")), asker, &Settings::default(), &Protected::default()).unwrap()
    }

    fn how(all: &[Enforced], what: &str) -> How {
        all.iter().find(|promise| promise.what == what).unwrap().how
    }

    #[test]
    fn what_worked_is_not_enforced() {
        let trial = serde_json::json!({"read": "ENOENT", "write": "EROFS", "daemon": null, "network": "EPERM", "datagrams": "EPERM",
            "signal": "ESRCH", "memory": "ENOMEM", "calls": "EPERM", "others": 0, "open_files": "EINVAL", "file_size": "EFBIG", "tmp": "ENOSPC",
            "status": {"CapBnd": "0000", "CapEff": "0000", "NoNewPrivs": "1", "Seccomp": "2"}});
        let trial: Trial = serde_json::from_value(trial).unwrap();
        let all = enforced(&terms(), &trial, Grouped::default(), true, true);
        assert_eq!((how(&all, "read_outside"), how(&all, "daemon")), (How::Kernel, How::No));
        assert_eq!(
            (how(&all, "memory"), how(&all, "disk"), how(&all, "privileges")),
            (How::Watched, How::Watched, How::Kernel)
        );
        assert!(missing(&all).unwrap().starts_with("daemon ("));
        assert_eq!((how(&all, "processes"), how(&all, "tmp")), (How::No, How::Kernel));
        let refused = Trial { processes: Some("EAGAIN".into()), tmp: Some("EFBIG".into()), ..trial.clone() };
        let all = enforced(&terms(), &refused, Grouped::default(), true, true);
        // Another limit stopped what should have been too much for /tmp.
        assert_eq!((how(&all, "processes"), how(&all, "tmp")), (How::Kernel, How::No));
        // A worker that says nothing has shown nothing.
        let all = enforced(&terms(), &Trial::default(), Grouped::default(), true, true);
        assert_eq!(
            (how(&all, "read_outside"), how(&all, "network"), how(&all, "privileges")),
            (How::No, How::No, How::No)
        );
    }
}

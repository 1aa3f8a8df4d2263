//! Why the kernel does not let us in, told with the way around it. The facts are gathered by `Facts::gather`; the rest is pure.

use std::fs;

use super::process::Process;

/// What decides whether one process may trace another.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Facts {
    pub our_uid: u32,
    pub their_uid: u32,
    /// What the user of the process is called, if they are known here.
    pub their_user: Option<String>,
    /// `kernel.yama.ptrace_scope`; nothing where there is no Yama.
    pub yama: Option<u8>,
    /// We have CAP_SYS_PTRACE, here.
    pub capable: bool,
    /// The process is in namespaces of its own.
    pub contained: bool,
    /// We are in a container ourselves.
    pub we_are_contained: bool,
    /// A seccomp filter decides what we may call.
    pub filtered: bool,
}

const CAP_SYS_PTRACE: u32 = 19;

impl Facts {
    pub fn gather(process: &Process) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let capabilities = line("CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
        let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
        Self {
            our_uid: rustix::process::geteuid().as_raw(),
            their_uid: process.uid,
            their_user: user_name(process.uid),
            yama: yama.and_then(|text| text.trim().parse().ok()),
            capable: capabilities >> CAP_SYS_PTRACE & 1 == 1,
            contained: process.contained,
            we_are_contained: ["/.dockerenv", "/run/.containerenv"]
                .iter()
                .any(|path| fs::exists(path).unwrap_or(false)),
            filtered: line("Seccomp:") == Some("2"),
        }
    }

    /// The reason, most likely first, and what to do about it.
    pub fn explain(&self, pid: i32) -> (String, String) {
        let again = format!("sudo pylair attach {pid}");
        if self.our_uid != self.their_uid && !self.capable {
            let theirs = match &self.their_user {
                Some(name) => format!("{name} (uid {})", self.their_uid),
                None => format!("uid {}", self.their_uid),
            };
            let reason = format!("it belongs to {theirs}, and we are uid {}", self.our_uid);
            if self.our_uid == 0 {
                return (format!("{reason} without CAP_SYS_PTRACE"), container_remedy());
            }
            return (reason, format!("run `{again}`, or attach as that user"));
        }
        match self.yama {
            Some(3) => {
                return (
                    "Yama forbids tracing on this machine until it is rebooted (kernel.yama.ptrace_scope is 3)"
                        .to_owned(),
                    "start the program with `pylair wrap`, or with pylair.start() in it".to_owned(),
                );
            }
            Some(2) if !self.capable => {
                return (
                    "Yama lets only root trace processes (kernel.yama.ptrace_scope is 2)".to_owned(),
                    format!("run `{again}`, or start the program with `pylair wrap`"),
                );
            }
            Some(1) if !self.capable => {
                return (
                    "Yama lets processes trace only their own children (kernel.yama.ptrace_scope is 1)".to_owned(),
                    format!(
                        "run `{again}`; or allow it until the next boot with `sudo sysctl -w kernel.yama.ptrace_scope=0`; or have the \
                         program call prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); or start it with `pylair wrap`"
                    ),
                );
            }
            _ => {}
        }
        if self.contained && !self.capable {
            return (
                "it is in a container or another user namespace".to_owned(),
                format!("run `{again}` outside of the container, or run pylair inside it"),
            );
        }
        if self.we_are_contained || self.filtered {
            return ("this container does not let its processes trace others".to_owned(), container_remedy());
        }
        (
            "the kernel does not say why; a program that is not dumpable (setuid, or by prctl) or a security module can be the reason"
                .to_owned(),
            format!("run `{again}`, or start the program with `pylair wrap`"),
        )
    }
}

fn container_remedy() -> String {
    "start the container with `--cap-add=SYS_PTRACE` (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]), or start the program with `pylair wrap`"
        .to_owned()
}

fn user_name(uid: u32) -> Option<String> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields.get(2).is_some_and(|field| *field == uid.to_string()))?;
    fields.first().map(|name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            our_uid: 1000,
            their_uid: 1000,
            their_user: None,
            yama: Some(0),
            capable: false,
            contained: false,
            we_are_contained: false,
            filtered: false,
        }
    }

    #[track_caller]
    fn check(facts: &Facts, reason: &str, remedy: &str) {
        let (told, hint) = facts.explain(7);
        assert!(told.contains(reason) && hint.contains(remedy), "{told} / {hint}");
    }

    #[test]
    fn another_users_process_is_named_with_its_user() {
        let facts = Facts { their_uid: 0, their_user: Some("root".to_owned()), ..facts() };
        check(&facts, "belongs to root (uid 0), and we are uid 1000", "sudo pylair attach 7");
        check(&Facts { their_user: None, ..facts.clone() }, "belongs to uid 0", "sudo pylair attach 7");
        check(&Facts { our_uid: 0, their_uid: 5, ..facts }, "without CAP_SYS_PTRACE", "--cap-add=SYS_PTRACE");
    }

    #[test]
    fn yama_is_told_by_its_level() {
        check(&Facts { yama: Some(1), ..facts() }, "ptrace_scope is 1", "sysctl -w kernel.yama.ptrace_scope=0");
        check(&Facts { yama: Some(2), ..facts() }, "ptrace_scope is 2", "sudo pylair attach 7");
        check(&Facts { yama: Some(3), capable: true, ..facts() }, "ptrace_scope is 3", "pylair wrap");
    }

    #[test]
    fn containers_are_told_from_both_sides() {
        check(&Facts { contained: true, ..facts() }, "in a container", "outside of the container");
        check(&Facts { we_are_contained: true, ..facts() }, "this container", "--cap-add=SYS_PTRACE");
        check(&Facts { filtered: true, capable: true, ..facts() }, "this container", "SYS_PTRACE");
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        check(&facts(), "does not say why", "sudo pylair attach 7");
    }
}

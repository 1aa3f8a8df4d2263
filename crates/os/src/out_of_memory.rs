//! Whether the kernel ended processes because there was no memory left. It does not say so to whoever waits for them; it counts.
//!
//! The group this process is in, and the sessions without a sandbox with it, has a counter of its own; where that cannot be read the
//! machine's counts, which is also about others.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

/// How often it is counted at most while cells are started.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// How many processes the kernel has ended for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kills {
    /// In the group that pylair, and every session without a sandbox, is in.
    Group(u64),
    /// On this machine, by whomever they were started.
    Machine(u64),
}

impl Kills {
    fn now() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let of_group = counters(&own).find_map(|path| count(&fs::read_to_string(path).ok()?));
        let of_machine = || count(&fs::read_to_string("/proc/vmstat").ok()?);
        of_group.map(Self::Group).or_else(|| of_machine().map(Self::Machine))
    }

    /// None where there were none, or the two are about different things.
    fn since(self, before: Self) -> Option<Self> {
        let more = |now: u64, before: u64| now.checked_sub(before).filter(|more| *more > 0);
        match (self, before) {
            (Self::Group(now), Self::Group(before)) => more(now, before).map(Self::Group),
            (Self::Machine(now), Self::Machine(before)) => more(now, before).map(Self::Machine),
            _ => None,
        }
    }
}

/// Where the groups that a process is in may count, by its `/proc/PID/cgroup`.
fn counters(groups: &str) -> impl Iterator<Item = PathBuf> + '_ {
    groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let root = Path::new("/sys/fs/cgroup");
        match controllers {
            // The other file of version 2, `memory.events`, counts also what groups below had for themselves.
            "" => Some(root.join(path).join("memory.events.local")),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Some(root.join("memory").join(path).join("memory.oom_control"))
            }
            _ => None,
        }
    })
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// What was counted, for comparing.
#[derive(Debug, Default)]
pub struct Count {
    /// A std mutex: held for a comparison. The newest count is the last.
    counted: Mutex<[Option<(Instant, Kills)>; 2]>,
}

impl Count {
    /// Counts before something may go wrong, unless that was done a moment ago.
    pub fn before(&self) {
        let mut counted = self.counted.lock().expect("no panic while locked");
        if counted[1].is_some_and(|(at, _)| at.elapsed() < COUNT_EVERY) {
            return;
        }
        let now = Kills::now().map(|kills| (Instant::now(), kills));
        // The one before stays: somebody else may count between the end of a process and the question why.
        *counted = [counted[1].or(now), now];
    }

    /// How many processes were ended since it was counted, if any were.
    pub fn since(&self) -> Option<Kills> {
        let [before, _] = *self.counted.lock().expect("no panic while locked");
        Kills::now()?.since(before?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_count_where_the_kernel_says_that_they_are() {
        let of = |groups: &str| counters(groups).map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(of("0::/user.slice/a\n"), ["/sys/fs/cgroup/user.slice/a/memory.events.local"]);
        assert_eq!(of("0::/\n"), ["/sys/fs/cgroup/memory.events.local"]);
        let mixed = "5:memory:/docker/x\n4:cpu,cpuacct:/\n0::/init.scope\n";
        assert_eq!(
            of(mixed),
            ["/sys/fs/cgroup/memory/docker/x/memory.oom_control", "/sys/fs/cgroup/init.scope/memory.events.local"]
        );
        assert!(of("garbage\n").is_empty());
    }

    #[test]
    fn counters_of_every_kind_are_read() {
        assert_eq!(count("low 0\nhigh 0\nmax 3\noom 2\noom_kill 7\noom_group_kill 1\n"), Some(7));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), Some(2));
        assert_eq!(count("nr_free_pages 9\noom_kill 0\n"), Some(0));
        assert_eq!(count("oom_kill_disable 0\n"), None);
    }

    #[test]
    fn only_counts_of_the_same_are_compared() {
        assert_eq!(Kills::Group(3).since(Kills::Group(1)), Some(Kills::Group(2)));
        assert_eq!(Kills::Machine(4).since(Kills::Machine(3)), Some(Kills::Machine(1)));
        assert_eq!(Kills::Machine(3).since(Kills::Machine(3)), None);
        assert_eq!(Kills::Machine(3).since(Kills::Group(1)), None);
    }
}

//! Groups of processes that the kernel counts as one: a session's memory and processes, and its share of the processors, where we may
//! make groups.
//!
//! Version 2 where it is delegated to us or we are root, version 1 as root. Putting a process into a group of version 1 takes
//! milliseconds, so it is done behind the session's back, on a blocking thread. Called by `watch`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

use pylair_os::process::Stat;

use super::{Limits, processes::Processes, share::Share, truth::Grouped};

/// Where groups can be made.
#[derive(Debug, Default)]
pub struct Groups {
    memory: Option<Base>,
    processes: Option<Base>,
    processors: Option<Base>,
    /// The daemon leaves: whoever is on the way to a group of its own gets none.
    is_closed: RwLock<bool>,
}

#[derive(Debug)]
struct Base {
    path: PathBuf,
    version: Version,
    /// Locked for as long as we live, so that others know that it is not left behind.
    _lock: Option<fs::File>,
}

const PREFIX: &str = "pylair-";
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// How often it is tried to remove groups whose processes are ending.
const ATTEMPTS: u32 = 50;
/// And how often when the daemon leaves: on a busy machine processes that were killed take seconds to be gone.
const LAST_ATTEMPTS: u32 = 250;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The longest pause before groups of other daemons are left for the next one to remove.
const SWEEP_PATIENCE: Duration = Duration::from_secs(20);
/// The file of a group that lists its processes and takes new ones.
const PROCESSES: &str = "cgroup.procs";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Groups {
    /// Looks for them, and makes the group that sessions' groups are in. Blocks.
    pub fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let name = format!("{PREFIX}{}", std::process::id());
        let base = |controller| {
            let base = base_of_two(&mounts, &own, controller).or_else(|| base_of_one(&mounts, &own, controller))?;
            let path = base.path.join(&name);
            create(&path)?;
            if base.version == Version::Two {
                fs::write(path.join("cgroup.subtree_control"), format!("+{controller}")).ok()?;
            }
            let lock = fs::File::open(&path).ok();
            let lock = lock.filter(|lock| flock(lock, FlockOperation::NonBlockingLockShared).is_ok());
            Some(Base { path, _lock: lock, ..base })
        };
        let [memory, processes, processors] = CONTROLLERS;
        Self { memory: base(memory), processes: base(processes), processors: base(processors), ..Self::default() }
    }

    /// Puts a session's processes into groups of their own. What is not there to be had is left out. Blocks.
    /// The keeper has processors of its own: it has to come to interrupting the others.
    pub fn enclose(
        &self,
        handle: &str,
        limits: &Limits,
        keeper: Option<i32>,
        processes: &impl Fn() -> Vec<i32>,
    ) -> Group {
        let mut group = Group::default();
        let is_closed = self.is_closed.read().expect("no panic while locked");
        if *is_closed {
            return group;
        }
        let memory = limits.memory_mb << 20;
        if let Some(path) = self.memory.as_ref().and_then(|base| {
            let settings: &[(&str, String)] = match base.version {
                Version::One => &[("memory.limit_in_bytes", memory.to_string())],
                Version::Two => &[("memory.max", memory.to_string()), ("memory.swap.max", "0".to_owned())],
            };
            base.make(handle, settings, processes)
        }) {
            group.held.memory = true;
            group.paths.push(path);
        }
        if let Some(path) = self.processes.as_ref().and_then(|base| {
            // Frozen copies are the session's too, and the keeper.
            base.make(handle, &[("pids.max", (limits.processes + 8).to_string())], processes)
        }) {
            group.held.processes = true;
            group.list = Some(path.join(PROCESSES));
            group.paths.push(path);
        }
        if let Some(base) = &self.processors {
            let members = || {
                let is_one = base.version == Version::One;
                processes().into_iter().filter(|pid| !is_one || Some(*pid) != keeper).collect()
            };
            if let Some(path) = base.beside(handle, &[base.version.share(Share::Usual)], &members) {
                group.share = Some((path.clone(), base.version, Mutex::default()));
                group.paths.push(path);
            }
        }
        group.paths.dedup();
        group
    }
}

impl Version {
    /// The file that has a group's share, and what it says.
    fn share(self, share: Share) -> (&'static str, String) {
        let (file, usual) = match self {
            Self::One => ("cpu.shares", 1024),
            Self::Two => ("cpu.weight", 100),
        };
        let part = match share {
            Share::Usual => 1,
            Share::Tenth => 10,
            Share::Rest => 64,
        };
        (file, (usual / part).to_string())
    }
}

/// Removes the groups of daemons that are gone, wherever this one would make its own, on a thread of its own: the last processes of a
/// daemon that was killed take a while to end.
pub fn sweep_left() {
    let sweep_all = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let of_one = CONTROLLERS.iter().filter_map(|controller| place_of_one(&mounts, &own, controller));
        let mut places: Vec<_> = of_one.chain(place_of_two(&mounts, &own)).collect();
        places.dedup();
        let mut pause = LOOK_AGAIN;
        while pause < SWEEP_PATIENCE {
            places.retain(|place| sweep(place) > 0);
            if places.is_empty() {
                return;
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
    };
    if let Err(error) = std::thread::Builder::new().name("pylair-sweep".to_owned()).spawn(sweep_all) {
        tracing::debug!(%error, "groups of other daemons are left");
    }
}

/// Removes groups of daemons that are gone. Whoever is in one keeps it. Returns how many are left. Blocks.
fn sweep(above: &Path) -> usize {
    let mut daemons: Vec<u32> = names_in(above).iter().filter_map(|name| daemon_of(name)).collect();
    daemons.sort_unstable();
    daemons.dedup();
    daemons.retain(|daemon| *daemon != std::process::id());
    daemons.into_iter().map(|daemon| sweep_of(above, daemon)).sum()
}

fn sweep_of(above: &Path, daemon: u32) -> usize {
    if is_pylair(daemon) {
        return 0;
    }
    let first = above.join(format!("{PREFIX}{daemon}"));
    // A daemon of another pid namespace is known by its lock alone, which it has for as long as it lives.
    let left = fs::File::open(&first);
    if left.is_ok_and(|left| flock(left, FlockOperation::NonBlockingLockExclusive).is_err()) {
        return 0;
    }
    remove_all(above, daemon)
}

/// Whether a process is one of ours and has not ended: nobody may have waited for it yet.
fn is_pylair(pid: u32) -> bool {
    Stat::read(pid).is_some_and(|stat| stat.name().starts_with("pylair") && !stat.has_ended())
}

/// Removes all groups of one daemon that nobody is in. Returns how many are left.
fn remove_all(above: &Path, daemon: u32) -> usize {
    let first = above.join(format!("{PREFIX}{daemon}"));
    let beside =
        names_in(above).into_iter().filter(|name| daemon_of(name) == Some(daemon)).map(|name| above.join(name));
    let inside = names_in(&first).into_iter().map(|name| first.join(name));
    let mut groups: Vec<_> = inside.chain(beside.filter(|group| *group != first)).collect();
    groups.push(first);
    groups.iter().filter(|group| group.is_dir() && fs::remove_dir(group).is_err()).count()
}

/// The directories in a group, which are groups; files are the kernel's own.
fn names_in(group: &Path) -> Vec<String> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The daemon that made a group, by its name: the group that others are in, or one beside it.
fn daemon_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

impl Groups {
    /// Removes all groups of this daemon, whose sessions have ended. The kernel may take a moment to see that. Blocks.
    pub fn remove(&self) {
        *self.is_closed.write().expect("no panic while locked") = true;
        let bases = || [&self.memory, &self.processes, &self.processors].into_iter().flatten();
        for _ in 0..LAST_ATTEMPTS {
            let left = bases().filter_map(|base| base.path.parent()).map(|above| remove_all(above, std::process::id()));
            if left.sum::<usize>() == 0 {
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Base {
    fn make(&self, handle: &str, settings: &[(&str, String)], processes: &impl Fn() -> Vec<i32>) -> Option<PathBuf> {
        Self::make_at(self.path.join(handle), settings, processes)
    }

    /// The same, in version 1 side by side with everybody else's: those who step back would have the share of all sessions otherwise,
    /// whenever nobody else among them wants to run.
    fn beside(&self, handle: &str, settings: &[(&str, String)], processes: &impl Fn() -> Vec<i32>) -> Option<PathBuf> {
        if self.version == Version::Two {
            return self.make(handle, settings, processes);
        }
        let name = format!("{}-{handle}", self.path.file_name()?.to_str()?);
        Self::make_at(self.path.with_file_name(name), settings, processes)
    }

    fn make_at(path: PathBuf, settings: &[(&str, String)], processes: &impl Fn() -> Vec<i32>) -> Option<PathBuf> {
        const ROUNDS: usize = 8;
        create(&path)?;
        let (first, rest) = settings.split_first()?;
        fs::write(path.join(first.0), &first.1).ok()?;
        for (file, value) in rest {
            // There is no swap everywhere.
            let _absent = fs::write(path.join(file), value);
        }
        // A process that forks while it is being moved leaves a child behind, which is found the next time.
        for _ in 0..ROUNDS {
            let inside = read_pids(&path);
            let outside: Vec<_> = processes().into_iter().filter(|pid| !inside.contains(pid)).collect();
            if outside.is_empty() {
                return Some(path);
            }
            for pid in outside {
                // It may be gone by now.
                let _gone = fs::write(path.join(PROCESSES), pid.to_string());
            }
        }
        None
    }
}

/// Makes a group, unless it is there.
fn create(group: &Path) -> Option<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => None,
        _ => Some(()),
    }
}

fn read_pids(group: &Path) -> Vec<i32> {
    let text = fs::read_to_string(group.join(PROCESSES)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Where the hierarchy with a controller of version 1 is, and we in it: only root may make groups there.
fn place_of_one(mounts: &str, own: &str, controller: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let options = kind.strip_prefix("cgroup ")?.split(' ').next_back()?;
        options.split(',').any(|option| option == controller).then(|| place.split(' ').nth(4))?
    })?;
    let inside = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        parts.next()?.split(',').any(|name| name == controller).then(|| parts.next())?
    })?;
    let path = Path::new(mount).join(inside.trim_start_matches('/'));
    Some(if path.is_dir() { path } else { mount.into() })
}

fn base_of_one(mounts: &str, own: &str, controller: &str) -> Option<Base> {
    let path = place_of_one(mounts, own, controller)?;
    Some(Base { path, version: Version::One, _lock: None })
}

/// The group of version 2 that we are in.
fn place_of_two(mounts: &str, own: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| place.split(' ').nth(4))?
    })?;
    let inside = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(inside))
}

/// The group of version 2 that we are in, if the controller is given to what is below.
fn base_of_two(mounts: &str, own: &str, controller: &str) -> Option<Base> {
    let path = place_of_two(mounts, own)?;
    let given = |file: &str| {
        fs::read_to_string(path.join(file)).is_ok_and(|text| text.split_whitespace().any(|name| name == controller))
    };
    if !given("cgroup.controllers") {
        return None;
    }
    let divide = || fs::write(path.join("cgroup.subtree_control"), format!("+{controller}"));
    if !given("cgroup.subtree_control") && divide().is_err() {
        // Refused where it is not ours to divide, and while anybody is in it.
        step_aside(&path)?;
        divide().ok()?;
    }
    Some(Base { path, version: Version::Two, _lock: None })
}

/// Moves this process and those below it out of a group into one of its own, since a group that is divided has no processes itself. Not if
/// others are there, who did not ask to be moved.
fn step_aside(group: &Path) -> Option<()> {
    const ROUNDS: usize = 8;
    let own = group.join(format!("{PREFIX}{}-own", std::process::id()));
    for _ in 0..ROUNDS {
        let inside = read_pids(group);
        if inside.is_empty() {
            return Some(());
        }
        let mine = pids(&[std::process::id().cast_signed()]);
        if inside.iter().any(|pid| !mine.contains(pid) && Path::new(&format!("/proc/{pid}")).exists()) {
            break;
        }
        create(&own)?;
        for pid in inside {
            // It may be gone by now.
            let _gone = fs::write(own.join(PROCESSES), pid.to_string());
        }
    }
    let _none = fs::remove_dir(&own);
    None
}

/// A session's groups. They go when it does.
#[derive(Debug, Default)]
pub struct Group {
    paths: Vec<PathBuf>,
    pub held: Grouped,
    /// The file that lists all its processes.
    list: Option<PathBuf>,
    /// The one that has a share of the processors, and which it has.
    share: Option<(PathBuf, Version, Mutex<Share>)>,
    /// How often the kernel ended a process for want of memory when that was last asked.
    ends_told: AtomicU64,
}

impl Group {
    /// All its processes, if the kernel keeps them together.
    pub fn pids(&self) -> Option<Vec<i32>> {
        let text = fs::read_to_string(self.list.as_ref()?).ok()?;
        Some(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Gives all its processes a share of the processors together.
    pub fn give(&self, share: Share) {
        let Some((path, version, given)) = &self.share else { return };
        let mut given = given.lock().expect("no panic while locked");
        if *given != share {
            *given = share;
            let (file, value) = version.share(share);
            // The session may be going.
            let _gone = fs::write(path.join(file), value);
        }
    }

    /// Whether the kernel ended a process in it for want of memory since this was last asked.
    pub fn was_out_of_memory(&self) -> bool {
        let ends = self.ends();
        self.ends_told.swap(ends, Ordering::Relaxed) < ends
    }

    fn ends(&self) -> u64 {
        let count = |path: &Path| {
            let text = fs::read_to_string(path.join("memory.events"))
                .or_else(|_| fs::read_to_string(path.join("memory.oom_control")))
                .ok()?;
            text.lines()
                .find_map(|line| line.strip_prefix("oom_kill "))
                .and_then(|count| count.trim().parse::<u64>().ok())
        };
        self.paths.iter().filter_map(|path| count(path)).sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for path in std::mem::take(&mut self.paths) {
            // Its processes are gone, but the kernel may take a moment to see that.
            if fs::remove_dir(&path).is_err() {
                let again = move || {
                    for _ in 0..ATTEMPTS {
                        std::thread::sleep(LOOK_AGAIN);
                        if fs::remove_dir(&path).is_ok() {
                            return;
                        }
                    }
                };
                match tokio::runtime::Handle::try_current() {
                    Ok(runtime) => drop(runtime.spawn_blocking(again)),
                    Err(_) => again(),
                }
            }
        }
    }
}

/// The pids of a session as they are now.
pub fn pids(roots: &[i32]) -> Vec<i32> {
    Processes::now().below(roots).into_iter().map(|process| process.pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In plain directories, which are locked and removed like groups.
    #[test]
    fn groups_of_daemons_that_are_gone_are_removed() {
        let base = std::env::temp_dir().join(format!("pylair-sweep-{}", std::process::id()));
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        let dead = base.join(format!("{PREFIX}{}", gone.id()));
        gone.wait().unwrap();
        // Somebody of another pid namespace, and what is not ours.
        let locked = base.join(format!("{PREFIX}4194305"));
        let (own, foreign) = (base.join(format!("{PREFIX}{}", std::process::id())), base.join("user-1000"));
        let beside = base.join(format!("{PREFIX}{}-abc-7", gone.id()));
        // What the daemon left beside a group that it removed.
        let alone = base.join(format!("{PREFIX}4194306-abc-7"));
        for directory in [&beside, &alone] {
            fs::create_dir_all(directory).unwrap();
        }
        for directory in [&dead, &locked, &own, &foreign] {
            fs::create_dir_all(directory.join("abc-7")).unwrap();
        }
        let lock = fs::File::open(&locked).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockShared).unwrap();
        assert_eq!(sweep(&base), 0);
        assert!(!dead.exists() && !beside.exists() && !alone.exists());
        for kept in [&locked, &own, &foreign] {
            assert!(kept.join("abc-7").exists(), "{}", kept.display());
        }
        drop(lock);
        // Somebody is in it.
        fs::create_dir(locked.join("abc-7/process")).unwrap();
        assert_eq!(sweep(&base), 2);
        fs::remove_dir(locked.join("abc-7/process")).unwrap();
        assert_eq!(sweep(&base), 0);
        assert!(!locked.exists());
        fs::remove_dir_all(&base).unwrap();
    }

    /// With whatever controller version 2 has here, in a group that was given to this process alone.
    #[test]
    #[ignore = "divides the machine's groups: needs root and a hierarchy of version 2 with a controller"]
    fn a_group_of_version_two_that_was_given_is_divided() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap().split(' ').nth(4).unwrap();
        let root = Path::new(root);
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap();
        let controller = controllers.split_whitespace().next().unwrap();
        fs::write(root.join("cgroup.subtree_control"), format!("+{controller}")).unwrap();
        let given = root.join(format!("given-{}", std::process::id()));
        fs::create_dir(&given).unwrap();
        let move_to = |group: &Path| fs::write(group.join(PROCESSES), std::process::id().to_string()).unwrap();
        let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        move_to(&given);
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let base = base_of_two(&mounts, &own, controller).unwrap();
        assert_eq!((&base.path, base.version), (&given, Version::Two));
        // A session's processes are moved from where we are now.
        let setting = format!("{controller}.2MB.max");
        let made = base.make("abc-1", &[(&setting, "0".to_owned())], &|| vec![other.id().cast_signed()]).unwrap();
        assert_eq!(read_pids(&made), [other.id().cast_signed()]);
        other.kill().unwrap();
        other.wait().unwrap();
        move_to(root);
        for group in [made, given.join(format!("{PREFIX}{}-own", std::process::id())), given] {
            fs::remove_dir(group).unwrap();
        }
    }

    #[test]
    fn hierarchies_are_found() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n\
                      31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 30 0:28 / /sys/fs/cgroup/cpu,pids rw - cgroup cgroup rw,cpu,pids\n";
        let own = "4:memory:/no/such\n3:cpu,pids:/\n0::/\n";
        let base = |controller| base_of_one(mounts, own, controller).map(|base| base.path);
        assert_eq!(base("memory").unwrap(), Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(base("pids").unwrap(), Path::new("/sys/fs/cgroup/cpu,pids/"));
        assert!(base("io").is_none() && base_of_two(mounts, own, "memory").is_none());
    }
}

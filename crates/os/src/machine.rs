//! What processes use and what the machine has left, read from the kernel. Called by `session`, `workers` and `daemon` for status and limits.

use std::{fs, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::process::Stat;

/// What a process has used.
#[derive(Debug, Clone, Copy)]
pub struct Used {
    pub cpu_s: f64,
    pub threads: u64,
}

/// What there is left for everybody.
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Machine {
    pub memory_mb: Option<u64>,
    pub memory_available_mb: Option<u64>,
    pub cpus: usize,
    /// Processes that wanted to run, on average over the last minute.
    pub load: Option<f64>,
    /// Where pylair keeps its data.
    pub disk_available_mb: Option<u64>,
}

pub fn used_by(pid: i32) -> Option<Used> {
    used(&Stat::read(pid)?)
}

fn used(stat: &Stat) -> Option<Used> {
    #[expect(clippy::cast_precision_loss, reason = "centuries of ticks fit")]
    let cpu_s = (stat.user_ticks()? + stat.system_ticks()?) as f64 / rustix::param::clock_ticks_per_second() as f64;
    Some(Used { cpu_s, threads: stat.threads()? })
}

/// What a process's pages have cost it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Paging {
    /// Pages that it was given, or that were copied for it, one by one.
    pub faults: u64,
    /// Time that the kernel worked for it.
    pub system: Duration,
    pub resident_pages: u64,
}

pub fn paging(pid: i32) -> Option<Paging> {
    paging_in(&Stat::read(pid)?)
}

fn paging_in(stat: &Stat) -> Option<Paging> {
    let tick = Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second()).ok()?.max(1);
    let system = tick.saturating_mul(u32::try_from(stat.system_ticks()?).unwrap_or(u32::MAX));
    Some(Paging { faults: stat.minor_faults()?, system, resident_pages: stat.resident_pages()? })
}

/// How much longer than usual things may take: processes that want to run now, for each processor, within bounds. A worker that gets no
/// processor looks just like one that hangs, and must not be killed for it.
pub fn crowding() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    crowding_of(&fs::read_to_string("/proc/loadavg").unwrap_or_default(), cpus)
}

/// Whether so many want to run that what can wait had better wait.
pub fn is_crowded() -> bool {
    crowding() as usize == MAX_CROWDING
}

const MAX_CROWDING: usize = 6;

/// The fourth field of `/proc/loadavg`: those that want to run, a slash, all.
fn crowding_of(loadavg: &str, cpus: usize) -> u32 {
    let runnable = loadavg.split(' ').nth(3).and_then(|field| field.split('/').next()?.parse::<usize>().ok());
    let each = runnable.unwrap_or(1).div_ceil(cpus.max(1)).clamp(1, MAX_CROWDING);
    u32::try_from(each).unwrap_or(1)
}

/// How long the first thread of a process wanted to run and was not let, in all its life.
pub fn waited(pid: i32) -> Option<Duration> {
    waited_of(&fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?)
}

/// Nanoseconds that it ran, and that it waited for a processor, and how often it got one.
fn waited_of(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// Whether the kernel keeps a process from running, for a lock or a disk.
pub fn is_held_up(pid: i32) -> bool {
    Stat::read(pid).is_some_and(|stat| stat.state() == Some('D'))
}

/// Memory that can be had without swapping.
pub fn available_memory_mb() -> Option<u64> {
    memory_mb(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

fn memory_mb(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes / 1024)
}

impl Machine {
    pub fn now(data: &Path) -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let disk = rustix::fs::statvfs(data).ok();
        Self {
            memory_mb: memory_mb(&meminfo, "MemTotal:"),
            memory_available_mb: memory_mb(&meminfo, "MemAvailable:"),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            load: load.split(' ').next().and_then(|load| load.parse().ok()),
            disk_available_mb: disk.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >> 20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_a_strange_name_is_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 3 0 100";
        let used = used(&Stat::parse(stat).unwrap()).unwrap();
        let ticks = rustix::param::clock_ticks_per_second();
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let expected = 300.0 / ticks as f64;
        assert!((used.cpu_s - expected).abs() < 1e-9);
        assert_eq!(used.threads, 3);
    }

    #[test]
    fn pages_of_a_process_are_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 31 2 3 4 250 0 0 0 20 0 3 0 100 8192 12";
        let paging = Paging { faults: 31, system: Duration::ZERO, resident_pages: 12 };
        assert_eq!(paging_in(&Stat::parse(stat).unwrap()), Some(paging));
        assert!(paging_of_this().faults > 0);
        assert_eq!(paging_in(&Stat::parse("7 (a) S 1").unwrap()), None);
    }

    fn paging_of_this() -> Paging {
        paging(i32::try_from(std::process::id()).unwrap()).unwrap()
    }

    #[test]
    fn the_more_want_to_run_the_longer_things_may_take() {
        assert_eq!(crowding_of("0.10 0.20 0.30 1/300 4711\n", 2), 1);
        assert_eq!(crowding_of("9.10 0.20 0.30 6/300 4711\n", 2), 3);
        assert_eq!(crowding_of("90.1 0.20 0.30 360/900 4711\n", 2), 6);
        assert_eq!(crowding_of("", 2), 1);
        assert!(crowding() >= 1);
    }

    #[test]
    fn waiting_is_counted() {
        assert_eq!(waited_of("1234567 2000000000 17\n"), Some(Duration::from_secs(2)));
        assert_eq!(waited_of(""), None);
        assert!(waited(std::process::id().cast_signed()).is_some() && !is_held_up(std::process::id().cast_signed()));
    }

    #[test]
    fn this_process_has_threads_and_the_machine_memory() {
        assert!(used_by(std::process::id().cast_signed()).unwrap().threads >= 1);
        assert!(Machine::now(Path::new("/")).memory_mb.unwrap() > 0);
    }
}

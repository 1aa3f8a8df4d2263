//! How old something is, by a clock that may jump: a wrong date at boot, a battery that is empty, a person who corrects it.
//!
//! What is deleted for its age is compared with the wall clock, and a jump of that would make everything old at once. So it is
//! recorded what the wall clock said and how long the machine had been up then. Time that the wall clock went on without the
//! machine having been up for it is a gap, and gaps add to no age. A clock that goes back makes things young, which costs room
//! and no data.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use crate::regular;

/// How far two clocks may be apart: they are adjusted all the time.
const TOLERANCE_S: i64 = 600;
/// How many gaps are remembered; the oldest are for ages that nothing reaches.
const MAX_GAPS: usize = 100;
const MAX_RECORD_BYTES: u64 = 64 << 10;
/// How often the record is renewed while the daemon runs.
pub const TICK: Duration = Duration::from_hours(1);

/// What the clocks of the machine say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Reading {
    /// Seconds since 1970.
    wall: i64,
    /// Seconds that the machine has been up, asleep or awake.
    up: i64,
    /// Which start of the machine that was.
    boot: String,
    /// The kernel says that its clock is held right by another one.
    is_synchronized: bool,
}

/// The newest reading, and the gaps before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    wall: i64,
    up: i64,
    boot: String,
    /// Oldest first, none within another.
    gaps: Vec<Gap>,
}

/// From when to when the wall clock jumped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Gap {
    from: i64,
    to: i64,
}

impl Record {
    /// Goes on to what the clocks say now.
    fn advance(&mut self, now: &Reading) {
        if self.boot.is_empty() {
            // Nothing is known of what was before: all of it begins to age now.
            self.gaps = vec![Gap { from: 0, to: now.wall }];
        } else if now.wall < self.expected(now) - TOLERANCE_S {
            // It goes back: to before a gap, that one was the mistake.
            self.gaps.retain(|gap| gap.to <= now.wall);
        } else if let Some(gap) = self.gap(now) {
            self.gaps.push(gap);
        }
        let surplus = self.gaps.len().saturating_sub(MAX_GAPS);
        self.gaps.drain(..surplus);
        (self.wall, self.up) = (now.wall, now.up);
        self.boot.clone_from(&now.boot);
    }

    /// The least that the wall clock must say now.
    fn expected(&self, now: &Reading) -> i64 {
        if self.boot == now.boot { self.wall + (now.up - self.up) } else { self.wall + now.up }
    }

    /// Between two starts of a machine nobody knows how long it was off; a clock that is held right does.
    fn gap(&self, now: &Reading) -> Option<Gap> {
        let is_known = self.boot != now.boot && now.is_synchronized;
        let unseen = now.wall - self.expected(now);
        (unseen > TOLERANCE_S && !is_known).then_some(Gap { from: now.wall - unseen, to: now.wall })
    }

    /// What was made before this is older than `age`.
    fn oldest(&self, now: i64, age: i64) -> i64 {
        let (mut until, mut left) = (now, age);
        for gap in self.gaps.iter().rev().filter(|gap| gap.to <= now) {
            let between = (until - gap.to).max(0);
            if left <= between {
                break;
            }
            left -= between;
            until = until.min(gap.from);
        }
        until.saturating_sub(left)
    }
}

/// Tells how old things are.
#[derive(Debug)]
pub struct Clock {
    /// None where nothing is remembered.
    path: Option<PathBuf>,
    /// A std mutex: held for a few numbers.
    record: Mutex<Record>,
}

impl Clock {
    /// Goes on from what was recorded at `path`. Where that cannot be read, everything begins to age now.
    pub fn open(path: &Path) -> Self {
        let text = regular::read(path, MAX_RECORD_BYTES).unwrap_or_default();
        let record: Record = serde_json::from_str(&text).unwrap_or_default();
        let clock = Self { path: Some(path.to_owned()), record: Mutex::new(record) };
        clock.tick();
        clock
    }

    /// A clock that is believed whatever it says.
    pub fn trusted() -> Self {
        Self { path: None, record: Mutex::default() }
    }

    /// Looks at the clocks and writes down what they say.
    pub fn tick(&self) {
        let Some(path) = &self.path else { return };
        let now = Reading::now();
        let text = {
            let mut record = self.lock();
            let gaps = record.gaps.len();
            record.advance(&now);
            if record.gaps.len() > gaps
                && let Some(gap) = record.gaps.last().filter(|gap| gap.from > 0)
            {
                tracing::warn!(seconds = gap.to - gap.from, "the clock jumped: that time does not make anything older");
            }
            serde_json::to_vec(&*record).unwrap_or_default()
        };
        // The next daemon finds the old one, and goes on from there.
        if let Err(error) = regular::replace(path, |file| file.write_all(&text)) {
            tracing::warn!(%error, path = %path.display(), "the time could not be written down");
        }
    }

    /// What was made before this is older than `age`, in time that was seen to pass.
    pub fn oldest(&self, age: Duration) -> SystemTime {
        let now = Reading::now();
        let age = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        let mut record = self.lock();
        if self.path.is_some() {
            // It may have jumped since it was last looked at.
            record.advance(&now);
        }
        let ago = now.wall.saturating_sub(record.oldest(now.wall, age));
        let ago = Duration::from_secs(u64::try_from(ago).unwrap_or(0));
        SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        // Nothing under the lock leaves it half changed.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    fn now() -> Self {
        let up = i64::try_from(uptime().as_secs()).unwrap_or(i64::MAX);
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // Without an id every start of the daemon counts as a start of the machine, and the time in between adds to no age.
        let boot = if boot.is_empty() { format!("unknown {}", std::process::id()) } else { boot.trim().to_owned() };
        Self { wall: wall_now(), up, boot, is_synchronized: is_synchronized() }
    }
}

/// How long ago a process began, whatever the wall clock says. None if it is gone.
pub fn age_of_process(pid: i32) -> Option<Duration> {
    let ticks = crate::process::Stat::read(pid)?.started()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    uptime().checked_sub(Duration::from_millis(ticks.saturating_mul(1000) / per_second))
}

/// How long this machine has been up, asleep or awake.
fn uptime() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to a value of ours. It knows this clock since 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn wall_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn is_synchronized() -> bool {
    // SAFETY: zeroes are a valid value, and with `modes` zero nothing is changed.
    let (state, status) = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        let state = libc::adjtimex(&raw mut timex);
        (state, timex.status)
    };
    state >= 0 && state != libc::TIME_ERROR && status & libc::STA_UNSYNC == 0
}

/// Seconds of `CLOCK_MONOTONIC`, which is the same in all processes and Python's `time.monotonic()`.
pub fn monotonic_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it is written to a structure of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;
    /// When the story begins.
    const START: i64 = 20_000 * DAY;

    /// A machine with its two clocks.
    struct Story {
        record: Record,
        now: Reading,
    }

    impl Story {
        fn new() -> Self {
            let now = Reading { wall: START, up: 1000, boot: "one".to_owned(), is_synchronized: false };
            let mut record = Record::default();
            record.advance(&now);
            Self { record, now }
        }

        /// Time passes, and is looked at.
        fn pass(&mut self, days: i64) -> &mut Self {
            self.now.wall += days * DAY;
            self.now.up += days * DAY;
            self.record.advance(&self.now);
            self
        }

        /// The clock is set by so much.
        fn jump(&mut self, days: i64) -> &mut Self {
            self.now.wall += days * DAY;
            self.record.advance(&self.now);
            self
        }

        /// The machine is off for so long, as its clock says, and the daemon starts a little later.
        fn reboot(&mut self, days: i64, is_synchronized: bool) -> &mut Self {
            self.now.wall += days * DAY + 60;
            self.now.up = 60;
            self.now.boot.push('+');
            self.now.is_synchronized = is_synchronized;
            self.record.advance(&self.now);
            self
        }

        /// Whether something made on day `day` of the story is older than `age` days.
        fn is_older(&self, day: i64, age: i64) -> bool {
            START + day * DAY < self.record.oldest(self.now.wall, age * DAY)
        }
    }

    #[test]
    fn what_is_old_is_old_when_clocks_agree() {
        let mut story = Story::new();
        story.pass(20);
        assert!(story.is_older(0, 19) && !story.is_older(2, 19) && !story.is_older(0, 21));
        // All that was before the record began with it.
        assert!(story.is_older(-500, 19) && !story.is_older(-500, 21));
    }

    #[test]
    fn a_jump_ahead_makes_nothing_old() {
        for days in [10, 40, 4000] {
            let mut story = Story::new();
            story.pass(5).jump(days);
            assert!(!story.is_older(0, 6), "{days}");
            assert!(story.is_older(0, 4), "what had passed before counts");
            story.pass(2);
            assert!(story.is_older(0, 6) && !story.is_older(0, 8) && !story.is_older(4, 4));
        }
    }

    #[test]
    fn a_clock_that_is_set_right_again_is_believed() {
        let mut story = Story::new();
        story.pass(5).jump(4000).pass(1).jump(-4000);
        assert!(!story.is_older(0, 7));
        story.pass(2);
        assert!(story.is_older(0, 7));
        // What was made meanwhile is in the future.
        assert!(!story.is_older(4006, 1));
    }

    #[test]
    fn a_clock_that_went_back_makes_nothing_old() {
        let mut story = Story::new();
        story.pass(50).jump(-40);
        assert!(!story.is_older(50, 1) && !story.is_older(10, 1) && story.is_older(8, 1));
        story.pass(2);
        assert!(!story.is_older(50, 1));
    }

    #[test]
    fn time_that_a_machine_was_off_counts_when_its_clock_is_held_right() {
        for (is_synchronized, is_older) in [(true, true), (false, false)] {
            let mut story = Story::new();
            story.pass(5).reboot(40, is_synchronized);
            assert_eq!(story.is_older(0, 30), is_older);
            assert!(story.pass(27).is_older(0, 30));
        }
        // A clock that has no battery begins in the past.
        let mut story = Story::new();
        story.pass(5).reboot(-10_000, false).pass(1).jump(10_000);
        assert!(!story.is_older(0, 10));
    }

    #[test]
    fn a_process_has_an_age() {
        let age = age_of_process(std::process::id().cast_signed()).unwrap();
        assert!(age < Duration::from_hours(1), "{age:?}");
    }

    #[test]
    fn a_record_that_is_damaged_makes_nothing_old() {
        let path = std::env::temp_dir().join(format!("pylair-clock-{}", std::process::id()));
        fs::write(&path, "{").unwrap();
        let is_old = |clock: &Clock| SystemTime::now() - Duration::from_secs(10) < clock.oldest(Duration::from_secs(5));
        assert!(!is_old(&Clock::open(&path)) && is_old(&Clock::trusted()));
        let record: Record = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert!(record.wall > START && !record.boot.is_empty());
        fs::remove_file(path).unwrap();
    }
}

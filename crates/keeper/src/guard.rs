//! When a keeper stops the processes of its session by itself, because there are too many of them.
//!
//! A fork bomb of an ordinary user can take so much of the processors that the daemon, which holds it back, gets none. A keeper needs
//! next to nothing, so it does what must not come late: it ends a turn after [`TURN`], and while it watches it stops a session whose
//! processes become many. Whoever was stopped goes on when the daemon says so (`sandbox::crowd`), so a daemon without a processor
//! leaves a bomb stopped instead of running.

use std::{
    fs,
    time::{Duration, Instant},
};

/// Length of a turn, and how often a keeper looks while its session forks.
pub const TURN: Duration = Duration::from_millis(10);
/// How often a keeper looks at a session that does not fork.
const CALM: Duration = Duration::from_millis(160);
/// Forks between two looks below which a session counts as calm.
const FEW_FORKS: u32 = 4;
/// Frozen copies and throw-aways, which are below a keeper too.
const COPIES: usize = 16;

/// Maximum number of processes of a session that run without taking turns.
pub fn most() -> usize {
    (4 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)).max(16)
}

/// What the daemon asked for with signals.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked {
    pub stop: bool,
    /// A turn begins, and this process goes on after it; 0 for none.
    pub turn: Option<i32>,
    pub watch: bool,
    pub stand_down: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Nothing,
    Stop,
    StopAllBut(i32),
}

/// A keeper's own reasons to stop everything below it.
#[derive(Debug, Default)]
pub(super) struct Guard {
    turn: Option<Turn>,
    watch: Option<Watch>,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    ends: Instant,
    /// A worker that is being interrupted goes on. What it forks is stopped again and again.
    keeps: i32,
}

#[derive(Debug)]
struct Watch {
    next: Instant,
    pause: Duration,
    newest: u32,
}

impl Guard {
    /// Time until the guard has something to do.
    pub fn pause(&self) -> Option<Duration> {
        let turn = self.turn.map(|turn| turn.ends);
        let next = turn.into_iter().chain(self.watch.as_ref().map(|watch| watch.next)).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Takes what was asked, looks if it is time, and says what has to be done.
    pub fn decide(&mut self, asked: Asked, now: Instant) -> Decision {
        if asked.stand_down || asked.stop {
            *self = Self::default();
        }
        if asked.stop {
            return Decision::Stop;
        }
        if let Some(keeps) = asked.turn {
            self.turn = Some(Turn { ends: now + TURN, keeps });
        }
        if asked.watch && self.watch.is_none() {
            self.watch = newest_pid().map(|newest| Watch { next: now + TURN, pause: TURN, newest });
        }
        if self.watch.as_mut().is_some_and(|watch| watch.next <= now && watch.finds_many(now)) {
            *self = Self::default();
            return Decision::Stop;
        }
        match self.turn {
            Some(Turn { ends, .. }) if ends > now => Decision::Nothing,
            Some(Turn { keeps: 0, .. }) => {
                self.turn = None;
                Decision::Stop
            }
            Some(Turn { keeps, .. }) => {
                self.turn = Some(Turn { ends: now + TURN, keeps });
                Decision::StopAllBut(keeps)
            }
            None => Decision::Nothing,
        }
    }
}

impl Watch {
    fn finds_many(&mut self, now: Instant) -> bool {
        let newest = newest_pid().unwrap_or(self.newest);
        let forks = newest.wrapping_sub(std::mem::replace(&mut self.newest, newest));
        self.pause = if forks > FEW_FORKS { TURN } else { (2 * self.pause).min(CALM) };
        self.next = now + self.pause;
        forks > 0 && count() > most() + COPIES
    }
}

/// The pid that was given out last in this namespace.
fn newest_pid() -> Option<u32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().nth(4)?.parse().ok()
}

/// The processes of this namespace.
fn count() -> usize {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Asked = Asked { stop: false, turn: None, watch: false, stand_down: false };

    #[test]
    fn a_turn_ends_by_itself() {
        let (mut guard, now) = (Guard::default(), Instant::now());
        assert_eq!(guard.decide(Asked { turn: Some(0), ..NOTHING }, now), Decision::Nothing);
        assert!(guard.pause().is_some_and(|pause| pause <= TURN));
        assert_eq!(guard.decide(NOTHING, now + TURN / 2), Decision::Nothing);
        assert_eq!(guard.decide(NOTHING, now + TURN), Decision::Stop);
        assert_eq!(guard.decide(NOTHING, now + 2 * TURN), Decision::Nothing);
        assert_eq!(guard.pause(), None);
    }

    #[test]
    fn a_worker_that_is_interrupted_goes_on_and_its_forks_do_not() {
        let (mut guard, now) = (Guard::default(), Instant::now());
        assert_eq!(guard.decide(Asked { turn: Some(7), ..NOTHING }, now), Decision::Nothing);
        for turn in 1..4 {
            assert_eq!(guard.decide(NOTHING, now + turn * TURN), Decision::StopAllBut(7));
        }
        assert_eq!(guard.decide(Asked { stand_down: true, ..NOTHING }, now + 4 * TURN), Decision::Nothing);
        assert_eq!(guard.decide(NOTHING, now + 5 * TURN), Decision::Nothing);
    }

    #[test]
    fn a_stop_ends_turn_and_watch() {
        let (mut guard, now) = (Guard::default(), Instant::now());
        guard.decide(Asked { turn: Some(7), watch: true, ..NOTHING }, now);
        assert_eq!(guard.decide(Asked { stop: true, ..NOTHING }, now), Decision::Stop);
        assert_eq!(guard.pause(), None);
    }

    #[test]
    fn who_does_not_fork_is_looked_at_seldom_and_never_stopped() {
        let mut watch = Watch { next: Instant::now(), pause: TURN, newest: u32::MAX };
        // Other tests fork meanwhile; a pid that was given out before counts as no fork.
        watch.newest = newest_pid().unwrap();
        let mut now = Instant::now();
        for _ in 0..8 {
            let before = watch.newest;
            let found = watch.finds_many(now);
            if watch.newest == before {
                assert!(!found);
                assert!(watch.pause > TURN);
            }
            now += watch.pause;
        }
        assert!(watch.pause <= CALM);
    }
}

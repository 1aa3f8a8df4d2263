//! How many files the daemon may have open, and for what the last of them are kept.
//!
//! Every session takes about ten descriptors of the daemon's, and each of its frozen copies three. A part of what the kernel allows
//! is a reserve: nothing new is begun with it, so that a session which crashes can always be brought back. Called by `session`,
//! `workers::link` and the doors.

use std::{fs, sync::LazyLock, time::Duration};

use rustix::process::{Resource, getrlimit};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Descriptors a session has open while it starts, at most.
pub const FOR_SESSION: usize = 24;
/// Descriptors of a frozen copy.
pub const FOR_COPY: usize = 3;
/// Descriptors of a connection through a session's proxy: to the session and to the server.
pub const FOR_PROXIED: usize = 2;
/// The TCP door may use one part in so many of all descriptors.
const PART_FOR_DOOR: usize = 4;
/// Bounds of the reserve, which is otherwise an eighth of all.
const LEAST_RESERVE: usize = 48;
const MOST_RESERVE: usize = 512;
/// Time to wait for others that are going back, when there are few descriptors left.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Why nothing new is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the daemon has {open} of at most {limit} files open, and reserves the last {reserve} for sessions that are open"
)]
pub struct NoRoom {
    pub open: usize,
    pub limit: usize,
    pub reserve: usize,
}

/// Returns an error if opening so many descriptors would use the reserve.
pub fn check(needed: usize) -> Result<(), NoRoom> {
    check_in(open(), limit(), needed)
}

/// Whether the reserve is being used.
pub fn is_short() -> bool {
    check(0).is_err()
}

/// How many connections the TCP door may have, given how many it was set to have.
pub fn connections(wanted: usize) -> usize {
    wanted.min(limit() / PART_FOR_DOOR).max(1)
}

/// Waits, when descriptors are short, until the reserve has enough for one more session that goes back. After a while nobody waits:
/// whoever holds a turn may hang.
pub async fn turn_to_go_back() -> Option<SemaphorePermit<'static>> {
    static TURNS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new((reserve_of(limit()) / FOR_SESSION).max(1)));
    if !is_short() {
        return None;
    }
    tokio::time::timeout(TURN_TIMEOUT, TURNS.acquire()).await.ok()?.ok()
}

fn check_in(open: usize, limit: usize, needed: usize) -> Result<(), NoRoom> {
    let reserve = reserve_of(limit);
    if open.saturating_add(needed).saturating_add(reserve) <= limit {
        Ok(())
    } else {
        Err(NoRoom { open, limit, reserve })
    }
}

fn reserve_of(limit: usize) -> usize {
    (limit / 8).clamp(LEAST_RESERVE, MOST_RESERVE).min(limit / 3)
}

fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// How many descriptors this process has.
fn open() -> usize {
    let directory = "/proc/self/fd";
    // The size is the number since Linux 6.2, and zero before.
    match fs::metadata(directory).map(|metadata| metadata.len()) {
        Ok(size) if size > 0 => usize::try_from(size).unwrap_or(usize::MAX),
        _ => fs::read_dir(directory).map_or(0, Iterator::count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_a_part_of_what_there_is() {
        for (limit, reserve) in [(90, 30), (256, 48), (1024, 128), (1 << 20, 512)] {
            assert_eq!(reserve_of(limit), reserve);
            assert!(check_in(limit - reserve - 10, limit, 10).is_ok());
            assert_eq!(
                check_in(limit - reserve - 9, limit, 10),
                Err(NoRoom { open: limit - reserve - 9, limit, reserve })
            );
        }
        assert!(check_in(100, usize::MAX, 10).is_ok(), "there may be no limit");
    }

    #[test]
    fn what_is_open_is_counted() {
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let listed = fs::read_dir("/proc/self/fd").unwrap().count();
        // Other tests open and close files meanwhile.
        assert!(open() >= files.len() && open().abs_diff(listed) < 500, "{} and {listed}", open());
    }
}

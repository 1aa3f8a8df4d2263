//! One thread does all the waiting, so nobody may keep it for long. What is large is worked on apart: [`apart`] for one piece of work,
//! [`carry`] for all that is still to be done with it. Tasks are started with [`spawn`], which is also what finds out, in tests, which
//! of them keeps the thread too long.

mod weight;

use std::{
    cell::{Cell, RefCell},
    fs::OpenOptions,
    future::{Future, poll_fn},
    io::Write,
    panic::Location,
    path::PathBuf,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde::Serialize;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::JoinHandle,
};

/// More than this is large. Whatever is done with less takes a small part of a millisecond, and to change threads takes as long.
pub const LARGE_BYTES: usize = 64 << 10;
/// The processor time that one poll may take. What the compiler has not optimised takes several times as long.
const LONGEST_POLL: Duration = Duration::from_millis(if cfg!(debug_assertions) { 200 } else { 50 });
/// As many as are remembered.
const MAX_SLOW_POLLS: usize = 1000;

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static SLOW: Mutex<Slow> = Mutex::new(Slow { file: None, polls: Vec::new() });

struct Slow {
    file: Option<PathBuf>,
    polls: Vec<String>,
}

thread_local! {
    /// The task that is being polled.
    static CURRENT: RefCell<Option<Arc<Burden>>> = const { RefCell::new(None) };
    /// Others are served elsewhere while this thread works.
    static IS_APART: Cell<bool> = const { Cell::new(false) };
    /// Processor time that this thread has spent apart.
    static SPENT_APART: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How much of what a task holds is large. As long as something is, the task is polled apart.
#[derive(Debug, Default)]
struct Burden(AtomicUsize);

/// Something large that a task holds.
#[derive(Debug)]
pub struct Load(Arc<Burden>);

impl Load {
    /// On the task that is being polled now; none if that is not one of ours.
    pub fn take() -> Option<Self> {
        let burden = CURRENT.with_borrow(Clone::clone)?;
        burden.0.fetch_add(1, Ordering::Relaxed);
        Some(Self(burden))
    }

    /// For as long as the task lasts.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Does what takes a time that grows with `bytes`: at once if that is little, else while another thread serves the others. Nothing
/// that others need may be locked meanwhile.
pub fn apart<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let can = || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes <= LARGE_BYTES || IS_APART.get() || !can() {
        return work();
    }
    tokio::task::block_in_place(|| {
        IS_APART.set(true);
        let _back = Back(IS_WATCHED.load(Ordering::Relaxed).then(thread_time));
        work()
    })
}

/// Ends the time apart, also when the work panics.
struct Back(Option<Duration>);

impl Drop for Back {
    fn drop(&mut self) {
        IS_APART.set(false);
        if let Some(before) = self.0 {
            SPENT_APART.set(SPENT_APART.get() + thread_time().saturating_sub(before));
        }
    }
}

/// From here on this task has something of this size to work with: if that is large, the rest of it is done apart.
pub async fn carry(bytes: usize) {
    if let Some(load) = carry_for_now(bytes).await {
        load.keep();
    }
}

/// The same until the load is dropped, for tasks that live on.
#[must_use]
pub async fn carry_for_now(bytes: usize) -> Option<Load> {
    if bytes <= LARGE_BYTES {
        return None;
    }
    let load = Load::take()?;
    if !IS_APART.get() {
        tokio::task::yield_now().await;
    }
    Some(load)
}

/// A value as JSON.
pub fn to_json(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    apart(weight(value), || serde_json::to_vec(value))
}

/// About how many bytes something has as JSON; of what is large, only that it is.
pub fn weight(value: &impl Serialize) -> usize {
    weight::weight(value, LARGE_BYTES)
}

/// The same of all of it.
pub fn whole_weight(value: &impl Serialize) -> usize {
    apart(weight(value), || weight::weight(value, usize::MAX))
}

/// Starts a task.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "it is this one that all others are started by")]
    tokio::spawn(watched(future))
}

/// The future as a task of its own as far as loads and the length of polls go.
#[track_caller]
pub fn watched<F: Future>(future: F) -> impl Future<Output = F::Output> {
    watched_at(Location::caller(), future)
}

async fn watched_at<F: Future>(place: &'static Location<'static>, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut burden = Some(Arc::new(Burden::default()));
    poll_fn(move |context| {
        let is_heavy = burden.as_ref().is_some_and(|burden| burden.0.load(Ordering::Relaxed) > 0);
        let _turn = Turn::begin(place, &mut burden);
        if is_heavy { apart(usize::MAX, || future.as_mut().poll(context)) } else { future.as_mut().poll(context) }
    })
    .await
}

/// While a task is polled, also if that panics.
struct Turn<'a> {
    place: &'static Location<'static>,
    burden: &'a mut Option<Arc<Burden>>,
    outer: Option<Arc<Burden>>,
    began: Option<(Duration, Duration)>,
}

impl<'a> Turn<'a> {
    fn begin(place: &'static Location<'static>, burden: &'a mut Option<Arc<Burden>>) -> Self {
        let outer = CURRENT.replace(burden.take());
        let is_timed = IS_WATCHED.load(Ordering::Relaxed) && !IS_APART.get();
        Self { place, burden, outer, began: is_timed.then(|| (thread_time(), SPENT_APART.get())) }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.burden = CURRENT.replace(self.outer.take());
        let Some((time, apart)) = self.began else { return };
        let took = thread_time().saturating_sub(time).saturating_sub(SPENT_APART.get().saturating_sub(apart));
        if took > LONGEST_POLL {
            note(&format!("a poll of {} took {} ms of processor time", self.place, took.as_millis()));
        }
    }
}

/// From now on polls are timed, and those that take too long are written to this file too.
pub fn watch(file: Option<PathBuf>) {
    let mut slow = SLOW.lock().unwrap_or_else(PoisonError::into_inner);
    slow.file = file.or(slow.file.take());
    IS_WATCHED.store(true, Ordering::Relaxed);
}

/// The polls that took too long since they were watched.
pub fn slow_polls() -> Vec<String> {
    SLOW.lock().unwrap_or_else(PoisonError::into_inner).polls.clone()
}

fn note(what: &str) {
    tracing::error!("{what}");
    let mut slow = SLOW.lock().unwrap_or_else(PoisonError::into_inner);
    if slow.polls.len() < MAX_SLOW_POLLS {
        slow.polls.push(what.to_owned());
    }
    let Some(file) = &slow.file else { return };
    let written = OpenOptions::new().create(true).append(true).open(file).and_then(|mut file| writeln!(file, "{what}"));
    if let Err(error) = written {
        tracing::error!(%error, "a poll that took too long could not be written down");
    }
}

/// Processor time of this thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a system call that writes to the one place it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps the thread for longer than a poll may.
    fn keep_busy() {
        let until = thread_time() + LONGEST_POLL + Duration::from_millis(20);
        while thread_time() < until {
            std::hint::black_box(());
        }
    }

    fn slow_in(line: &str) -> bool {
        slow_polls().iter().any(|poll| poll.contains(line))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_poll_that_takes_long_is_noted_unless_it_is_apart() {
        watch(None);
        let here = |line: u32| format!("{}:{line}:", file!());
        let (busy, busy_line) = (spawn(async { keep_busy() }), line!());
        let (apart_now, apart_line) = (spawn(async { apart(LARGE_BYTES + 1, keep_busy) }), line!());
        let carrying = async {
            carry(LARGE_BYTES + 1).await;
            keep_busy();
        };
        let (carried, carried_line) = (spawn(carrying), line!());
        for task in [busy, apart_now, carried] {
            task.await.unwrap();
        }
        let lines = [busy_line, apart_line, carried_line].map(|line| slow_in(&here(line)));
        assert_eq!(lines, [true, false, false], "{:?}", slow_polls());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_while_something_large_is_worked_on() {
        let (ready, told) = std::sync::mpsc::channel();
        let heavy = spawn(async move {
            carry(LARGE_BYTES + 1).await;
            // Only another task can say it, and this one does not give up its thread.
            told.recv_timeout(Duration::from_mins(1)).is_ok()
        });
        spawn(async move { ready.send(()) }).await.unwrap().unwrap();
        assert!(heavy.await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_load_ends_when_it_is_dropped() {
        let loads = spawn(async {
            let load = carry_for_now(LARGE_BYTES + 1).await;
            let carried = IS_APART.get();
            drop(load);
            tokio::task::yield_now().await;
            (carried, IS_APART.get(), carry_for_now(10).await.is_none())
        });
        assert_eq!(loads.await.unwrap(), (true, false, true));
    }

    #[test]
    fn json_is_the_same_however_long_it_is() {
        for length in [0, 10, LARGE_BYTES - 2, LARGE_BYTES - 1, 3 * LARGE_BYTES] {
            let text = "x".repeat(length);
            assert_eq!(to_json(&text).unwrap(), serde_json::to_vec(&text).unwrap());
        }
        assert!(to_json(&std::collections::HashMap::from([((1, 2), 3)])).is_err());
    }

    /// Where there is one thread only, as in some tests, it is done there.
    #[tokio::test]
    async fn one_thread_does_all_if_there_is_no_other() {
        assert_eq!(spawn(async { carry(usize::MAX).await }).await.map(|()| apart(usize::MAX, || 1)).unwrap(), 1);
    }
}

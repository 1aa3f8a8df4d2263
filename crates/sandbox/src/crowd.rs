//! How many processes of confined sessions want to run at once. What the kernel divides fairly among sessions it does not among a
//! thousand forks: they wait for each other's locks, and so does everybody else who has a process to make or to end.
//!
//! A session with no more processes than [`most`] is never touched. Beyond that, while too many want to run, the sessions that have many take
//! turns: a few processes of a few sessions run for a moment, then they are stopped and the next go on, so that each comes to
//! something and no processor is idle. Stopped processes fill up the limit on processes, which is what ends a fork bomb.
//!
//! A session is stopped by its keeper, with one call that no fork slips through; one by one only where a keeper has several sessions.
//! A worker that is to be interrupted, or runs no cell, goes on at once and stays out of it. Who makes stopped processes go on by
//! itself is told to the caller, who ends it. Called by `session::crowding`.
//!
//! Nothing depends on this thread coming to a processor in time, which a bomb of an ordinary user can keep it from: a keeper ends turns by
//! itself, and stops a session that it watches as soon as it has many processes (`keeper::guard`).

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{processes::Process, share::MANY};
pub use pylair_keeper::guard::most;
use pylair_keeper::{STAND_DOWN, STOP_ALL, TURN, WATCH, guard};

/// How often is looked while anything runs, and how long a turn is.
pub const TICK: Duration = guard::TURN;
/// Looks between two at the processes of a session that its keeper watches.
const SELDOM: u64 = 10;

/// Time a keeper has to stop what is below it before its processes are stopped one by one.
const KEEPER_PATIENCE: Duration = Duration::from_millis(100);
/// How often is looked for those who were asked to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// How long a process may take to stop.
const PATIENCE: Duration = Duration::from_millis(300);
const MAX_STRIKES: u32 = 3;
/// How long, and for how many turns, nothing may run in a session that is let go although it has many processes.
const RESTING: Duration = Duration::from_secs(2);
const RESTING_TURNS: u32 = 4;
/// Time after which a session that is not seen any more is forgotten.
const ABSENCE: Duration = Duration::from_secs(10);

static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));

/// And so many take their turn at once then, beside the workers of their sessions.
fn seats() -> usize {
    (*PROCESSORS).max(2)
}

/// Whether so few want to run on the whole machine that there is nothing to look for.
pub fn is_quiet() -> bool {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let wanting = text.split(' ').nth(3).and_then(|counts| counts.split_once('/')?.0.parse::<usize>().ok());
    wanting.is_some_and(|wanting| wanting <= *PROCESSORS + MANY)
}

/// A session as it is looked at.
pub struct Seen<'a> {
    pub handle: Arc<str>,
    pub worker: i32,
    /// A cell runs in it that nobody wants to end.
    pub may_stop_worker: bool,
    /// Something may run in it. Others are looked at because their keeper may still stop them.
    pub is_active: bool,
    /// Frozen copies, which do nothing and may have to become the worker.
    pub copies: Vec<i32>,
    pub keeper: Option<i32>,
    /// The keeper has nobody else's processes below it.
    pub is_alone: bool,
    /// Finds the pids of the other processes as they are now.
    pub others: Box<dyn Fn() -> Vec<i32> + 'a>,
}

impl Seen<'_> {
    /// The keeper, if it has this session alone and so can stop everything below it.
    fn keeper_alone(&self) -> Option<Process> {
        self.keeper.filter(|_| self.is_alone).and_then(Process::read)
    }

    fn is_worker_stopped(&self) -> bool {
        Process::read(self.worker).is_some_and(|worker| worker.is_stopped())
    }

    /// Lets those go on who are stopped with the others and never should be.
    fn let_kept_go(&self) {
        let worker = Some(self.worker).filter(|_| !self.may_stop_worker);
        for process in self.copies.iter().copied().chain(worker).filter_map(Process::read) {
            process.signal(Signal::CONT);
        }
    }

    /// The others with what they do. Who reads that of a process that ends just then may have to free its memory, and wait for the
    /// locks that this takes: not to be asked while they storm.
    fn processes(&self) -> Vec<Process> {
        (self.others)().into_iter().filter_map(Process::read).collect()
    }
}

/// Who takes turns.
#[derive(Debug, Default)]
pub struct Crowd {
    sessions: HashMap<Arc<str>, Queue>,
    /// How many processes each of the others had at the last look.
    known: HashMap<Arc<str>, usize>,
    /// Those whose keepers watch them.
    watched: HashMap<Arc<str>, Watched>,
    turns: u64,
    looks: u64,
}

/// A session whose keeper stops it by itself when its processes become many.
#[derive(Debug)]
struct Watched {
    keeper: Process,
    is_ending: bool,
}

/// One session that takes turns.
#[derive(Debug)]
struct Queue {
    worker: i32,
    /// The worker's pid as its keeper sees it, 0 if it is gone.
    worker_within: i32,
    state: State,
    /// Those that were stopped, who has waited longest first.
    waiting: VecDeque<Waiting>,
    /// The last one it had.
    turn: u64,
    /// At how many looks many went on although they were stopped.
    strikes: u32,
    /// Processor time of all its processes at the end of its last turn.
    used: u64,
    /// Since when that is so, and the turns it has had since.
    rests: (Instant, u32),
    /// The keeper that may not have heard yet that it should stop nothing any more. Until it has, the session is looked after: a stop
    /// that comes late would stay.
    owing: Option<Process>,
    unseen_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Has a turn since.
    Runs(Instant),
    /// The keeper was asked to stop it.
    Asked(Instant),
    Stands,
    /// No longer has too many. Goes when its keeper owes no stop.
    Leaves,
}

#[derive(Debug)]
struct Waiting {
    process: Process,
    /// When it was told to stop, for which it needs a moment on a processor.
    since: Instant,
    was_seen_stopped: bool,
}

impl Waiting {
    fn new(process: Process) -> Self {
        Self { process, since: Instant::now(), was_seen_stopped: false }
    }
}

impl Queue {
    fn new(worker: i32) -> Self {
        Self {
            worker,
            worker_within: Process::read(worker).and_then(|worker| worker.pid_within()).unwrap_or_default(),
            state: State::Stands,
            waiting: VecDeque::new(),
            turn: 0,
            strikes: 0,
            used: 0,
            rests: (Instant::now(), 0),
            owing: None,
            unseen_since: None,
        }
    }

    /// Asks the keeper to stop everybody at once, where that is possible.
    fn ask(&mut self, one: &Seen<'_>) {
        if let Some(keeper) = one.keeper_alone() {
            keeper.signal(STOP_ALL);
        }
        self.state = State::Asked(Instant::now());
    }

    /// Begins to let the session go: its keeper stops nothing any more when it has heard of that.
    fn stand_down(&mut self, one: &Seen<'_>) {
        self.state = State::Leaves;
        self.owing = one.keeper_alone();
        if let Some(keeper) = &self.owing {
            keeper.signal(STAND_DOWN);
        }
    }

    /// Whether the keeper may still stop everything, because it was asked to and has not heard that it should not.
    fn may_be_stopped_late(&mut self) -> bool {
        self.owing = self.owing.take().filter(|keeper| keeper.has_yet_to_take(STAND_DOWN));
        self.owing.is_some()
    }

    /// Whether the keeper did so: it reaches all at once, and the worker is one of them.
    fn was_heard(&self) -> bool {
        Process::read(self.worker).is_none_or(|worker| worker.is_stopped())
    }

    /// Brings what is known up to date after a turn: forgets those who are gone and adds those who came, whom nobody but the keeper may
    /// have stopped yet. Returns whether the session makes its processes go on: others may stop and continue some for a moment too, so it
    /// takes many, more than once.
    fn check(&mut self, found: &[Process], are_stopped: bool) -> bool {
        let used = found.iter().map(|process| process.ticks + process.waited_ticks).sum();
        self.rests = if used == self.used { (self.rests.0, self.rests.1 + 1) } else { (Instant::now(), 0) };
        self.used = used;
        let now: HashMap<_, _> = found.iter().map(|process| (process.key(), process)).collect();
        self.waiting.retain(|waiting| now.contains_key(&waiting.process.key()));
        let mut going = 0;
        for waiting in &mut self.waiting {
            let process = now[&waiting.process.key()];
            let (is_stopped, since) = (process.is_stopped(), waiting.since);
            let was_continued = waiting.was_seen_stopped || process.has_run_since(&waiting.process);
            if !is_stopped && (was_continued || since.elapsed() > PATIENCE) {
                // One that did not run since is not to blame: on a busy machine it takes a while until it comes to stop.
                going += usize::from(was_continued);
                *waiting = Waiting::new(*process);
                waiting.process.signal(Signal::STOP);
            }
            waiting.was_seen_stopped = is_stopped;
        }
        let known: HashSet<_> = self.waiting.iter().map(|waiting| waiting.process.key()).collect();
        for process in found.iter().filter(|process| !known.contains(&process.key())) {
            if are_stopped || process.is_busy() {
                self.waiting.push_back(Waiting::new(*process));
            }
            if !are_stopped && process.is_busy() {
                process.signal(Signal::STOP);
            }
        }
        self.strikes += u32::from(going > MANY);
        self.strikes >= MAX_STRIKES
    }

    /// Whether none of its processes did anything in several turns, as in a pool that waits for work.
    fn has_rested(&self) -> bool {
        self.rests.1 >= RESTING_TURNS && self.rests.0.elapsed() >= RESTING
    }

    /// Lets the worker go on, and some of the others. The keeper is told first, so that the turn ends whatever happens to us.
    fn give_turn(&mut self, one: &Seen<'_>, others: usize) {
        self.state = State::Runs(Instant::now());
        if let Some(keeper) = one.keeper_alone() {
            keeper.signal_with(TURN, if one.may_stop_worker { 0 } else { self.worker_within });
        }
        if let Some(worker) = Process::read(self.worker).filter(Process::is_stopped) {
            worker.signal(Signal::CONT);
        }
        self.let_go(others);
    }

    fn let_go(&mut self, count: usize) {
        for waiting in self.waiting.drain(..count.min(self.waiting.len())) {
            waiting.process.signal(Signal::CONT);
        }
    }

    /// Lets all go on, also those whom a keeper stopped that was late.
    fn let_all_go(&mut self, one: &Seen<'_>) {
        self.let_go(usize::MAX);
        one.let_kept_go();
        let all = one.processes().into_iter().chain(Process::read(self.worker));
        all.filter(Process::is_stopped).for_each(|process| process.signal(Signal::CONT));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.let_go(usize::MAX);
    }
}

impl Crowd {
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.watched.is_empty()
    }

    pub fn holds(&self, handle: &str) -> bool {
        self.sessions.contains_key(handle) || self.watched.contains_key(handle)
    }

    /// How many are stopped.
    pub fn count(&self) -> usize {
        self.sessions.values().map(|queue| queue.waiting.len()).sum()
    }

    /// How long to wait before the next look.
    pub fn pause(&self) -> Duration {
        let is_asked = self.sessions.values().any(|queue| matches!(queue.state, State::Asked(_)));
        if is_asked { LOOK_AGAIN } else { TICK }
    }

    /// Looks at all sessions in which something may run, and gives those that have too many their turns. Returns the sessions that make
    /// stopped processes go on. Blocks.
    ///
    /// A session that is not seen may be on its way from one list to another, or between two workers: it is forgotten after a while.
    pub fn look(&mut self, seen: &[Seen<'_>]) -> Vec<Arc<str>> {
        let now = Instant::now();
        self.sessions.retain(|handle, queue| {
            let is_seen = seen.iter().any(|one| one.handle == *handle);
            queue.unseen_since = if is_seen { None } else { queue.unseen_since.or(Some(now)) };
            queue.unseen_since.is_none_or(|since| now - since < ABSENCE)
        });
        for one in seen {
            if let Some(queue) = self.sessions.get_mut(&one.handle).filter(|queue| queue.worker != one.worker) {
                // The session went back, which ended what it had. A stop that was asked for can still come.
                *queue = Queue::new(one.worker);
                queue.stand_down(one);
            }
        }
        self.looks += 1;
        self.watched.retain(|_, watched| watched.keeper.is_there());
        let before = std::mem::take(&mut self.known);
        let mut defiant = Vec::new();
        let mut counts = Vec::new();
        for one in seen {
            match self.sessions.get_mut(&one.handle) {
                Some(queue) if !matches!(queue.state, State::Leaves) => {
                    if queue.go_on(one) {
                        defiant.push(one.handle.clone());
                    }
                    counts.push(if queue.has_rested() { 0 } else { queue.waiting.len() });
                }
                _ => counts.push(self.count_others(one, before.get(&one.handle).copied())),
            }
        }
        let fair = fair_part(&counts, most());
        for (one, count) in seen.iter().zip(counts) {
            if fair.is_none_or(|fair| count <= fair.max(MANY)) {
                self.leave(one);
            } else if self.sessions.get(&one.handle).is_none_or(|queue| matches!(queue.state, State::Leaves)) {
                self.enter(one);
            }
        }
        self.give_turns(seen);
        defiant
    }

    /// Has the keeper of a session that was active at the last look too watch it, until it is no longer active. Returns whether it is
    /// watched, so that its processes need not be counted at every look.
    fn watch(&mut self, one: &Seen<'_>, is_known: bool) -> bool {
        if let Some(watched) = self.watched.get_mut(&one.handle) {
            // Asked before the worker is looked at: a keeper that has heard of it stops nothing afterwards.
            let is_over = watched.is_ending && !watched.keeper.has_yet_to_take(STAND_DOWN);
            if one.is_worker_stopped() {
                self.enter(one);
            } else if is_over {
                self.watched.remove(&one.handle);
            } else if !one.is_active && !watched.is_ending {
                watched.is_ending = true;
                watched.keeper.signal(STAND_DOWN);
            }
            return true;
        }
        let Some(keeper) = one.keeper_alone().filter(|_| is_known && one.is_active) else { return false };
        keeper.signal(WATCH);
        self.watched.insert(one.handle.clone(), Watched { keeper, is_ending: false });
        true
    }

    /// How many processes of a session that takes no turns want to run; few do not count. Where many were made since the last
    /// look it takes turns from now on, without an answer: to ask what they do would take longer than they take to double.
    fn count_others(&mut self, one: &Seen<'_>, before: Option<usize>) -> usize {
        if self.watch(one, before.is_some()) && !self.looks.is_multiple_of(SELDOM) {
            self.known.insert(one.handle.clone(), before.unwrap_or_default());
            return if self.sessions.contains_key(&one.handle) { most() + 1 } else { 0 };
        }
        let now = (one.others)().len();
        self.known.insert(one.handle.clone(), now);
        if now <= most() {
            return 0;
        }
        if before.is_none_or(|before| now > before + MANY) {
            self.enter(one);
            return now;
        }
        one.processes().iter().filter(|process| process.is_busy()).count()
    }

    fn enter(&mut self, one: &Seen<'_>) {
        self.watched.remove(&one.handle);
        self.sessions.entry(one.handle.clone()).or_insert_with(|| Queue::new(one.worker)).ask(one);
    }

    /// A session has no more processes than others.
    fn leave(&mut self, one: &Seen<'_>) {
        let Some(queue) = self.sessions.get_mut(&one.handle) else { return };
        match queue.state {
            // What it has is not known before it stands.
            State::Asked(_) => {}
            State::Runs(_) | State::Stands | State::Leaves => {
                if !matches!(queue.state, State::Leaves) {
                    queue.stand_down(one);
                }
                // Asked before all go on: what the keeper stopped before that goes on with them.
                let comes_late = queue.may_be_stopped_late();
                queue.let_all_go(one);
                if !comes_late {
                    self.sessions.remove(&one.handle);
                    // What goes on may fork again before the next look.
                    self.watch(one, true);
                }
            }
        }
    }

    /// Whoever has waited longest comes first.
    fn give_turns(&mut self, seen: &[Seen<'_>]) {
        let mut standing = Vec::new();
        let mut running = 0;
        for one in seen {
            match self.sessions.get(&one.handle) {
                Some(Queue { state: State::Stands, turn, .. }) => standing.push((*turn, one)),
                Some(Queue { state: State::Runs(_) | State::Asked(_), .. }) => running += 1,
                _ => {}
            }
        }
        standing
            .sort_unstable_by(|(turn, one), (other_turn, other)| (turn, &one.handle).cmp(&(other_turn, &other.handle)));
        let others = seats() / (standing.len() + running).clamp(1, seats());
        for (_, one) in standing {
            let Some(queue) = self.sessions.get_mut(&one.handle) else { continue };
            if running < seats() {
                running += 1;
                self.turns += 1;
                queue.turn = self.turns;
                queue.give_turn(one, others);
            } else if !one.may_stop_worker {
                queue.give_turn(one, 0);
            }
        }
    }
}

impl Queue {
    /// Ends a turn that was long enough, and takes note of those who stand since. Returns whether the session does not let itself be
    /// stopped.
    fn go_on(&mut self, one: &Seen<'_>) -> bool {
        match self.state {
            // The keeper has ended the turn.
            State::Runs(_) if one.is_alone && one.may_stop_worker && one.is_worker_stopped() => {
                self.state = State::Stands;
                one.let_kept_go();
                self.check(&one.processes(), true)
            }
            State::Runs(since) => {
                // Who is interrupted is stopped less often.
                if since.elapsed() >= if one.may_stop_worker { TICK } else { 5 * TICK } {
                    self.ask(one);
                }
                false
            }
            State::Asked(_) if one.is_alone && self.was_heard() => {
                self.state = State::Stands;
                one.let_kept_go();
                self.check(&one.processes(), true)
            }
            State::Asked(since) if !one.is_alone || since.elapsed() > KEEPER_PATIENCE => {
                self.state = State::Stands;
                if let Some(worker) = Process::read(self.worker).filter(|_| one.may_stop_worker) {
                    worker.signal(Signal::STOP);
                }
                self.check(&one.processes(), false)
            }
            _ => false,
        }
    }
}

/// How many each may have so that there are not more than `most` in all; none if there are not.
fn fair_part(counts: &[usize], most: usize) -> Option<usize> {
    if counts.iter().sum::<usize>() <= most {
        return None;
    }
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    let (mut left, mut among) = (most, counts.len());
    for count in counts {
        if count > left / among {
            break;
        }
        left -= count;
        among -= 1;
    }
    Some(left / among.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_few_is_left_alone_and_the_rest_is_shared() {
        assert_eq!(fair_part(&[8, 4, 4], 16), None);
        assert_eq!(fair_part(&[], 16), None);
        assert_eq!(fair_part(&[1, 2, 100], 16), Some(13));
        assert_eq!(fair_part(&[100, 100, 1], 16), Some(7));
        assert_eq!(fair_part(&[20; 20], 16), Some(0));
    }
}

//! asyncio tasks and who waits for whom, from memory. Python 3.14 and later keep every task in a list of its thread and say in a
//! table where to look (`.AsyncioDebug`); before, only the probe can ask.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::{
    Frame, MAX_NAME_CHARS, Options, Stacks, Task, cut_frames,
    memory::{self, Mapped, Memory, word_at},
    plain,
    values::{At, CoroutineState, IS_STRING, Layout, Objects},
};

/// Tasks that are told; a note says how many more there are.
const MAX_TASKS: usize = 500;
/// Tasks, threads and interpreters that are counted. More than that is memory that was read while it changed.
const MAX_LISTED: usize = 100_000;
const MAX_THREADS: usize = 4096;
const MAX_INTERPRETERS: usize = 64;
/// Of coroutines within coroutines, and frames above a running one.
const MAX_CHAIN: usize = 1000;
/// Waiters of one task, and futures between two tasks.
const MAX_WAITERS: usize = 2000;
const MAX_FUTURES: usize = 8;
const MAX_SET: u64 = 1 << 16;
/// Lists move while they are read.
const ATTEMPTS: usize = 4;

/// The table of `_asyncio`: sizes and offsets, a word each.
const TABLE_WORDS: usize = 13;

/// Adds the tasks, or a note why there are none.
pub fn add_tasks(stacks: &mut Stacks, mapped: &[Mapped], options: Options) {
    let minor: u64 = stacks.python.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0);
    let has_loop =
        stacks.threads.iter().flat_map(|thread| &thread.frames).any(|frame| {
            frame.file.ends_with("/asyncio/runners.py") || frame.file.ends_with("/asyncio/base_events.py")
        });
    if minor < 14 {
        if has_loop {
            let note =
                format!("asyncio tasks of Python 3.{minor} are seen only from inside: attach to it, then ask again");
            stacks.tasks_note = Some(note);
        }
        return;
    }
    let memory = Memory { pid: stacks.pid };
    let Some(table) = find_table(memory, mapped) else {
        if has_loop {
            stacks.tasks_note = Some("an event loop runs, but not asyncio's own tasks".to_owned());
        }
        return;
    };
    let found = runtime(memory, mapped).and_then(|runtime| Ok((runtime, Layout::read(memory, runtime)?)));
    let (runtime, layout) = match found {
        Ok(found) => found,
        Err(reason) => {
            stacks.tasks_note = Some(format!("asyncio tasks are seen only from inside, by attaching: {reason}"));
            return;
        }
    };
    let reader = Reader { objects: Objects { memory, layout }, table, options };
    let mut left = Err(io::Error::other("nothing was read"));
    for _ in 0..ATTEMPTS {
        left = reader.tasks(runtime);
        if left.is_ok() {
            break;
        }
    }
    match left {
        Ok(Listed { tasks, more, ended }) => {
            stacks.tasks = tasks;
            let more = (more > 0).then(|| format!("{more} more tasks are not shown"));
            let ended = (ended > 0).then(|| format!("{ended} tasks ended while they were read"));
            let notes: Vec<_> = more.into_iter().chain(ended).collect();
            stacks.tasks_note = (!notes.is_empty()).then(|| notes.join("; "));
        }
        Err(error) => {
            stacks.tasks_note = Some(format!("the asyncio tasks changed while they were read; try again ({error})"));
        }
    }
}

/// Where the interpreter keeps its own state.
pub fn runtime(memory: Memory, mapped: &[Mapped]) -> Result<u64, String> {
    find(memory, mapped, ".PyRuntime", is_interpreter).ok_or_else(|| "its interpreter was not found".to_owned())
}

/// The program itself or the library of it, by its file's name.
fn is_interpreter(name: &str) -> bool {
    name.starts_with("libpython") || (name.contains("python") && !name.contains(".so"))
}

fn find(memory: Memory, mapped: &[Mapped], section: &str, wanted: impl Fn(&str) -> bool) -> Option<u64> {
    let name = |mapped: &&Mapped| mapped.path.rsplit('/').next().is_some_and(&wanted);
    // A file that cannot be read has no section to offer.
    mapped.iter().filter(name).find_map(|mapped| memory::find_section(memory.pid, mapped, section).ok().flatten())
}

fn find_table(memory: Memory, mapped: &[Mapped]) -> Option<Table> {
    let found = find(memory, mapped, ".AsyncioDebug", |name| name.starts_with("_asyncio") || is_interpreter(name))?;
    let bytes = memory.bytes(found, TABLE_WORDS * 8).ok()?;
    let word = |index: usize| word_at(&bytes, index * 8);
    let table = Table {
        task_size: word(0),
        name: word(1),
        awaited_by: word(2),
        is_task: word(3),
        awaited_by_is_set: word(4),
        coroutine: word(5),
        node: word(6),
        interpreter_tasks: word(8),
        running_task: word(11),
        thread_tasks: word(12),
    };
    let inside = [table.name, table.awaited_by, table.is_task, table.awaited_by_is_set, table.coroutine, table.node];
    (table.task_size <= 4096 && inside.iter().all(|offset| *offset < table.task_size)).then_some(table)
}

/// Offsets in tasks, interpreters and threads.
#[derive(Debug)]
struct Table {
    task_size: u64,
    name: u64,
    awaited_by: u64,
    is_task: u64,
    awaited_by_is_set: u64,
    coroutine: u64,
    node: u64,
    interpreter_tasks: u64,
    running_task: u64,
    thread_tasks: u64,
}

/// The tasks of all threads.
struct Listed {
    tasks: Vec<Task>,
    /// How many there are beyond those.
    more: usize,
    /// How many were there and could not be read any more.
    ended: usize,
}

struct Reader {
    objects: Objects,
    table: Table,
    options: Options,
}

impl Reader {
    fn memory(&self) -> Memory {
        self.objects.memory
    }

    fn tasks(&self, runtime: u64) -> io::Result<Listed> {
        let mut addresses = Vec::new();
        // Which thread a running task runs on.
        let mut running = BTreeMap::new();
        let objects = &self.objects;
        let mut interpreter = objects.field(runtime, At::InterpretersHead)?;
        for _ in 0..MAX_INTERPRETERS {
            if interpreter == 0 {
                break;
            }
            self.list(interpreter.wrapping_add(self.table.interpreter_tasks), &mut addresses)?;
            let mut thread = objects.field(interpreter, At::ThreadsHead)?;
            for _ in 0..MAX_THREADS {
                if thread == 0 {
                    break;
                }
                self.list(thread.wrapping_add(self.table.thread_tasks), &mut addresses)?;
                let task = self.memory().word(thread.wrapping_add(self.table.running_task))?;
                if task != 0 {
                    running.insert(task, thread);
                }
                thread = objects.field(thread, At::ThreadNext)?;
            }
            interpreter = objects.field(interpreter, At::InterpreterNext)?;
        }
        // A task that runs its first step eagerly is in no list yet.
        let eager: Vec<_> = running.keys().filter(|task| !addresses.contains(task)).copied().collect();
        addresses.extend(eager);
        let more = addresses.len().saturating_sub(MAX_TASKS);
        addresses.truncate(MAX_TASKS);
        let known: BTreeSet<u64> = addresses.iter().copied().collect();
        // One that ended meanwhile is no reason to tell nothing about the others.
        let read = |address: &u64| self.task(*address, running.get(address).copied(), &known).ok();
        let mut tasks: Vec<_> = addresses.iter().filter_map(read).collect();
        let ended = addresses.len() - tasks.len();
        let told: BTreeSet<u64> = tasks.iter().map(|task| task.id).collect();
        let mut awaits: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for task in &mut tasks {
            task.awaited_by.retain(|waiter| told.contains(waiter));
            for waiter in &task.awaited_by {
                awaits.entry(*waiter).or_default().push(task.id);
            }
        }
        for task in &mut tasks {
            task.awaits = awaits.remove(&task.id).unwrap_or_default();
        }
        Ok(Listed { tasks, more, ended })
    }

    /// Adds the tasks of one list, which ends where it began.
    fn list(&self, head: u64, addresses: &mut Vec<u64>) -> io::Result<()> {
        let mut node = self.memory().word(head)?;
        while node != head {
            if node == 0 || addresses.len() >= MAX_LISTED {
                return Err(io::Error::other("a list of tasks has no end"));
            }
            addresses.push(node.wrapping_sub(self.table.node));
            node = self.memory().word(node)?;
        }
        Ok(())
    }

    fn task(&self, address: u64, thread: Option<u64>, known: &BTreeSet<u64>) -> io::Result<Task> {
        if self.memory().byte(address.wrapping_add(self.table.is_task))? != 1 {
            return Err(io::Error::other("no task"));
        }
        let coroutine = self.pointer(address, self.table.coroutine)?;
        let state = if coroutine == 0 { CoroutineState::Ended } else { self.objects.coroutine_state(coroutine)? };
        // A coroutine that went on while it was read leaves the task, without its frames.
        let mut frames = self.coroutine_frames(coroutine, thread).unwrap_or_default();
        let coroutine_name = frames.last().map(|frame| frame.function.clone());
        let cut = cut_frames(&mut frames);
        let mut awaited_by = BTreeSet::new();
        self.waiters(address, known, MAX_FUTURES, &mut awaited_by)?;
        let state = match (thread, state) {
            (Some(_), _) | (None, CoroutineState::Running) => "running",
            (None, CoroutineState::NotStarted) => "not started",
            _ => "waiting",
        };
        Ok(Task {
            id: address,
            name: self.name(address)?,
            state: state.to_owned(),
            coroutine: coroutine_name.unwrap_or_default(),
            frames,
            cut,
            awaits: Vec::new(),
            awaited_by: awaited_by.into_iter().collect(),
        })
    }

    fn pointer(&self, address: u64, offset: u64) -> io::Result<u64> {
        Ok(self.memory().word(address.wrapping_add(offset))? & !1)
    }

    /// A task that nobody gave a name has a number.
    fn name(&self, address: u64) -> io::Result<String> {
        let name = self.pointer(address, self.table.name)?;
        if self.objects.type_flags(name)? & IS_STRING != 0 {
            return Ok(plain(&self.objects.string(name)?, MAX_NAME_CHARS));
        }
        let number = self.objects.integer(name)?;
        Ok(number.map_or_else(|| "Task".to_owned(), |number| format!("Task-{number}")))
    }

    /// Frames of a coroutine and of those it waits in, innermost first.
    fn coroutine_frames(&self, coroutine: u64, thread: Option<u64>) -> io::Result<Vec<Frame>> {
        let objects = &self.objects;
        let mut frames = Vec::new();
        let mut coroutine = coroutine;
        while coroutine != 0 && frames.len() < MAX_CHAIN {
            let own = coroutine.wrapping_add(objects.layout.offset(At::CoroutineFrame));
            let state = objects.coroutine_state(coroutine)?;
            if state == CoroutineState::Ended {
                break;
            }
            if let (CoroutineState::Running, Some(thread)) = (state, thread) {
                frames.extend(self.frames_above(thread, own)?.into_iter().rev());
                break;
            }
            frames.extend(objects.frame(own, self.options)?);
            if state != CoroutineState::Awaiting {
                break;
            }
            coroutine = self.awaited(own)?;
        }
        frames.reverse();
        Ok(frames)
    }

    /// What is on a thread's stack down to this frame, innermost first.
    fn frames_above(&self, thread: u64, last: u64) -> io::Result<Vec<Frame>> {
        let mut frames = Vec::new();
        let mut frame = self.objects.field(thread, At::ThreadCurrentFrame)?;
        for _ in 0..MAX_CHAIN {
            if frame == 0 {
                break;
            }
            frames.extend(self.objects.frame(frame, self.options)?);
            if frame == last {
                return Ok(frames);
            }
            frame = self.objects.field(frame, At::FramePrevious)?;
        }
        // It was left while it was read: what it is in now is not what it was in.
        Ok(self.objects.frame(last, self.options)?.into_iter().collect())
    }

    /// The coroutine or generator a suspended frame waits in; 0 if that is something else.
    fn awaited(&self, frame: u64) -> io::Result<u64> {
        let objects = &self.objects;
        let top = objects.pointer(frame, At::FrameStackPointer)?;
        if top == 0 {
            return Ok(0);
        }
        // On top is the receiver; from 3.15 on, what was sent to it lies above.
        let below_top = if objects.layout.minor == 14 { 8 } else { 16 };
        let mut receiver = self.memory().word(top.wrapping_sub(below_top))? & !3;
        for _ in 0..2 {
            if receiver == 0 {
                return Ok(0);
            }
            match objects.type_name(receiver)?.as_str() {
                "coroutine" | "generator" | "async_generator" => return Ok(receiver),
                // Steps of an asynchronous generator, and what `__await__` makes, hold the generator first.
                "async_generator_asend" | "async_generator_athrow" | "coroutine_wrapper" => {
                    receiver = self.memory().word(receiver.wrapping_add(objects.layout.offset(At::ObjectSize)))? & !3;
                }
                _ => return Ok(0),
            }
        }
        Ok(0)
    }

    /// The tasks that wait for a future, also through futures that are no tasks.
    fn waiters(&self, future: u64, known: &BTreeSet<u64>, depth: usize, found: &mut BTreeSet<u64>) -> io::Result<()> {
        let waiter = self.pointer(future, self.table.awaited_by)?;
        if waiter == 0 {
            return Ok(());
        }
        let is_set = self.memory().byte(future.wrapping_add(self.table.awaited_by_is_set))? != 0;
        let waiters = if is_set { self.members(waiter)? } else { vec![waiter] };
        for waiter in waiters.into_iter().take(MAX_WAITERS) {
            if known.contains(&waiter) {
                found.insert(waiter);
            } else if depth > 0 && self.memory().byte(waiter.wrapping_add(self.table.is_task))? == 0 {
                self.waiters(waiter, known, depth - 1, found)?;
            }
        }
        Ok(())
    }

    fn members(&self, set: u64) -> io::Result<Vec<u64>> {
        let objects = &self.objects;
        let (used, mask) = (objects.field(set, At::SetUsed)?, objects.field(set, At::SetMask)?);
        if mask >= MAX_SET || used > mask + 1 {
            return Err(io::Error::other("no set"));
        }
        let table = objects.field(set, At::SetTable)?;
        let mut members = Vec::new();
        for index in 0..=mask {
            let (key, hash) = (table.wrapping_add(index * 16), table.wrapping_add(index * 16 + 8));
            // A member that was taken out leaves a mark with this hash.
            let (key, hash) = (self.memory().word(key)?, self.memory().word(hash)?);
            if key != 0 && hash != u64::MAX {
                members.push(key);
            }
        }
        Ok(members)
    }
}

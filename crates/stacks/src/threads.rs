//! Threads: their frames by py-spy, which knows the layouts of all versions, and what the kernel says about them.

use std::{collections::HashMap, fs, io, time::Duration};

use py_spy::{Config, PythonSpy, StackTrace, config::LockingStrategy, stack_trace::LocalVariable};

use super::{
    Error, Frame, Local, MAX_LOCALS, MAX_NAME_CHARS, MAX_THREADS, MAX_VALUE_CHARS, Options, Stacks, Thread, asyncio,
    cut_frames,
    memory::{Mapped, Memory},
    plain,
    values::{Layout, Objects},
};
use pylair_os::process_access;

/// Frames move while they are read, so they are read again until they fit together.
const ATTEMPTS: usize = 12;
/// So many reads must agree on where a thread began if it is no place where Python itself begins one.
const AGREEING: usize = 5;
/// A process that has just started has no interpreter yet.
const OPEN_ATTEMPTS: usize = 4;
const OPEN_PAUSE: Duration = Duration::from_millis(15);
/// py-spy's unit of a value's length, about 128 characters.
const LOCALS_DEPTH: u64 = 1;

pub fn read(pid: i32, mapped: &[Mapped], options: Options) -> Result<Stacks, Error> {
    let mut spy = open(pid, mapped, options)?;
    let version = &spy.version;
    let python = format!("{}.{}.{}{}", version.major, version.minor, version.patch, version.release_flags);
    match (version.major, version.minor) {
        (3, 8..=15) => {}
        (3, 16..) | (4.., _) => return Err(Error::NewPython { pid, version: python }),
        _ => return Err(Error::OldPython { pid, version: python }),
    }
    let minor = version.minor;
    let traces = settled_traces(pid, &mut spy)?;
    let kernel = kernel_threads(pid);
    let memory = Memory { pid };
    let variables = Variables::read(memory, mapped, minor, spy.addresses.interpreter_address, options);
    let mut threads: Vec<_> =
        traces.into_iter().map(|(trace, complete)| thread(memory, trace, complete, &kernel, &variables)).collect();
    // Where the kernel's ids are unknown, the oldest one is the last that py-spy finds.
    if !threads.iter().any(|thread| thread.main)
        && let Some(main) = threads.iter_mut().rev().find(|thread| thread.name.as_deref() == Some("MainThread"))
    {
        main.main = true;
    }
    threads.sort_by_key(|thread| (!thread.main, thread.os_id.unwrap_or(i32::MAX)));
    let mut notes = Vec::new();
    if threads.len() > MAX_THREADS {
        notes.push(format!("{} more threads are not shown", threads.len() - MAX_THREADS));
        threads.truncate(MAX_THREADS);
    }
    if threads.is_empty() {
        notes.push("there is an interpreter, and no thread is in it".to_owned());
    }
    Ok(Stacks { pid, python, threads, notes, ..Stacks::default() })
}

fn open(pid: i32, mapped: &[Mapped], options: Options) -> Result<PythonSpy, Error> {
    let config = Config {
        blocking: LockingStrategy::NonBlocking,
        dump_locals: if options.locals { LOCALS_DEPTH } else { 0 },
        full_filenames: true,
        ..Config::default()
    };
    let is_python = mapped.iter().any(|mapped| mapped.path.rsplit('/').next().is_some_and(|n| n.contains("python")));
    let mut attempt = 1;
    loop {
        let error = match PythonSpy::new(pid, &config) {
            Ok(spy) => return Ok(spy),
            Err(error) => error,
        };
        if let Some(error) = refusal(&error) {
            return Err(process_access::explain(pid, error).into());
        }
        process_access::check(pid)?;
        if !is_python {
            return Err(process_access::not_python(pid).into());
        }
        if attempt == OPEN_ATTEMPTS {
            return Err(Error::Unreadable { pid, reason: format!("{error:#}") });
        }
        attempt += 1;
        std::thread::sleep(OPEN_PAUSE);
    }
}

/// The kernel's refusal among the causes of an error.
fn refusal<'a>(
    error: &'a (impl std::ops::Deref<Target = dyn std::error::Error + Send + Sync> + 'a),
) -> Option<&'a io::Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        {
            return Some(error);
        }
        cause = error.source();
    }
    None
}

/// The traces, each with whether it is complete. They may be of different moments, a few milliseconds apart.
fn settled_traces(pid: i32, spy: &mut PythonSpy) -> Result<Vec<(StackTrace, bool)>, Error> {
    let mut reads: Vec<Vec<StackTrace>> = Vec::new();
    let mut reason = String::new();
    for _ in 0..ATTEMPTS {
        match spy.get_stack_traces() {
            Ok(traces) => reads.push(traces),
            Err(error) => {
                process_access::check(pid)?;
                if let Some(error) = refusal(&error) {
                    return Err(process_access::explain(pid, error).into());
                }
                reason = format!("{error:#}");
                continue;
            }
        }
        if settle(&reads).iter().all(|(_, complete)| *complete) {
            break;
        }
    }
    if reads.is_empty() {
        let too_deep = reason.contains("Max frame recursion depth");
        return Err(if too_deep { Error::TooDeep { pid } } else { Error::Unreadable { pid, reason } });
    }
    // Only one thread has the GIL at one moment, and the last read is that of one.
    let holder = reads.last().into_iter().flatten().find(|trace| trace.owns_gil).map(|trace| trace.thread_id);
    let settled = settle(&reads).into_iter().map(|(trace, complete)| {
        let trace = StackTrace { owns_gil: holder == Some(trace.thread_id), ..trace.clone() };
        (trace, complete)
    });
    Ok(settled.collect())
}

/// The best trace of every thread that the last read has seen, and whether it is complete. A chain of frames that was torn ends early, so
/// one that ends where Python itself begins threads is whole; any other end must be seen again and again.
fn settle(reads: &[Vec<StackTrace>]) -> Vec<(&StackTrace, bool)> {
    let Some(last) = reads.last() else { return Vec::new() };
    let best = |thread: &StackTrace| {
        let newest_first = || reads.iter().rev().flatten().filter(|trace| trace.thread_id == thread.thread_id);
        if let Some(whole) = newest_first().find(|trace| begins_a_thread(trace)) {
            return (whole, true);
        }
        let (mut best, mut most) = (None, 0);
        for trace in newest_first() {
            let agreeing = newest_first().filter(|other| root(other) == root(trace)).count();
            if agreeing > most {
                (best, most) = (Some(trace), agreeing);
            }
        }
        let all = newest_first().count();
        (best.unwrap_or(&last[0]), most >= AGREEING && most * 4 > all * 3)
    };
    last.iter().map(best).collect()
}

/// Where a chain of frames ends.
fn root(trace: &StackTrace) -> Option<(&str, &str)> {
    trace.frames.last().map(|frame| (frame.name.as_str(), frame.filename.as_str()))
}

/// Whether it ends in a program, or in the method that every thread of `threading` begins with.
fn begins_a_thread(trace: &StackTrace) -> bool {
    root(trace).is_some_and(|(name, file)| match name {
        "<module>" | "_run_module_as_main" => true,
        "_bootstrap" | "Thread._bootstrap" => file.ends_with("threading.py"),
        _ => false,
    })
}

/// The variables of frames. py-spy knows a function's own ones only and shows some values wrongly, so they are read here once more, and
/// where a stack has changed since, at least the values are.
struct Variables {
    objects: Option<Objects>,
    threads: HashMap<u64, Vec<Frame>>,
}

impl Variables {
    fn read(memory: Memory, mapped: &[Mapped], minor: u64, interpreter: usize, options: Options) -> Self {
        let layout = Layout::known(minor).or_else(|| Layout::read(memory, asyncio::runtime(memory, mapped).ok()?).ok());
        let objects = layout.filter(|_| options.locals).map(|layout| Objects { memory, layout });
        let threads = objects.as_ref().map(|objects| objects.thread_frames(interpreter as u64)).unwrap_or_default();
        Self { objects, threads }
    }

    fn frames(&self, trace: StackTrace) -> Vec<Frame> {
        let own = self.threads.get(&trace.thread_id).filter(|own| {
            let is_same =
                |(own, theirs): (&Frame, &py_spy::Frame)| own.file == theirs.filename && own.function == theirs.name;
            own.len() == trace.frames.len() && own.iter().zip(&trace.frames).all(is_same)
        });
        let frames = trace.frames.into_iter().enumerate();
        frames.map(|(index, frame)| self.frame(frame, own.map(|own| &own[index]))).collect()
    }

    fn frame(&self, frame: py_spy::Frame, own: Option<&Frame>) -> Frame {
        let (locals, more_locals) = match own {
            Some(own) => (own.locals.clone(), own.more_locals),
            None => self.values(frame.locals.unwrap_or_default()),
        };
        Frame {
            function: plain(&frame.name, MAX_NAME_CHARS),
            file: plain(&frame.filename, MAX_NAME_CHARS),
            line: u32::try_from(frame.line).unwrap_or(0),
            source: None,
            locals,
            more_locals,
        }
    }

    fn values(&self, locals: Vec<LocalVariable>) -> (Vec<Local>, usize) {
        let more = locals.len().saturating_sub(MAX_LOCALS);
        let shown = locals.into_iter().take(MAX_LOCALS).map(|local| Local {
            name: plain(&local.name, MAX_NAME_CHARS),
            value: match &self.objects {
                Some(objects) => objects.shown(local.addr as u64),
                None => plain(local.repr.as_deref().unwrap_or("?"), MAX_VALUE_CHARS),
            },
        });
        (shown.collect(), more)
    }
}

fn thread(
    memory: Memory,
    trace: StackTrace,
    complete: bool,
    kernel: &HashMap<i32, KernelThread>,
    variables: &Variables,
) -> Thread {
    let told = trace.os_thread_id.and_then(|id| i32::try_from(id).ok());
    let known = told.or_else(|| kernel_id(memory, trace.thread_id)).and_then(|id| kernel.get(&id));
    let name = trace.thread_name.clone().or_else(|| known.map(|known| known.name.clone()));
    let (id, owns_gil, active) = (trace.thread_id, trace.owns_gil, trace.active);
    let mut frames = variables.frames(trace);
    let cut = cut_frames(&mut frames);
    Thread {
        id,
        os_id: known.map(|known| known.id),
        name: name.map(|name| plain(&name, MAX_NAME_CHARS)),
        main: known.is_some_and(|known| known.id == memory.pid),
        current: false,
        holds_gil: owns_gil,
        idle: Some(known.map_or(!active, |known| known.state != 'R')),
        frames,
        cut,
        incomplete: !complete,
    }
}

/// What the kernel knows about a thread.
#[derive(Debug, PartialEq, Eq)]
struct KernelThread {
    /// As we see it; a process in a namespace of its own sees another.
    id: i32,
    state: char,
    name: String,
}

/// The threads of a process by the ids that they themselves see.
fn kernel_threads(pid: i32) -> HashMap<i32, KernelThread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    ids.filter_map(|id: i32| {
        let status = fs::read(format!("/proc/{pid}/task/{id}/status")).ok()?;
        parse_task(id, &String::from_utf8_lossy(&status))
    })
    .collect()
}

fn parse_task(id: i32, status: &str) -> Option<(i32, KernelThread)> {
    let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let inner = field("NSpid:").and_then(|ids| ids.split_whitespace().last()?.parse().ok()).unwrap_or(id);
    Some((inner, KernelThread { id, state: field("State:")?.chars().next()?, name: field("Name:")?.to_owned() }))
}

/// Before 3.11 an interpreter does not remember the kernel's id, but glibc does: its record of a thread is where `get_ident` points to.
/// What is found counts only if there is such a thread.
fn kernel_id(memory: Memory, thread_id: u64) -> Option<i32> {
    let offset = if cfg!(target_arch = "x86_64") { 0x2d0 } else { 0xd0 };
    memory.array(thread_id.checked_add(offset)?).ok().map(i32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(thread_id: u64, functions: &[&str]) -> StackTrace {
        let frame = |name: &&str| py_spy::Frame {
            name: (*name).to_owned(),
            filename: "/lib/threading.py".to_owned(),
            module: None,
            short_filename: None,
            line: 1,
            locals: None,
            is_entry: false,
            is_shim_entry: false,
        };
        StackTrace {
            pid: 1,
            thread_id,
            thread_name: None,
            os_thread_id: None,
            active: true,
            owns_gil: false,
            frames: functions.iter().map(frame).collect(),
            process_info: None,
        }
    }

    #[test]
    fn a_torn_chain_is_replaced_by_a_whole_one_and_else_marked() {
        let check = |reads: &[&[&str]]| {
            let reads: Vec<_> = reads.iter().map(|functions| vec![trace(7, functions)]).collect();
            let settled = settle(&reads);
            (settled[0].0.frames.len(), settled[0].1)
        };
        assert_eq!(check(&[&["f", "Thread._bootstrap"]]), (2, true));
        assert_eq!(check(&[&["f", "g", "<module>"], &["f"], &["f"]]), (3, true));
        // One that C code began is believed when it stays as it is.
        assert_eq!(check(&[&["callback"]]), (1, false));
        assert_eq!(check(&[&["callback"][..]; 5]), (1, true));
        assert_eq!(check(&[&["f", "callback"][..]; 5]), (2, true));
        assert_eq!(check(&[&["f"], &["g"], &["f", "h"], &["f"], &["i"], &["f"], &["f"], &["f"]]), (1, false));
    }

    #[test]
    fn a_thread_in_a_namespace_is_known_by_the_id_it_sees() {
        let status = "Name:\tworker 1\nState:\tR (running)\nTgid:\t4711\nNSpid:\t4711\t3\n";
        let known = KernelThread { id: 4711, state: 'R', name: "worker 1".into() };
        assert_eq!(parse_task(4711, status), Some((3, known)));
        assert_eq!(parse_task(1, "Name:\tx\n"), None);
    }
}

//! The door that 3.14 and later have for debuggers (`sys.remote_exec`): a path is written into the interpreter's memory, and the main
//! thread runs that file at its next safe point. No thread is stopped for it. It is never run while the main thread is blocked in C.
//!
//! Where the fields are is said by a table that the interpreter carries at the beginning of its state; how that table is laid out
//! changes with each minor version, and one that is not known here is left alone.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    elf::Memory,
    interpreter::Interpreter,
    process::Process,
    statement::{Config, Source, statement},
};

const COOKIE: &[u8; 8] = b"xdebugpy";
const TABLE_WORDS: usize = 128;
const INTERPRETERS_HEAD: usize = 5;
const THREADS_MAIN: usize = 10;
/// Where the six fields for debuggers begin, by minor version.
const DEBUGGER_SUPPORT: &[(u64, usize)] = &[(14, 89), (15, 105)];
/// The bit of a thread's eval breaker that asks it to look at what a debugger wrote.
const PLEASE_STOP: u64 = 1 << 5;

/// How long the main thread may take to begin. One that runs Python takes microseconds.
const BEGIN_LIMIT: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_micros(500);

/// The fields of the main thread that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Door {
    eval_breaker: u64,
    pending: u64,
    path: u64,
    path_bytes: u64,
}

/// Whether the statement has begun. If not, nothing of it is left, and it will not begin later.
pub fn run(process: &Process, interpreter: &Interpreter, config: &Config, payload: &[u8]) -> bool {
    // Whoever owns the directory could lead files of another user's elsewhere.
    if process.uid != rustix::process::geteuid().as_raw() || process.other_root {
        return false;
    }
    let Some(door) = find_door(interpreter) else { return false };
    let stem = format!("{}/apps/{}-{}", config.runtime, process.inner_pid, process.start);
    let (script, data) = (format!("{stem}.script"), format!("{stem}.payload"));
    if script.len() as u64 >= door.path_bytes {
        return false;
    }
    let source = Source::file(data.clone(), payload.len());
    let files = Files { script: process.reach(Path::new(&script)), payload: process.reach(Path::new(&data)) };
    let text = statement(process, config, &source);
    let prepared = files.write(text.as_bytes(), payload).is_ok();
    prepared && knock(interpreter, door, &script).is_ok() && files.wait_for_begin(interpreter, door)
}

fn find_door(interpreter: &Interpreter) -> Option<Door> {
    let memory = &interpreter.memory;
    let runtime = interpreter.runtime.as_ref()?.start;
    let mut bytes = [0; TABLE_WORDS * 8];
    memory.read(runtime, &mut bytes).ok()?;
    let table: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
    if &bytes[..8] != COOKIE || interpreter.version.is_none_or(|version| version != table[1]) {
        return None;
    }
    let [breaker, support, enabled, pending, path, path_bytes] = support(&table)?;
    let state = memory.read_word(runtime + table[INTERPRETERS_HEAD]).ok()?;
    let thread = memory.read_word(state + table[THREADS_MAIN]).ok().filter(|thread| *thread != 0)?;
    let enabled = memory.read_word(state + enabled).ok()? & 0xffff_ffff == 1;
    let support = thread + support;
    enabled.then_some(Door {
        eval_breaker: thread + breaker,
        pending: support + pending,
        path: support + path,
        path_bytes,
    })
}

/// The fields for debuggers, if the table is one we know.
fn support(table: &[u64]) -> Option<[u64; 6]> {
    let version = table[1] >> 16;
    let (_, at) = DEBUGGER_SUPPORT.iter().find(|(minor, _)| version == (3 << 8 | minor))?;
    let fields: [u64; 6] = table.get(*at..at + 6)?.try_into().ok()?;
    // The last three are the same wherever there is such a door; anything else is another table.
    (fields[3..] == [0, 4, 512]).then_some(fields)
}

fn knock(interpreter: &Interpreter, door: Door, script: &str) -> io::Result<()> {
    let memory = &interpreter.memory;
    let mut pending = [0; 4];
    memory.read(door.pending, &mut pending)?;
    if u32::from_le_bytes(pending) != 0 {
        return Err(io::Error::other("another debugger is waiting"));
    }
    let mut path = script.as_bytes().to_vec();
    path.push(0);
    memory.write(door.path, &path)?;
    memory.write(door.pending, &1_u32.to_le_bytes())?;
    let breaker = memory.read_word(door.eval_breaker)?;
    memory.write(door.eval_breaker, &(breaker | PLEASE_STOP).to_le_bytes())
}

/// What the interpreter runs and what that reads, gone when this is dropped.
#[derive(Debug)]
struct Files {
    script: PathBuf,
    payload: PathBuf,
}

impl Files {
    fn write(&self, script: &[u8], payload: &[u8]) -> io::Result<()> {
        self.remove();
        if let Some(apps) = self.script.parent() {
            // It is there when an app was before.
            let _there = fs::DirBuilder::new().mode(0o700).create(apps);
        }
        for (path, bytes) in [(&self.script, script), (&self.payload, payload)] {
            let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(bytes)?;
        }
        Ok(())
    }

    /// The script removes what it read before it begins. If we are the first to remove it, the script will do nothing.
    fn wait_for_begin(&self, interpreter: &Interpreter, door: Door) -> bool {
        let until = Instant::now() + BEGIN_LIMIT;
        while Instant::now() < until {
            if !self.payload.exists() {
                return true;
            }
            std::thread::sleep(POLL);
        }
        // An interpreter that has seen the flag opens the script; one that has not finds it down.
        let _gone = interpreter.memory.write(door.pending, &0_u32.to_le_bytes());
        let taken_back = fs::remove_file(&self.payload).is_ok();
        if taken_back {
            std::thread::sleep(Duration::from_millis(5));
        }
        !taken_back
    }

    fn remove(&self) {
        for path in [&self.script, &self.payload] {
            // Usually they are not there.
            let _absent = fs::remove_file(path);
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_believed_only_where_it_is_known() {
        let mut table = vec![0; TABLE_WORDS];
        table[1] = 0x030e_00f0;
        table[89..95].copy_from_slice(&[24, 304, 8076, 0, 4, 512]);
        assert_eq!(support(&table), Some([24, 304, 8076, 0, 4, 512]));
        table[94] = 1024;
        assert_eq!(support(&table), None);
        table[94] = 512;
        table[1] = 0x0310_00f0;
        assert_eq!(support(&table), None);
    }
}

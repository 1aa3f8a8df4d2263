//! Finding the interpreter in a process: the functions we call, and pieces of libc we need to make system calls there.

use std::{collections::BTreeMap, fs, ops::Range};

use super::{
    elf::{self, Class, Memory},
    error::Error,
    maps::{self, Mapping},
    memory::ProcessMemory,
    process::Process,
};
use pylair_os::process_access;

const WANTED: &[&str] = &[RUN, ENSURE, RELEASE, ADD_PENDING, MAKE_PENDING, IS_INITIALIZED, RUNTIME, VERSION, SINCE_3_8];
const RUN: &str = "PyRun_SimpleString";
const ENSURE: &str = "PyGILState_Ensure";
const RELEASE: &str = "PyGILState_Release";
const ADD_PENDING: &str = "Py_AddPendingCall";
const MAKE_PENDING: &str = "Py_MakePendingCalls";
const IS_INITIALIZED: &str = "Py_IsInitialized";
const RUNTIME: &str = "_PyRuntime";
const VERSION: &str = "Py_Version";
const SINCE_3_8: &str = "Py_RunMain";

/// `syscall` and `ret`: what every wrapper of a system call ends with.
const SYSCALL_RET: &[u8] = &[0x0f, 0x05, 0xc3];
/// `mov rax, 15` and `syscall`: what every libc gives the kernel for handlers to return to.
const SIGRETURN: &[u8] = &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];

/// Everything that is needed of a process's interpreter, gathered while it runs.
#[derive(Debug)]
pub struct Interpreter {
    pub memory: ProcessMemory,
    pub run: u64,
    pub ensure: u64,
    pub release: u64,
    pub add_pending: u64,
    pub make_pending: u64,
    pub is_initialized: u64,
    /// The interpreter's own state, with the GIL in it.
    pub runtime: Option<Range<u64>>,
    /// Functions that take the lock of the pending calls.
    pub pending_lock: Vec<Range<u64>>,
    /// `PY_VERSION_HEX`, which 3.11 and later export.
    pub version: Option<u64>,
    /// Where `syscall; ret` is.
    pub syscall: u64,
    /// Where the code is that a signal handler returns to.
    pub sigreturn: u64,
    /// The code that blocking system calls are made from: libc's, or the program's own if it is static.
    pub libc: Vec<Range<u64>>,
}

impl Interpreter {
    pub fn find(process: &Process) -> Result<Self, Error> {
        let pid = process.pid;
        let denied = |error: std::io::Error| process_access::explain(pid, &error);
        let memory = ProcessMemory::open(pid).map_err(denied)?;
        let text = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(denied)?;
        let mappings = maps::parse(&text);
        let candidates = candidates(pid, &mappings);
        if candidates.iter().any(|file| is_pypy(file.name())) {
            return Err(Error::PyPy { pid });
        }
        let mut named = None;
        for file in &candidates {
            if elf::class(&memory, file.start) == Some(Class::Bits32) {
                return Err(Error::Bits32 { pid });
            }
            // A library that cannot be read is not the one.
            let Ok(symbols) = elf::symbols(&memory, file.start, WANTED) else { continue };
            if symbols.contains_key(RUN) {
                return Self::new(pid, memory, &mappings, file, &symbols);
            }
            if is_python(file.name()) {
                named = named.or(Some(file.path.clone()));
            }
        }
        Err(match named {
            Some(file) => Error::NoSymbol { pid, file, symbol: RUN },
            None => process_access::not_python(pid).into(),
        })
    }

    fn new(
        pid: i32,
        memory: ProcessMemory,
        mappings: &[Mapping],
        file: &Mapping,
        symbols: &BTreeMap<&str, Range<u64>>,
    ) -> Result<Self, Error> {
        if !symbols.contains_key(SINCE_3_8) {
            return Err(Error::TooOld { pid });
        }
        let symbol = |name: &'static str| {
            let missing = || Error::NoSymbol { pid, file: file.path.clone(), symbol: name };
            symbols.get(name).map(|range| range.start).ok_or_else(missing)
        };
        let executable = || mappings.iter().filter(|mapping| mapping.executable && mapping.readable);
        let mut libc: Vec<Range<u64>> =
            executable().filter(|mapping| is_libc(mapping.name())).map(|mapping| mapping.start..mapping.end).collect();
        if libc.is_empty() {
            let own = executable().filter(|mapping| mapping.path == file.path);
            libc = own.map(|mapping| mapping.start..mapping.end).collect();
        }
        let no_libc = || Error::NoSymbol { pid, file: file.path.clone(), symbol: "a libc" };
        let find = |code| libc.iter().find_map(|range| memory.find(range.clone(), code)).ok_or_else(no_libc);
        let (syscall, sigreturn) = (find(SYSCALL_RET)?, find(SIGRETURN)?);
        let version = symbols.get(VERSION).and_then(|address| memory.read_word(address.start).ok());
        Ok(Self {
            run: symbol(RUN)?,
            ensure: symbol(ENSURE)?,
            release: symbol(RELEASE)?,
            add_pending: symbol(ADD_PENDING)?,
            make_pending: symbol(MAKE_PENDING)?,
            is_initialized: symbol(IS_INITIALIZED)?,
            runtime: symbols.get(RUNTIME).cloned(),
            pending_lock: [ADD_PENDING, MAKE_PENDING].iter().filter_map(|name| symbols.get(name).cloned()).collect(),
            version,
            syscall,
            sigreturn,
            libc,
            memory,
        })
    }

    pub fn is_in_libc(&self, address: u64) -> bool {
        self.libc.iter().any(|range| range.contains(&address))
    }

    /// Does this follow a `syscall` instruction?
    pub fn is_behind_syscall(&self, address: u64) -> bool {
        let mut before = [0; 2];
        self.memory.read(address.wrapping_sub(2), &mut before).is_ok() && before == SYSCALL_RET[..2]
    }
}

/// The mapped files, those first that look like Python, then the program itself: an interpreter can be part of any program.
fn candidates(pid: i32, mappings: &[Mapping]) -> Vec<&Mapping> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let mut files = maps::files(mappings);
    files.sort_by_key(|file| {
        (!is_python(file.name()) && !is_pypy(file.name()), program.as_os_str() != file.path.as_str())
    });
    files
}

fn is_python(name: &str) -> bool {
    name.starts_with("python") || name.starts_with("libpython")
}

fn is_pypy(name: &str) -> bool {
    name.starts_with("pypy") || name.starts_with("libpypy")
}

/// glibc before 2.34 has the calls that wait in a library for threads.
fn is_libc(name: &str) -> bool {
    ["libc.so", "libc-", "libc.musl", "ld-musl", "libpthread"].iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        assert!(is_python("python3.11") && is_python("libpython3.13.so.1.0") && !is_python("ipython"));
        assert!(is_pypy("libpypy3.9-c.so") && is_pypy("pypy3"));
        assert!(is_libc("libc.so.6") && is_libc("ld-musl-x86_64.so.1") && is_libc("libpthread-2.31.so"));
        assert!(!is_libc("libcrypto.so.3") && !is_libc("libcap.so.2"));
    }

    #[test]
    fn a_program_without_python_is_named() {
        let ours = Process::examine(std::process::id().cast_signed()).unwrap();
        let error = Interpreter::find(&ours).unwrap_err();
        assert!(error.kind() == "not_python" && error.message().contains("pylair"), "{error}");
    }
}

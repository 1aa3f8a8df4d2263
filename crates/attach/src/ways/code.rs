//! Small pieces of machine code for `x86_64`, written into a process for a moment.
//!
//! Each keeps to the C calling convention (System V): at its first instruction the stack is where it is behind a call.

/// Machine code in the making.
#[derive(Debug, Default)]
struct Code(Vec<u8>);

/// Registers that hold arguments.
#[derive(Debug, Clone, Copy)]
enum Argument {
    First,
    Second,
}

impl Code {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// `mov rdi, value` or `mov rsi, value`
    fn argument(self, argument: Argument, value: u64) -> Self {
        let opcode = match argument {
            Argument::First => [0x48, 0xbf],
            Argument::Second => [0x48, 0xbe],
        };
        self.bytes(&opcode).bytes(&value.to_le_bytes())
    }

    /// Unmaps this code and returns, which must not happen in it.
    fn munmap_and_return(self, syscall_ret: u64, mapping: u64, length: u64) -> Self {
        self.argument(Argument::First, mapping)
            .argument(Argument::Second, length)
            .bytes(&[0x49, 0xbb]) // mov r11, syscall_ret
            .bytes(&syscall_ret.to_le_bytes())
            .bytes(&[0xb8]) // mov eax, MUNMAP
            .bytes(&MUNMAP)
            .bytes(&[0x41, 0xff, 0xe3]) // jmp r11
    }

    /// `mov rax, function; call rax`
    fn call(self, function: u64) -> Self {
        self.bytes(&[0x48, 0xb8]).bytes(&function.to_le_bytes()).bytes(&[0xff, 0xd0])
    }
}

/// `syscall; ret`, which is in libc.
pub const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
/// `int3`, which gives the thread back to us.
const TRAP: u8 = 0xcc;
const MUNMAP: [u8; 4] = [11, 0, 0, 0];

/// A piece that ends in a trap, and where that is.
#[derive(Debug)]
pub struct Piece {
    pub bytes: Vec<u8>,
    trap: usize,
}

impl Piece {
    /// Where the trap is.
    pub fn trap(&self) -> usize {
        self.trap
    }

    /// What to write instead of the trap if nobody will be there: the piece unmaps itself, if the memory is its own, and returns to
    /// `stack`, where the address of libc's `sigreturn` and behind it a signal's frame are.
    pub fn ending(syscall_ret: u64, stack: u64, own: Option<(u64, u64)>) -> Vec<u8> {
        let stack = Code::default().bytes(&[0x48, 0xbc]).bytes(&stack.to_le_bytes()); // mov rsp, stack
        match own {
            Some((mapping, length)) => stack.munmap_and_return(syscall_ret, mapping, length).0,
            None => stack.bytes(&[0xc3]).0, // ret
        }
    }
}

/// What is between the end of a piece and its beginning when it ends early: `ebx` says how far it came.
const NOTHING_DONE: &[u8] = &[0x31, 0xdb];
const WENT_ON: &[u8] = &[0xbb, 1, 0, 0, 0];

/// A call that the interpreter makes later on: runs the statement, then returns through munmap, so that nothing of this is left.
/// The result is munmap's 0, which tells the interpreter that all is well.
pub fn pending_call(run: u64, statement: u64, syscall_ret: u64, mapping: u64, length: u64) -> Vec<u8> {
    Code::default()
        .bytes(&[0x48, 0x83, 0xec, 0x08]) // sub rsp, 8
        .argument(Argument::First, statement)
        .call(run)
        .bytes(&[0x48, 0x83, 0xc4, 0x08]) // add rsp, 8
        .munmap_and_return(syscall_ret, mapping, length)
        .0
}

/// Queues a pending call if the interpreter is there, then traps. `ebx` is 1 if it is, `eax` what the interpreter said.
pub fn queue(is_initialized: u64, add_pending: u64, function: u64) -> Piece {
    let rest = Code::default()
        .bytes(WENT_ON)
        .argument(Argument::First, function)
        .argument(Argument::Second, 0)
        .call(add_pending);
    if_initialized(is_initialized, &rest)
}

/// Takes the GIL, calls a function with one argument, gives the GIL back, then traps. `ebx` is 0 if the interpreter is not there.
pub fn with_gil(is_initialized: u64, ensure: u64, function: u64, argument: u64, release: u64) -> Piece {
    let rest = Code::default()
        .bytes(WENT_ON)
        .call(ensure)
        .bytes(&[0x41, 0x89, 0xc4]) // mov r12d, eax
        .argument(Argument::First, argument)
        .call(function)
        .bytes(&[0x44, 0x89, 0xe7]) // mov edi, r12d
        .call(release);
    if_initialized(is_initialized, &rest)
}

fn if_initialized(is_initialized: u64, rest: &Code) -> Piece {
    let length = i32::try_from(rest.0.len()).expect("a few instructions");
    let code = Code::default()
        .bytes(&[0x48, 0x83, 0xec, 0x08]) // sub rsp, 8
        .bytes(NOTHING_DONE)
        .call(is_initialized)
        .bytes(&[0x85, 0xc0]) // test eax, eax
        .bytes(&[0x0f, 0x84]) // jz
        .bytes(&length.to_le_bytes())
        .bytes(&rest.0);
    Piece { trap: code.0.len(), bytes: code.bytes(&[TRAP]).0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    static CALLED_WITH: AtomicU64 = AtomicU64::new(0);

    extern "C" fn note(argument: u64) -> i32 {
        CALLED_WITH.store(argument, Ordering::SeqCst);
        -1
    }

    #[test]
    fn a_pending_call_runs_its_function_and_leaves_no_memory() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mappings = crate::maps::parse(&maps);
        let memory = crate::memory::ProcessMemory::open(std::process::id().cast_signed()).unwrap();
        let gadget = mappings
            .iter()
            .filter(|mapping| mapping.executable && mapping.name().starts_with("libc.so"))
            .find_map(|mapping| memory.find(mapping.start..mapping.end, &[0x0f, 0x05, 0xc3]))
            .unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC;
        // SAFETY: fresh memory, filled before it is run, and unmapped by what runs in it.
        let result = unsafe {
            let at = mmap_anonymous(std::ptr::null_mut(), 4096, protection, MapFlags::PRIVATE).unwrap();
            let code = pending_call(note as *const () as u64, 42, gadget, at as u64, 4096);
            std::ptr::copy_nonoverlapping(code.as_ptr(), at.cast(), code.len());
            let function: extern "C" fn(*const u8) -> i32 = std::mem::transmute(at);
            let result = function(std::ptr::null());
            let again = rustix::mm::msync(at, 4096, rustix::mm::MsyncFlags::ASYNC);
            assert_eq!(again, Err(rustix::io::Errno::NOMEM), "the memory is gone");
            result
        };
        assert_eq!((result, CALLED_WITH.load(Ordering::SeqCst)), (0, 42));
    }
}

//! The frame a signal handler returns through (`rt_sigreturn` on `x86_64`): with it a thread goes back by itself to where it was stopped.
//!
//! Used when a borrowed thread has to be left to itself. Like behind any handler, a system call with a time limit then ends with EINTR,
//! which Python answers by calling again for the rest of the time.

const UCONTEXT_BYTES: usize = 304;
const MCONTEXT: usize = 40;
const SIGMASK: usize = 296;
/// There is extended state, and the stack segment is to be taken as it is given.
const UC_FLAGS: u64 = 0b111;
/// No mode that the kernel knows, so that the thread keeps the alternative stack that it has.
const SS_NO_CHANGE: u32 = 7;

const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// Where software may write into the state: first what is in it, which is where ptrace says it too.
const SW_BYTES: usize = 464;
const LEGACY_BYTES: usize = 512;

const EINTR: u64 = (-4_i64).cast_unsigned();

/// Room for a frame on the stack.
pub fn size(xstate: usize) -> u64 {
    (UCONTEXT_BYTES.next_multiple_of(64) + xstate + 64) as u64
}

/// The frame as it has to be at `address`, which is a multiple of 64.
pub fn frame(address: u64, registers: &libc::user_regs_struct, mask: u64, xstate: &[u8]) -> Vec<u8> {
    let fpstate = UCONTEXT_BYTES.next_multiple_of(64);
    let mut frame = vec![0; fpstate + xstate.len() + 4];
    let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
    let (rip, rax) = resumed(registers);
    put(0, &UC_FLAGS.to_le_bytes());
    put(24, &SS_NO_CHANGE.to_le_bytes());
    let r = registers;
    let words = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, rax, r.rcx, r.rsp,
        rip, r.eflags,
    ];
    for (at, word) in words.iter().enumerate() {
        put(MCONTEXT + at * 8, &word.to_le_bytes());
    }
    let segments = MCONTEXT + words.len() * 8;
    for (at, segment) in [r.cs, 0, 0, r.ss].iter().enumerate() {
        put(segments + at * 2, &segment.to_le_bytes()[..2]);
    }
    // Behind the segments: the error, the trap, the old mask and the faulting address, which nobody reads.
    put(segments + 40, &(address + fpstate as u64).to_le_bytes());
    put(SIGMASK, &mask.to_le_bytes());
    put(fpstate, xstate);
    let length = u32::try_from(xstate.len()).unwrap_or(0);
    if xstate.len() > LEGACY_BYTES {
        let features: [u8; 8] = xstate[SW_BYTES..SW_BYTES + 8].try_into().expect("eight bytes");
        put(fpstate + SW_BYTES, &FP_XSTATE_MAGIC1.to_le_bytes());
        put(fpstate + SW_BYTES + 4, &(length + 4).to_le_bytes());
        put(fpstate + SW_BYTES + 8, &features);
        put(fpstate + SW_BYTES + 16, &length.to_le_bytes());
        put(fpstate + xstate.len(), &FP_XSTATE_MAGIC2.to_le_bytes());
    }
    frame
}

/// Where the thread goes on, and with which result, as the kernel would do it behind a handler with `SA_RESTART`.
fn resumed(registers: &libc::user_regs_struct) -> (u64, u64) {
    const SYSCALL_BYTES: u64 = 2;
    if registers.orig_rax.cast_signed() < 0 {
        return (registers.rip, registers.rax);
    }
    match -registers.rax.cast_signed() {
        // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND: begun again.
        512..=514 => (registers.rip - SYSCALL_BYTES, registers.orig_rax),
        // ERESTART_RESTARTBLOCK: what is needed to go on is lost with the frame.
        516 => (registers.rip, EINTR),
        _ => (registers.rip, registers.rax),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(rax: i64, orig_rax: i64) -> libc::user_regs_struct {
        // SAFETY: numbers only.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        (registers.rip, registers.rax, registers.orig_rax) = (1000, rax.cast_unsigned(), orig_rax.cast_unsigned());
        registers
    }

    #[test]
    fn system_calls_are_begun_again_where_they_can_be() {
        assert_eq!(resumed(&registers(-512, 7)), (998, 7));
        assert_eq!(resumed(&registers(-514, 7)), (998, 7));
        assert_eq!(resumed(&registers(-516, 35)), (1000, EINTR));
        assert_eq!(resumed(&registers(5, 0)), (1000, 5));
        assert_eq!(resumed(&registers(-512, -1)), (1000, (-512_i64).cast_unsigned()));
    }

    #[test]
    fn a_frame_fits_its_room_and_names_its_state() {
        let mut xstate = vec![0; 832];
        xstate[SW_BYTES] = 7;
        let frame = frame(0x7000, &registers(1, -1), 0x10, &xstate);
        assert!(frame.len() as u64 <= size(xstate.len()));
        assert_eq!(frame[SIGMASK], 0x10);
        assert_eq!(frame[320 + SW_BYTES..][..4], FP_XSTATE_MAGIC1.to_le_bytes());
        assert_eq!(frame[320 + SW_BYTES + 8], 7);
        assert_eq!(frame[frame.len() - 4..], FP_XSTATE_MAGIC2.to_le_bytes());
        assert_eq!(frame[MCONTEXT + 184..][..8], (0x7000_u64 + 320).to_le_bytes());
    }
}

//! How long a thread may keep a processor before the next one has its turn: who asks for less comes first (Linux 6.12). Called by keepers
//! for themselves, and by the daemon for sessions.

use std::time::Duration;

/// The shortest slice that the kernel accepts.
const SHORT_SLICE: Duration = Duration::from_micros(100);
/// `SCHED_FLAG_RESET_ON_FORK`.
const NOT_FOR_CHILDREN: u64 = 1;

/// Lets the calling thread get a processor sooner, for a short piece of work.
pub fn shorten_slices() {
    set_slice(0, SHORT_SLICE);
}

/// Sets the length of a thread's slices; zero restores the default. The niceness does not change.
pub fn set_slice(thread: i32, slice: Duration) {
    let mut attributes = SchedulingAttributes::default();
    let size = u32::try_from(size_of::<SchedulingAttributes>()).unwrap_or_default();
    // SAFETY: the kernel fills in at most `size` bytes, or reads them, during the calls.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) != 0 {
            return;
        }
        attributes.runtime = u64::try_from(slice.as_nanos()).unwrap_or_default();
        if slice == SHORT_SLICE {
            attributes.flags |= NOT_FOR_CHILDREN;
        }
        libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0);
    }
}

/// The first version of the kernel's structure, which it still accepts.
#[repr(C)]
#[derive(Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn a_slice_is_made_longer_and_usual_again() {
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        let nice = getpriority_process(None).unwrap();
        set_slice(me, Duration::from_millis(20));
        set_slice(me, Duration::ZERO);
        assert_eq!(getpriority_process(None).unwrap(), nice, "the niceness is left as it is");
    }
}

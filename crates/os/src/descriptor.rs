//! Descriptors the runtime waits on: one place for the one unsafe call that takes.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// Something that is one descriptor for as long as it lives.
///
/// # Safety
/// `as_raw_fd` returns the same open descriptor until the value is dropped.
pub unsafe trait Descriptor: AsRawFd {}

// SAFETY: both are one open descriptor by definition.
unsafe impl Descriptor for OwnedFd {}
// SAFETY: as above.
unsafe impl Descriptor for BorrowedFd<'_> {}

/// Registers a descriptor. One that is only read should be registered for that only: readiness to write would wake us each
/// time the other side reads.
pub fn register<D: Descriptor>(descriptor: D, interest: Interest) -> io::Result<AsyncFd<D>> {
    // SAFETY: the descriptor stays open and the same while it is registered, which is what `Descriptor` promises.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}

/// Registers a descriptor to be read without blocking.
pub fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // A pidfd has no such mode and needs none: it is never read.
    if let Err(error) = rustix::io::ioctl_fionbio(&descriptor, true)
        && error != rustix::io::Errno::NOTTY
    {
        return Err(error.into());
    }
    register(descriptor, Interest::READABLE)
}

/// Waits until a descriptor can be written, registering it only meanwhile.
pub async fn until_writable(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    register(descriptor, Interest::WRITABLE)?.writable().await?.retain_ready();
    Ok(())
}

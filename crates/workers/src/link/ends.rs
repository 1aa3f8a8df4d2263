//! The descriptors of a worker: our ends and its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Control, Error};

/// More than the default, so that output finds room while we pause in a burst.
const OUTPUT_PIPE_BYTES: usize = 256 << 10;

/// Our ends of a worker's descriptors.
pub(super) struct Ends {
    pub(super) requests: OwnedFd,
    pub(super) replies: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) dump: OwnedFd,
    pub(super) control: Control,
}

/// The worker's ends: requests, replies, stdout, stderr, dump, control.
pub(super) struct TheirEnds([OwnedFd; 6]);

impl TheirEnds {
    pub(super) fn each(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }
}

impl Ends {
    pub(super) fn new() -> Result<(Self, TheirEnds), Error> {
        let (requests_end, requests) = pipe()?;
        let (replies, replies_end) = pipe()?;
        let (stdout, stdout_end) = pipe()?;
        let (stderr, stderr_end) = pipe()?;
        let (dump, dump_end) = pipe()?;
        for end in [&stdout, &stderr] {
            // More room while we pause in a burst. The kernel may refuse, the default will do.
            let _refused = rustix::pipe::fcntl_setpipe_size(end, OUTPUT_PIPE_BYTES);
        }
        let (control, control_end) = Control::pair().map_err(Error::Descriptors)?;
        for end in [&requests, &dump] {
            rustix::io::ioctl_fionbio(end, true).map_err(|e| Error::Descriptors(e.into()))?;
        }
        let ours = Self { requests, replies, stdout, stderr, dump, control };
        Ok((ours, TheirEnds([requests_end, replies_end, stdout_end, stderr_end, dump_end, control_end])))
    }
}

pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| Error::Descriptors(e.into()))
}

//! A `SOCK_SEQPACKET` socket as the daemon uses it: datagrams with descriptors and kernel-given credentials, awaited.
//!
//! Used for templates, workers, frozen copies, keepers and the nursery. The system calls are `keeper::datagram`'s.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::io::unix::AsyncFd;

use pylair_keeper::datagram::{self, Ucred};
use pylair_os::descriptor::readable;

/// Longer than any datagram either side sends.
const MAX_DATAGRAM_BYTES: usize = 64 << 10;

/// How long a helper process may take to answer before it counts as broken. Generous: the machine may be busy.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A datagram that was received, with what the kernel says about its sender.
#[derive(Debug)]
pub struct Datagram {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
    pub credentials: Option<Ucred>,
    pub pidfd: Option<OwnedFd>,
}

impl Datagram {
    /// The sender, by kernel-given credentials: its pid in our namespace and a pidfd that cannot come to mean another process.
    pub fn sender(&mut self) -> io::Result<(i32, OwnedFd)> {
        let no_sender = || io::Error::new(io::ErrorKind::PermissionDenied, "the sender did not prove who it is");
        let pid = self.credentials.as_ref().ok_or_else(no_sender)?.pid;
        if let Some(pidfd) = self.pidfd.take() {
            return Ok((pid, pidfd));
        }
        // Before Linux 6.5. The sender holds the other end of this socket while we open it by pid.
        let pid_ = rustix::process::Pid::from_raw(pid).ok_or_else(no_sender)?;
        Ok((pid, rustix::process::pidfd_open(pid_, rustix::process::PidfdFlags::empty())?))
    }
}

#[derive(Debug)]
pub struct Control(AsyncFd<OwnedFd>);

impl Control {
    /// Takes over a socket: non-blocking from here on.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self(readable(socket)?))
    }

    /// A connected pair: ours, set to receive credentials, and the other side's.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        datagram::pass_credentials(&ours)?;
        Ok((Self::new(ours)?, theirs))
    }

    /// Sends at once. A full socket is an error: our datagrams are few and small, so a reader that far behind is stuck.
    pub fn send<T: Serialize>(&self, message: &T, descriptors: &[BorrowedFd]) -> io::Result<()> {
        self.send_bytes(&serde_json::to_vec(message)?, descriptors)
    }

    pub fn send_bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd]) -> io::Result<()> {
        datagram::send_datagram(&self.0, bytes, descriptors)
    }

    /// Whether nobody has the other end any more.
    pub fn is_hung_up(&self) -> bool {
        let mut poll = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::empty())];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(1))
    }

    /// The next datagram; an empty one means that the other side is gone. Cancel-safe.
    pub async fn receive(&self) -> io::Result<Datagram> {
        loop {
            let mut guard = self.0.readable().await?;
            // Not before there is something: this future is made and dropped many times for each datagram that comes.
            let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
            let received = guard.try_io(|inner| {
                datagram::recv_datagram(inner, &mut buffer).map(|datagram| Datagram {
                    bytes: datagram.bytes.to_vec(),
                    descriptors: datagram.fds,
                    credentials: datagram.credentials,
                    pidfd: datagram.pidfd,
                })
            });
            match received {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// The next datagram as a message, within the usual time.
    pub async fn receive_message<T: DeserializeOwned>(&self) -> io::Result<(T, Datagram)> {
        let datagram = tokio::time::timeout(ANSWER_TIMEOUT, self.receive())
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))??;
        if datagram.bytes.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the process is gone"));
        }
        let message = serde_json::from_slice(&datagram.bytes)?;
        Ok((message, datagram))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Control {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

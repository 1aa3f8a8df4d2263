//! Datagrams with descriptors over `SOCK_SEQPACKET` Unix sockets.
//!
//! The daemon, the nursery and the keepers all talk this way. Blocking is the socket's business: on a nonblocking one both
//! functions return `WouldBlock`. Who sent a datagram is only ever taken from what the kernel attached to it.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Maximum number of descriptors in one datagram.
pub const MAX_DESCRIPTORS: usize = 16;

// Not in every libc the crate knows; the numbers are the same on x86_64 and aarch64.
const SO_PASSPIDFD: libc::c_int = 76;
const SCM_PIDFD: libc::c_int = 4;

/// One received datagram. Descriptors that are not taken out are closed when it is dropped.
#[derive(Debug)]
pub struct Datagram<'buffer> {
    pub bytes: &'buffer [u8],
    pub fds: Vec<OwnedFd>,
    /// The sender as this process sees it. Only after [`pass_credentials`], and only for datagrams sent after it.
    pub credentials: Option<Ucred>,
    /// The sender again, safe from pid reuse. Linux 6.5 and later.
    pub pidfd: Option<OwnedFd>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ucred {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

/// Sends `bytes` as one datagram, with at most [`MAX_DESCRIPTORS`] descriptors.
pub fn send_datagram(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send(socket.as_fd(), bytes, fds, 0)
}

/// Like [`send_datagram`], but never blocks, whatever the mode of the socket.
pub fn try_send_datagram(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send(socket.as_fd(), bytes, fds, libc::MSG_DONTWAIT)
}

/// Receives one datagram into `buffer`.
///
/// A closed peer gives `UnexpectedEof` (or `ConnectionReset`, if it left data of ours unread). A datagram that does not fit,
/// or has too many descriptors, gives `InvalidData`, and its descriptors are closed.
pub fn recv_datagram(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Datagram<'_>> {
    let mut control = ControlBuffer::new();
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = empty_message();
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr();
    message.msg_controllen = ControlBuffer::BYTES as _;

    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the message points at buffers that outlive the call and at nothing else.
    let received = retry(|| unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_CMSG_CLOEXEC) })?;

    // The descriptors are open in this process already, so they are collected before the datagram can be refused.
    let mut datagram = Datagram { bytes: &[], fds: Vec::new(), credentials: None, pidfd: None };
    take_ancillary(&message, &mut datagram);
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        let why = "its descriptors could not be taken: too many were sent, or this process has as many as it may";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "datagram was truncated"));
    }
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    datagram.bytes = &buffer[..received];
    Ok(datagram)
}

/// Makes the kernel attach the sender's credentials, and where it can a pidfd, to everything sent to `socket` from now on.
/// Call it before the other end is given away.
pub fn pass_credentials(socket: impl AsFd) -> io::Result<()> {
    set_flag(socket.as_fd(), libc::SO_PASSCRED)?;
    match set_flag(socket.as_fd(), SO_PASSPIDFD) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        done => done,
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: libc::c_int) -> io::Result<()> {
    if fds.len() > MAX_DESCRIPTORS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one datagram"));
    }
    let mut control = ControlBuffer::new();
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = empty_message();
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        put_descriptors(&mut message, &mut control, fds);
    }
    // SAFETY: the message points at buffers that outlive the call and at nothing else.
    let sent = retry(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | flags) })?;
    debug_assert_eq!(sent, bytes.len(), "a datagram is sent whole or not at all");
    Ok(())
}

fn put_descriptors(message: &mut libc::msghdr, control: &mut ControlBuffer, fds: &[BorrowedFd<'_>]) {
    let bytes = wire_size::<RawFd>(fds.len());
    message.msg_control = control.as_mut_ptr();
    // SAFETY: the buffer has room for MAX_DESCRIPTORS, which the caller checked, so the first header and its data lie within.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
        let data = libc::CMSG_DATA(header);
        for (index, fd) in fds.iter().enumerate() {
            data.add(index * mem::size_of::<RawFd>()).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        }
    }
}

fn take_ancillary(message: &libc::msghdr, datagram: &mut Datagram<'_>) {
    // SAFETY: the kernel filled the control buffer and set its length; the macros walk exactly that, and every descriptor found
    // was made for this process and belongs to nobody else yet.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let bytes = (*header).cmsg_len as usize - (data as usize - header as usize);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..bytes / mem::size_of::<RawFd>() {
                        let fd = data.add(index * mem::size_of::<RawFd>()).cast::<RawFd>().read_unaligned();
                        datagram.fds.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    let ucred = data.cast::<libc::ucred>().read_unaligned();
                    // Pid 0 means that the kernel does not know the sender, or that this process cannot see it.
                    datagram.credentials =
                        (ucred.pid != 0).then_some(Ucred { pid: ucred.pid, uid: ucred.uid, gid: ucred.gid });
                }
                (libc::SOL_SOCKET, SCM_PIDFD) => {
                    let fd = data.cast::<RawFd>().read_unaligned();
                    // A negative number is an error code, for example because the sender was reaped.
                    datagram.pidfd = (fd >= 0).then(|| OwnedFd::from_raw_fd(fd));
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// A buffer for one control message of each known kind, aligned for their headers.
#[repr(C, align(8))]
struct ControlBuffer([MaybeUninit<u8>; Self::BYTES]);

impl ControlBuffer {
    // SAFETY: CMSG_SPACE only computes.
    const BYTES: usize = unsafe {
        libc::CMSG_SPACE(wire_size::<RawFd>(MAX_DESCRIPTORS))
            + libc::CMSG_SPACE(wire_size::<libc::ucred>(1))
            + libc::CMSG_SPACE(wire_size::<RawFd>(1))
    } as usize;

    fn new() -> Self {
        // CMSG_NXTHDR looks at the next header's length while a message is built, so it starts as zeros.
        Self([MaybeUninit::zeroed(); Self::BYTES])
    }

    fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a handful of descriptors")]
const fn wire_size<T>(count: usize) -> u32 {
    (mem::size_of::<T>() * count) as u32
}

fn empty_message() -> libc::msghdr {
    // SAFETY: zeros are a valid msghdr; with musl it has private padding, so it cannot be written out.
    unsafe { mem::zeroed() }
}

fn set_flag(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is one int, read during the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const on).cast(),
            wire_size::<libc::c_int>(1),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Ok(bytes);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::{Read, Write};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn descriptors_arrive_in_order_and_close_on_exec() {
        let (here, there) = pair();
        let (mut reader, writer) = io::pipe().unwrap();
        send_datagram(&here, b"two", &[writer.as_fd(), here.as_fd()]).unwrap();
        drop(writer);

        let mut buffer = [0; 16];
        let datagram = recv_datagram(&there, &mut buffer).unwrap();
        assert_eq!(datagram.bytes, b"two");
        assert!(datagram.credentials.is_none() && datagram.pidfd.is_none());
        for fd in &datagram.fds {
            assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        let [writer, _socket] = <[OwnedFd; 2]>::try_from(datagram.fds).unwrap();
        std::fs::File::from(writer).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn the_sender_is_known() {
        let (here, there) = pair();
        pass_credentials(&there).unwrap();
        let sixteen = [here.as_fd(); MAX_DESCRIPTORS];
        send_datagram(&here, b"x", &sixteen).unwrap();

        let mut buffer = [0; 16];
        let datagram = recv_datagram(&there, &mut buffer).unwrap();
        assert_eq!(datagram.fds.len(), MAX_DESCRIPTORS);
        let sender = datagram.credentials.unwrap();
        assert_eq!(u32::try_from(sender.pid).unwrap(), std::process::id());
        assert_eq!(sender.uid, rustix::process::getuid().as_raw());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (here, there) = pair();
        send_datagram(&here, b"too long", &[here.as_fd()]).unwrap();
        let error = recv_datagram(&there, &mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);

        let seventeen = [here.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(send_datagram(&here, b"x", &seventeen).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn nothing_there_blocks_only_who_wants_to() {
        let (here, there) = pair();
        rustix::io::ioctl_fionbio(&there, true).unwrap();
        assert_eq!(recv_datagram(&there, &mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);

        let full = loop {
            if let Err(error) = try_send_datagram(&here, &[0; 1024], &[]) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_closed_peer_is_the_end() {
        let (here, there) = pair();
        drop(here);
        assert_eq!(recv_datagram(&there, &mut [0; 4]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(send_datagram(&there, b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}

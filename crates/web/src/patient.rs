//! The writing side of a connection: a peer that takes nothing for a while, or next to nothing, is dropped with whatever was kept for it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Sleep,
};

/// While it keeps us waiting a peer has to take more than this, in bytes a second.
const SLOWEST: u64 = 1024;
/// What the kernel keeps of a connection in each direction: without it, it would be megabytes that nobody counts.
const KERNEL_BYTES: usize = 256 << 10;

pub(super) struct Patient {
    stream: TcpStream,
    limit: Duration,
    /// Since when nothing was taken, and the end of patience with that.
    stalled: Option<(Instant, Pin<Box<Sleep>>)>,
    /// How long was waited, and how much was taken meanwhile, since that was last judged.
    waited: Duration,
    taken: u64,
}

impl Patient {
    pub(super) fn new(stream: TcpStream, limit: Duration) -> Self {
        // Answers are small and somebody waits for each. Where one of these is refused it is only slower, or larger.
        let _slower = stream.set_nodelay(true);
        let _larger = rustix::net::sockopt::set_socket_send_buffer_size(&stream, KERNEL_BYTES);
        let _larger = rustix::net::sockopt::set_socket_recv_buffer_size(&stream, KERNEL_BYTES);
        Self { stream, limit, stalled: None, waited: Duration::ZERO, taken: 0 }
    }

    pub(super) async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.peek(buffer).await
    }

    fn judge(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match polled {
            Poll::Pending => {
                let limit = self.limit;
                let begin = || (Instant::now(), Box::pin(tokio::time::sleep(limit)));
                let (_, patience) = self.stalled.get_or_insert_with(begin);
                if patience.as_mut().poll(context).is_ready() { self.give_up() } else { Poll::Pending }
            }
            Poll::Ready(Ok(count)) => {
                self.taken += count as u64;
                if let Some((since, _)) = self.stalled.take() {
                    self.waited += since.elapsed();
                }
                if self.waited >= self.limit {
                    if self.taken < SLOWEST * self.waited.as_secs() {
                        return self.give_up();
                    }
                    (self.waited, self.taken) = (Duration::ZERO, 0);
                }
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }

    fn give_up(&self) -> Poll<io::Result<usize>> {
        // Otherwise the kernel would go on offering what is left.
        let _kept = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    async fn pair(limit: Duration) -> (Patient, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Patient::new(listener.accept().await.unwrap().0, limit), peer)
    }

    #[tokio::test]
    async fn whoever_takes_nothing_is_given_up_and_whoever_does_is_not() {
        let (mut patient, peer) = pair(Duration::from_millis(50)).await;
        let much = vec![0; 64 << 20];
        let written = tokio::time::timeout(Duration::from_mins(1), patient.write_all(&much)).await.unwrap();
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop((patient, peer));
        let (mut patient, mut peer) = pair(Duration::from_mins(1)).await;
        let reading = pylair_os::event_loop::spawn(async move {
            let mut read = vec![0; much.len()];
            peer.read_exact(&mut read).await
        });
        patient.write_all(&vec![0; 64 << 20]).await.unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), 64 << 20);
    }
}

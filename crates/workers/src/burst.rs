//! When to let a pipe fill for a moment before reading it again.

use std::time::{Duration, Instant};

use pylair_output::Stream;

/// A stream that is being written line by line, fast. Each write into an empty pipe wakes us, which costs the writer more than
/// the write: letting the pipe fill for a moment makes a program that prints in a loop twice as fast.
#[derive(Debug)]
pub struct Burst {
    stream: Stream,
    reads: u32,
    last: Instant,
    /// Not before then.
    pub pause_until: Option<Instant>,
}

impl Burst {
    const READS: u32 = 16;
    const GAP: Duration = Duration::from_millis(3);
    const PAUSE: Duration = Duration::from_millis(1);

    pub fn new() -> Self {
        Self { stream: Stream::Stdout, reads: 0, last: Instant::now(), pause_until: None }
    }

    /// Output was read: `count` bytes of at most `room`.
    pub fn note(&mut self, stream: Stream, count: usize, room: usize) {
        let now = Instant::now();
        // A worker that switches streams waits for us to read, and must not wait long.
        if stream == self.stream && now.duration_since(self.last) < Self::GAP {
            self.reads = self.reads.saturating_add(1);
        } else {
            self.reads = 0;
        }
        self.stream = stream;
        self.last = now;
        if self.reads >= Self::READS && count < room {
            self.pause_until = Some(now + Self::PAUSE);
        }
    }
}

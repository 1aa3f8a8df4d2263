//! Bodies on their way in and out: they have to come in time, are counted while they are here, and what a request holds it holds until its
//! answer is sent. Called by `door`.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::body::{Body, Bytes, HttpBody};
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use super::guests::Asking;
use pylair_core::visit::Token;
use pylair_os::budget::Taken;

/// After a while a body has to come faster than this, in bytes a second.
const SLOWEST_BODY: u64 = 1024;
/// What is handed over at once. The connection takes the next when most of this was sent, so that an answer is over when it was.
const SLICE_BYTES: usize = 32 << 10;

/// What became of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Well,
    TooSlow,
    /// There was no room for it.
    TooMuch,
}

/// A body that is being read.
#[derive(Debug, Clone, Default)]
pub(super) struct Incoming {
    fate: Arc<AtomicU8>,
    /// What it takes; none for what is not kept.
    taken: Option<Arc<Mutex<Taken>>>,
}

impl Incoming {
    pub(super) fn new(taken: Option<Taken>) -> Self {
        Self { fate: Arc::default(), taken: taken.map(|taken| Arc::new(Mutex::new(taken))) }
    }

    pub(super) fn fate(&self) -> Fate {
        match self.fate.load(Ordering::Relaxed) {
            0 => Fate::Well,
            1 => Fate::TooSlow,
            _ => Fate::TooMuch,
        }
    }

    fn end(&self, fate: Fate) -> axum::Error {
        self.fate.store(fate as u8, Ordering::Relaxed);
        axum::Error::new(std::io::Error::from(std::io::ErrorKind::TimedOut))
    }

    fn add(&self, bytes: usize) -> bool {
        let Some(taken) = &self.taken else { return true };
        taken.lock().unwrap_or_else(PoisonError::into_inner).add(bytes as u64)
    }

    /// The body, which may not stop coming for long, nor be more than there is room for.
    pub(super) fn within(self, body: Body, limit: Duration) -> Body {
        if body.is_end_stream() {
            return body;
        }
        let started = Instant::now();
        let chunks = body.into_data_stream();
        let stream = futures::stream::unfold((chunks, 0_u64, self), move |(mut chunks, bytes, me)| async move {
            if me.fate() != Fate::Well {
                return None;
            }
            let Ok(next) = tokio::time::timeout(limit, chunks.next()).await else {
                return Some((Err(me.end(Fate::TooSlow)), (chunks, bytes, me)));
            };
            let length = next.as_ref().and_then(|next| next.as_ref().ok()).map_or(0, Bytes::len);
            let bytes = bytes + length as u64;
            let late = started.elapsed().saturating_sub(limit).as_secs();
            if bytes < late * SLOWEST_BODY {
                return Some((Err(me.end(Fate::TooSlow)), (chunks, bytes, me)));
            }
            if !me.add(length) {
                return Some((Err(me.end(Fate::TooMuch)), (chunks, bytes, me)));
            }
            next.map(|next| (next, (chunks, bytes, me)))
        });
        Body::from_stream(stream)
    }
}

/// What a request holds until its answer is sent.
#[derive(Debug)]
pub(super) struct Held {
    _permit: OwnedSemaphorePermit,
    _place: Taken,
    _asking: Option<Asking>,
    pub(super) body: Incoming,
}

impl Held {
    pub(super) fn new(permit: OwnedSemaphorePermit, place: Taken, asking: Option<Asking>, body: Incoming) -> Self {
        Self { _permit: permit, _place: place, _asking: asking, body }
    }
}

/// An answer that ends when its token does, and gives back what it holds when it is over.
pub(super) struct Outgoing {
    body: Body,
    /// What has come of it and was not handed over.
    rest: Bytes,
    /// Ends what has no length of its own.
    welcome_ends: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The room that the rest of it takes, if it is all here.
    waiting: Option<Taken>,
    _held: Held,
}

impl Outgoing {
    pub(super) fn new(body: Body, token: &Token, waiting: Option<Taken>, held: Held) -> Self {
        let welcome_ends = body.size_hint().exact().is_none().then(|| {
            let over = token.revoked.clone().cancelled_owned();
            let expires = token.expires.map(|expires| {
                let left = expires.duration_since(jiff::Timestamp::now());
                tokio::time::sleep(left.unsigned_abs().min(Duration::from_hours(24 * 365)))
            });
            Box::pin(async move {
                match expires {
                    Some(expires) => tokio::select! { () = over => {}, () = expires => {} },
                    None => over.await,
                }
            }) as Pin<Box<dyn Future<Output = ()> + Send>>
        });
        Self { body, rest: Bytes::new(), welcome_ends, waiting, _held: held }
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            if let Some(ends) = &mut self.welcome_ends
                && ends.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(None);
            }
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                over => return Poll::Ready(over),
            }
        }
        let length = self.rest.len().min(SLICE_BYTES);
        let slice = self.rest.split_to(length);
        if let Some(waiting) = &mut self.waiting {
            waiting.give_back(length as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use pylair_os::budget::Pool;

    #[tokio::test]
    async fn a_body_takes_room_while_it_is_here_and_ends_where_there_is_none() {
        let (own, other): (Arc<str>, Arc<str>) = ("me".into(), "other".into());
        let pool = Pool::new("bytes", 100, &own);
        let incoming = Incoming::new(pool.take(&other, 0));
        let chunks = || futures::stream::iter((0..4).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(&[0; 20]))));
        let body = incoming.clone().within(Body::from_stream(chunks()), Duration::from_mins(1));
        let mut read = body.into_data_stream();
        for taken in [20, 40] {
            assert!(read.next().await.unwrap().is_ok());
            assert_eq!(pool.usage("other").yours, taken);
        }
        assert!(read.next().await.unwrap().is_err() && read.next().await.is_none());
        assert_eq!(incoming.fate(), Fate::TooMuch);
        drop((read, incoming));
        assert_eq!(pool.usage("other").yours, 0);
        let free = Incoming::default().within(Body::from_stream(chunks()), Duration::from_mins(1));
        assert_eq!(axum::body::to_bytes(free, 1000).await.unwrap().len(), 80);
    }
}

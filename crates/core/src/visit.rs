//! Somebody who was let in with a token, as one door tells the other: who it is, and that the answer to it is large.
//!
//! The HTTP door puts a [`Visit`] and a [`LargeAnswer`] into each request that it lets in; whoever answers it finds them there.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::caller::{Credential, Scope};
use pylair_os::{
    budget::{Pool, Taken},
    event_loop,
};

/// What a token opens, and for how long.
#[derive(Debug)]
pub struct Token {
    pub name: Arc<str>,
    pub owner: Arc<str>,
    pub scopes: Vec<Scope>,
    pub expires: Option<Timestamp>,
    /// Cancelled when the token is taken back: streams it opened end.
    pub revoked: CancellationToken,
}

impl Token {
    pub fn is_over(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= Timestamp::now())
    }
}

/// Somebody who was let in: with which token, from where.
#[derive(Debug, Clone)]
pub struct Visit {
    pub token: Arc<Token>,
    pub credential: Arc<Credential>,
    /// Where the bytes of answers to it are counted that it has not read yet.
    pub buffers: Arc<Pool>,
}

/// Said of an answer that is made elsewhere and becomes bytes only when it is sent, with the room it takes until then.
#[derive(Debug, Clone, Default)]
pub struct LargeAnswer(Arc<Announcement>);

#[derive(Default)]
struct Announcement {
    is_made: AtomicBool,
    held: Mutex<Option<Arc<Taken>>>,
    /// Ends when nobody remembers the answer any more.
    forgotten: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl std::fmt::Debug for Announcement {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Announcement").field("is_made", &self.is_made).finish_non_exhaustive()
    }
}

impl LargeAnswer {
    pub fn announce(&self, held: Taken) {
        let held = Arc::new(held);
        if let Some(forgotten) = self.0.forgotten.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let held = held.clone();
            event_loop::spawn(async move {
                forgotten.await;
                drop(held);
            });
        }
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
        self.0.is_made.store(true, Ordering::Relaxed);
    }

    /// Whether it was announced.
    pub fn is_made(&self) -> bool {
        self.0.is_made.load(Ordering::Relaxed)
    }

    /// The answer was sent, and takes no room any more.
    pub fn give_back(&self) {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Whoever makes the answer keeps it until this ends, which is waited for from when it is made.
    pub fn is_remembered_until(&self, forgotten: impl Future<Output = ()> + Send + 'static) {
        *self.0.forgotten.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::pin(forgotten));
    }
}

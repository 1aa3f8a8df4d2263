//! Who sends calls, and the order in which its calls came.
//!
//! A door gives each call a ticket when it arrives. The call hands its ticket on when the session's task has it, so that two calls of
//! one sender to one session reach the task in the order in which they came, however their own work before that is scheduled.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use pylair_os::process::Process;

/// Whose calls to one session run in the order they came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SenderId {
    /// One client on stdio.
    Bridge(u64),
    /// One MCP session over HTTP.
    McpSession(String),
    /// REST and stateless MCP over HTTP: everybody who has this token.
    Token(Arc<str>),
    /// Commands of one process tree: a client's, or those that one shell started.
    Processes(Process),
}

impl SenderId {
    /// The sender of a client on stdio that was just taken over.
    pub fn new_bridge() -> Self {
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Self::Bridge(LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

/// Goes with each request of an MCP session over HTTP: cancelled when that session is over.
#[derive(Debug, Clone)]
pub struct Left(pub CancellationToken);

/// The sender of one call.
#[derive(Debug, Clone)]
pub struct Sender {
    pub id: SenderId,
    /// Cancelled when the sender has left. A call of its that has not begun by then does not begin.
    pub left: CancellationToken,
    ticket: Option<Arc<Ticket>>,
}

impl Sender {
    pub fn new(id: SenderId) -> Self {
        Self { id, left: CancellationToken::new(), ticket: None }
    }

    #[must_use]
    pub fn with_ticket(self, ticket: Option<Arc<Ticket>>) -> Self {
        Self { ticket, ..self }
    }

    /// Waits until the calls that came before this one and mean the same target have passed.
    pub async fn turn(&self) {
        if let Some(ticket) = &self.ticket {
            ticket.turn().await;
        }
    }

    /// The call has found its session; waits until those that came before and found the same one have passed.
    pub async fn turn_at(&self, session: &Arc<str>) {
        if let Some(ticket) = &self.ticket {
            ticket.change(|call| call.session = Some(session.clone()));
            ticket.turn().await;
        }
    }

    /// The session's task has the call, or never will: those that came later go on.
    pub fn pass(&self) {
        if let Some(ticket) = &self.ticket {
            ticket.pass();
        }
    }
}

/// The calls of one sender that have arrived and have not been handed on, oldest first.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// A std mutex: held for a look at a few entries.
    calls: Mutex<Calls>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    waiting: VecDeque<Arrived>,
}

#[derive(Debug)]
struct Arrived {
    number: u64,
    /// The target as the call names it; none until the call was read.
    target: Option<String>,
    session: Option<Arc<str>>,
    /// The name of the session that the call makes.
    makes: Option<String>,
    is_handed_on: bool,
}

impl Arrived {
    /// Whether a call that came later has to wait for this one.
    fn holds_up(&self, later: &Self) -> bool {
        let is_same = self.target == later.target || (self.session.is_some() && self.session == later.session);
        let is_made = self.makes.is_some() && self.makes == later.target;
        self.target.is_none() || is_made || (is_same && !self.is_handed_on)
    }
}

impl Arrivals {
    pub fn arrive(self: &Arc<Self>) -> Arc<Ticket> {
        let mut calls = self.lock();
        let number = calls.next;
        calls.next += 1;
        calls.waiting.push_back(Arrived { number, target: None, session: None, makes: None, is_handed_on: false });
        Arc::new(Ticket { arrivals: self.clone(), number })
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        // Nothing under the lock leaves it half changed.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one call among those of its sender, until it passes.
#[derive(Debug)]
pub struct Ticket {
    arrivals: Arc<Arrivals>,
    number: u64,
}

impl Ticket {
    /// What the call means, as far as that is known before it looks for its target, and the name of the session that it makes.
    pub fn means(&self, target: String, makes: Option<String>) {
        self.change(|call| (call.target, call.makes) = (Some(target), makes));
    }

    fn change(&self, change: impl FnOnce(&mut Arrived)) {
        let mut calls = self.arrivals.lock();
        if let Some(call) = calls.waiting.iter_mut().find(|call| call.number == self.number) {
            change(call);
        }
        let others_wait = calls.waiting.len() > 1;
        drop(calls);
        if others_wait {
            self.arrivals.changed.notify_waiters();
        }
    }

    async fn turn(&self) {
        loop {
            let mut changed = std::pin::pin!(self.arrivals.changed.notified());
            // Registered before looking, so that nothing is missed between the look and the wait.
            changed.as_mut().enable();
            {
                let calls = self.arrivals.lock();
                let Some(own) = calls.waiting.iter().find(|call| call.number == self.number) else { return };
                if !calls.waiting.iter().take_while(|call| call.number < self.number).any(|call| call.holds_up(own)) {
                    return;
                }
            }
            changed.await;
        }
    }

    /// The session's task has the call. Those that came later go on, but for calls to a session that this one makes.
    fn pass(&self) {
        self.change(|call| call.is_handed_on = true);
        let is_making = |call: &Arrived| call.number == self.number && call.makes.is_some();
        if !self.arrivals.lock().waiting.iter().any(is_making) {
            self.end();
        }
    }

    /// The call is over.
    pub fn end(&self) {
        let mut calls = self.arrivals.lock();
        calls.waiting.retain(|call| call.number != self.number);
        let others_wait = !calls.waiting.is_empty();
        drop(calls);
        if others_wait {
            self.arrivals.changed.notify_waiters();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end();
    }
}

/// The arrivals of senders whose calls come on connections of their own.
#[derive(Debug, Default)]
pub struct Senders {
    known: Mutex<HashMap<SenderId, Weak<Arrivals>>>,
}

impl Senders {
    /// The ticket of a call that has just come.
    pub fn arrive(&self, sender: &SenderId) -> Arc<Ticket> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, arrivals| arrivals.strong_count() > 0);
        let arrivals = known.get(sender).and_then(Weak::upgrade).unwrap_or_default();
        known.insert(sender.clone(), Arc::downgrade(&arrivals));
        drop(known);
        arrivals.arrive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_pass_in_the_order_they_came() {
        let arrivals = Arc::new(Arrivals::default());
        let (first, second, other) = (arrivals.arrive(), arrivals.arrive(), arrivals.arrive());
        second.means("main".to_owned(), None);
        let mut turn = Box::pin(second.turn());
        assert!(futures::poll!(&mut turn).is_pending(), "what came first was not read yet");
        first.means("main".to_owned(), None);
        assert!(futures::poll!(&mut turn).is_pending(), "it means the same");
        other.means("lab".to_owned(), None);
        other.turn().await;
        drop(first);
        turn.await;
    }

    #[tokio::test]
    async fn another_name_of_the_same_session_is_found_out() {
        let senders = Senders::default();
        let sender = SenderId::Token("alice".into());
        let call = |target: &str| {
            let ticket = senders.arrive(&sender);
            ticket.means(target.to_owned(), None);
            Sender::new(sender.clone()).with_ticket(Some(ticket))
        };
        let (first, second) = (call("main"), call("abcd2345"));
        let session: Arc<str> = "abcd2345".into();
        first.turn_at(&session).await;
        second.turn().await;
        let mut turn = Box::pin(second.turn_at(&session));
        assert!(futures::poll!(&mut turn).is_pending());
        first.pass();
        turn.await;
    }

    #[tokio::test]
    async fn a_session_that_is_being_made_is_waited_for_by_name() {
        let arrivals = Arc::new(Arrivals::default());
        let (branch, same, made) = (arrivals.arrive(), arrivals.arrive(), arrivals.arrive());
        branch.means("main".to_owned(), Some("twig".to_owned()));
        same.means("main".to_owned(), None);
        made.means("twig".to_owned(), None);
        branch.pass();
        same.turn().await;
        let mut turn = Box::pin(made.turn());
        assert!(futures::poll!(&mut turn).is_pending());
        branch.end();
        turn.await;
    }
}

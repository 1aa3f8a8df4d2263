//! Reading forward: pages of events, saved or not, and followers that go on from there with what is recorded
//! live. Only the journal's handle makes them.

use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError};

use super::{Error, Event, EventKind, JournalState, now};

/// Events per read of a follower that catches up.
const REPLAY_EVENTS: usize = 256;

#[derive(Debug)]
pub(super) struct Follower {
    shared: Arc<JournalState>,
    owner: Option<Arc<str>>,
    target: Option<Arc<str>>,
    /// Everything up to here was seen.
    seq: u64,
    replayed: std::vec::IntoIter<Arc<Event>>,
    /// There may be more to replay before the channel is read.
    behind: bool,
    lagged: bool,
    live: broadcast::Receiver<Arc<Event>>,
}

impl Follower {
    /// None when the journal is closed.
    pub(super) fn new(
        shared: &Arc<JournalState>,
        owner: Option<&str>,
        target: Option<&str>,
        after_seq: u64,
    ) -> Option<Self> {
        // Subscribed before anything is read: an event is in the first read or in the channel.
        let live = shared.lock().live.as_ref()?.subscribe();
        Some(Self {
            shared: Arc::clone(shared),
            owner: owner.map(Arc::from),
            target: target.map(Arc::from),
            seq: after_seq,
            replayed: Vec::new().into_iter(),
            behind: true,
            lagged: false,
            live,
        })
    }

    /// None at shutdown.
    pub(super) async fn next(&mut self) -> Result<Option<Arc<Event>>, Error> {
        loop {
            if let Some(event) = self.replayed.next() {
                return Ok(Some(event));
            }
            if self.behind {
                if std::mem::take(&mut self.lagged)
                    && let Some(gap) = self.gap()
                {
                    return Ok(Some(gap));
                }
                let (owner, target) = (self.owner.as_deref(), self.target.as_deref());
                let page = page(&self.shared, owner, target, self.seq, REPLAY_EVENTS).await?;
                self.seq = page.last_seq;
                self.behind = page.more;
                self.replayed = page.events.into_iter();
                continue;
            }
            match self.live.recv().await {
                Ok(event) => {
                    let is_new = event.seq > self.seq;
                    self.seq = self.seq.max(event.seq);
                    if is_new && event.is_of(self.owner.as_deref(), self.target.as_deref()) {
                        return Ok(Some(event));
                    }
                }
                Err(RecvError::Lagged(_)) => {
                    self.behind = true;
                    self.lagged = true;
                }
                Err(RecvError::Closed) => return Ok(None),
            }
        }
    }

    /// Says that events were trimmed before this follower came to read them.
    fn gap(&mut self) -> Option<Arc<Event>> {
        let trimmed = {
            let usage = self.shared.store.usage();
            match &self.owner {
                Some(owner) => usage.trimmed(owner).map_or(0, |trimmed| trimmed.seq),
                None => usage.trimmed_of_all(),
            }
        };
        let dropped = trimmed.checked_sub(self.seq).filter(|&dropped| dropped > 0)?;
        // Of one owner everything up to there is gone; among those of others there may be some that it has not read yet.
        if self.owner.is_some() {
            self.seq = trimmed;
        }
        let name = |name: &Option<Arc<str>>| name.clone().unwrap_or_default();
        Some(Arc::new(Event {
            seq: self.seq,
            at: now(),
            owner: name(&self.owner),
            target: name(&self.target),
            kind: EventKind::Gap { dropped },
        }))
    }
}

#[derive(Debug)]
pub(super) struct Page {
    pub(super) events: Vec<Arc<Event>>,
    /// Where the next page begins.
    last_seq: u64,
    more: bool,
}

pub(super) async fn page(
    shared: &JournalState,
    owner: Option<&str>,
    target: Option<&str>,
    after: u64,
    limit: usize,
) -> Result<Page, Error> {
    // Memory first: what is saved meanwhile is then read twice, not missed, and `first_unsaved` sorts
    // that out.
    let (unsaved, first_unsaved) = {
        let state = shared.lock();
        let wanted = |event: &&Arc<Event>| event.seq > after && event.is_of(owner, target);
        // One more than can be given tells whether there is more.
        let unsaved: Vec<_> = state.unsaved().filter(wanted).take(limit.saturating_add(1)).cloned().collect();
        (unsaved, state.first_unsaved())
    };
    let stored = shared.store.first(owner, target, after, first_unsaved, limit).await?;
    let mut page =
        Page { last_seq: stored.last_seq.unwrap_or(after), more: stored.found == limit, events: stored.events };
    if !page.more {
        let room = limit - stored.found;
        page.more = unsaved.len() > room;
        page.events.extend(unsaved.into_iter().take(room));
        page.last_seq = page.events.last().map_or(page.last_seq, |last| last.seq.max(page.last_seq));
    }
    Ok(page)
}

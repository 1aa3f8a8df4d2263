//! Sessions that end and are to come back: saved when the daemon leaves, or when nobody has used them for long.

use std::{fs, io, time::Duration};

use futures::StreamExt;

use serde::{Deserialize, Serialize};

use super::{
    Command, Session, Sessions, State,
    saved::{Definition, NotSaved, Pending, Saved},
    task::Abandoned,
};
use pylair_journal::EventKind;

/// Time for pickling everything when the daemon leaves, which does not wait for ever.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same where nobody waits, unless somebody comes just then.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum number of idle sessions that are saved at the same time.
const SAVED_AT_ONCE: usize = 2;
/// Maximum number of saved sessions of one owner, and of bytes they have together; the newest stays in any case.
const MAX_STOPPED: usize = 50;
const MAX_STOPPED_BYTES: u64 = 4 << 30;
/// How many variables are named that could not be saved.
const NAMED: usize = 10;

/// Something that is lost when the daemon leaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsaved {
    pub what: String,
    pub why: String,
}

impl Unsaved {
    fn of(session: &Session, what: &str, why: String) -> Self {
        Self { what: format!("{what} of session {} ({})", session.info.name, session.info.owner), why }
    }
}

impl Session {
    /// Ends the running cell and goes back to the newest checkpoint, if there is one. No cell is begun any more.
    async fn abandon_cell(&self, reason: &str) -> Abandoned {
        let reason = reason.to_owned();
        self.send(|answer| Command::Abandon { reason, answer }).await.unwrap_or_default()
    }

    /// If nobody has used it for longer than this: how often it had been used.
    fn unused_for(&self, time: Duration) -> Option<u64> {
        let live = self.live.lock().expect("no panic while locked");
        (live.state != State::Busy && live.last_used.elapsed() > time).then_some(live.uses)
    }

    /// Ends it unless it was used since. Returns whether it ends.
    async fn leave(&self, uses: u64, reason: &str) -> bool {
        let reason = reason.to_owned();
        self.send(|answer| Command::Leave { uses, reason, answer }).await.unwrap_or(true)
    }
}

impl Sessions {
    /// The daemon is leaving: sessions are saved, so that its successor can bring them back. Those that are busy are saved as they were
    /// at their newest checkpoint. Returns what is lost.
    pub async fn save_all(&self, reason: &str) -> Vec<Unsaved> {
        let sessions: Vec<_> = {
            let registry = self.registry.lock().expect("no panic while locked");
            registry.open.values().cloned().collect()
        };
        let saving = sessions.iter().map(|session| self.save_for_later(session, reason));
        futures::future::join_all(saving).await.into_iter().flatten().collect()
    }

    /// Saves a session for the next daemon. Returns what is lost.
    async fn save_for_later(&self, session: &Session, reason: &str) -> Vec<Unsaved> {
        if session.ending.closing.is_cancelled() {
            return Vec::new();
        }
        let mut unsaved = Vec::new();
        let is_fresh = is_fresh(session);
        let Abandoned { mut notes, is_lost } =
            if is_fresh { Abandoned::default() } else { session.abandon_cell(reason).await };
        if is_lost && session.holds() {
            let why = "a cell was running, and there was no checkpoint to save them from";
            unsaved.push(Unsaved::of(session, "the variables", why.to_owned()));
        }
        let saved = if is_lost {
            Ok((session.info.definition.keep, Vec::new()))
        } else {
            self.save_away(session, LEAVE_TIMEOUT).await
        };
        let comes_back = match saved {
            Ok((comes_back, lost)) => {
                unsaved.extend(not_saved(session, &lost));
                comes_back
            }
            Err(why) => {
                tracing::warn!(why, session = %session.info.name, "its variables could not be saved");
                notes.push(format!("its variables could not be saved: {why}"));
                unsaved.push(Unsaved::of(session, "the variables", why));
                true
            }
        };
        if comes_back {
            session.keep_files(true);
            if let Err(error) = self.write_definition(Definition { notes, ..session.definition() }).await {
                unsaved.push(Unsaved::of(session, "the definition", error.to_string()));
            }
        }
        unsaved
    }

    /// Saves and ends sessions that nobody has used for longer than they may stay, or than `most`. They come back when they are next used.
    pub async fn end_idle(&self, most: Duration) {
        let expired: Vec<_> = {
            let registry = self.registry.lock().expect("no panic while locked");
            let is_expired = |session: &&Session| session.unused_for(session.info.ttl.min(most)).is_some();
            registry.open.values().filter(is_expired).cloned().collect()
        };
        let ending = futures::stream::iter(&expired);
        ending.for_each_concurrent(SAVED_AT_ONCE, |session| self.end_expired(session, most)).await;
    }

    async fn end_expired(&self, session: &Session, most: Duration) {
        // Whoever wants it back waits until it is whole.
        let turn = self.reviving.take(&*session.info.handle).await;
        let time = session.info.ttl.min(most);
        let Some(uses) = session.unused_for(time) else { return };
        let reason = format!("nobody used it for {} s", time.as_secs());
        let comes_back = match self.save_away(session, IDLE_TIMEOUT).await {
            Ok((comes_back, _lost)) => comes_back,
            Err(why) => {
                // It goes on with what it has, and saving it was a use.
                tracing::warn!(why, session = %session.info.name, "an idle session could not be saved and stays open");
                return;
            }
        };
        session.keep_files(comes_back);
        let notes = vec![format!("{reason}, and so it had been saved and its process ended")];
        let definition = Definition { notes, ..session.definition() };
        if comes_back && self.write_definition(definition.clone()).await.is_err() {
            return self.stay(session).await;
        }
        if !session.leave(uses, &reason).await {
            return self.stay(session).await;
        }
        if comes_back {
            self.stopped.lock().expect("no panic while locked").push(definition);
        }
        self.end(session, &reason, None).await;
        session.info.environment.release(&session.info.handle, comes_back).await;
        drop(turn);
        self.trim_stopped(&session.info.owner).await;
    }

    /// A session that was saved to be ended is used again, and goes on.
    async fn stay(&self, session: &Session) {
        session.keep_files(session.info.definition.keep);
        let (store, definition) = (self.parts.store.clone(), session.info.definition.clone());
        let _forgotten = tokio::task::spawn_blocking(move || {
            store.forget(&definition.handle);
            if definition.keep { store.put(&definition) } else { Ok(()) }
        })
        .await;
    }

    /// Saves what a session holds. Returns whether there is anything to come back for and what could not be saved, or why nothing could.
    async fn save_away(&self, session: &Session, limit: Duration) -> Result<(bool, Vec<NotSaved>), String> {
        let keep = session.info.definition.keep;
        if is_fresh(session) || !session.holds() || session.status().state != State::Idle {
            return Ok((keep, Vec::new()));
        }
        let saved = self.save_variables(session, limit).await?;
        Ok((keep || !(saved.saved.is_empty() && saved.not_saved.is_empty()), saved.not_saved))
    }

    /// Saves the variables for when the session is started again.
    async fn save_variables(&self, session: &Session, limit: Duration) -> Result<Saved, String> {
        let path = self.parts.store.variables(&session.info.handle);
        let pending = Pending::new(&path).map_err(|error| error.to_string())?;
        let saving = tokio::time::timeout(limit * 2, session.save_to(&pending, limit));
        let saved = saving.await.map_err(|_| "it took too long".to_owned())?.map_err(|error| error.message())?;
        let kept = tokio::task::spawn_blocking(move || pending.keep()).await;
        kept.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        Ok(saved)
    }

    async fn write_definition(&self, definition: Definition) -> io::Result<()> {
        let store = self.parts.store.clone();
        let name = definition.name.clone();
        let put = tokio::task::spawn_blocking(move || store.put(&definition)).await;
        put.map_err(io::Error::other).and_then(|put| put).inspect_err(|error| {
            tracing::warn!(%error, session = name, "it could not be written to disk");
        })
    }

    /// Forgets the saved sessions of an owner that have waited longest, where there are too many. Those that somebody asked to keep stay.
    async fn trim_stopped(&self, owner: &str) {
        let mut waiting: Vec<Definition> = {
            let stopped = self.stopped.lock().expect("no panic while locked");
            stopped.iter().filter(|definition| definition.owner == owner && !definition.keep).cloned().collect()
        };
        waiting.sort_by(|a, b| b.last_used_at.cmp(&a.last_used_at));
        let (mut count, mut bytes) = (0, 0);
        for definition in waiting {
            count += 1;
            bytes += fs::metadata(self.parts.store.variables(&definition.handle)).map_or(0, |found| found.len());
            let Some(_turn) = self.reviving.try_take(&*definition.handle) else { continue };
            if count > 1 && (count > MAX_STOPPED || bytes > MAX_STOPPED_BYTES) {
                self.forget_for_good(&definition).await;
                let reason = "it was saved when nobody used it, and removed to make room for newer ones".to_owned();
                let (owner, handle) = (definition.owner.into(), definition.handle.into());
                self.parts.journal.record(&owner, &handle, EventKind::SessionClosed { reason });
            }
        }
    }
}

/// A session that nobody named was for one call.
fn is_fresh(session: &Session) -> bool {
    session.info.name == session.info.handle
}

/// The variables that could not be saved, in one sentence.
fn not_saved(session: &Session, lost: &[NotSaved]) -> Option<Unsaved> {
    let first = lost.first()?;
    let names: Vec<_> = lost.iter().take(NAMED).map(|lost| lost.name.as_str()).collect();
    let more = if lost.len() > NAMED { " and more" } else { "" };
    let why = if lost.len() == 1 { first.reason.clone() } else { format!("{} ({}), …", first.reason, first.name) };
    Some(Unsaved::of(session, &format!("{}{more}", names.join(", ")), why))
}

//! What became of sessions that are gone, as far as the journal knows: also of those whose daemon was killed.

use super::{
    Error, Session, Sessions,
    keeping::{default_key, named},
};
use crate::caller::{Caller, Door};
use pylair_journal::{Event, EventKind};
use pylair_text::hash;

/// How far back the newest cell is looked for.
const LOOKED_AT: usize = 200;

impl Sessions {
    /// The open session a caller names, or what became of it.
    pub async fn find_or_tell(&self, caller: &Caller, target: &str) -> Result<Session, Error> {
        match (self.find(caller, target), self.stopped(caller, target)) {
            (Err(Error::Unknown { .. } | Error::Closed { .. }), Some(stopped)) => {
                Err(Error::Stopped { target: stopped.name })
            }
            (Err(error), _) => Err(self.tell_gone(caller, error).await),
            (found, _) => found,
        }
    }

    /// Says why a session that this daemon does not know is gone, if an earlier daemon knew it.
    pub(super) async fn tell_gone(&self, caller: &Caller, error: Error) -> Error {
        let Error::Unknown { target, .. } = &error else { return error };
        let opened = self.parts.journal.opened(&caller.owner, named(target)).await;
        let Ok(Some(opened)) = opened else { return error };
        match self.how_it_ended(&opened).await {
            Some(reason) => Error::Closed { target: target.clone(), reason },
            None => error,
        }
    }

    /// What whoever begins a default session must know: that it is new, and what became of the one before.
    pub(super) async fn newness(&self, caller: &Caller, default_of: Option<&str>) -> String {
        const NEW: &str = "this is a new session";
        let Some(default_of) = default_of.map(fingerprint) else { return NEW.to_owned() };
        let before = match self.parts.journal.opened_default(&caller.owner, &default_of).await {
            Ok(Some(before)) => before,
            Ok(None) => return NEW.to_owned(),
            // As on a full disk.
            Err(_) => {
                return format!("{NEW}; the history cannot be read, so it is not known whether there was one before");
            }
        };
        let handle = &before.target;
        let reason = match self.why_closed(caller, handle) {
            Some(reason) => reason,
            None => self.how_it_ended(&before).await.unwrap_or_default(),
        };
        let history = match caller.door {
            Door::Cli => format!("pylair sessions export {handle}"),
            Door::Bridge | Door::Http => format!("get_history(target=\"{handle}\")"),
        };
        format!("{NEW}: the one before is gone ({reason}); {history} shows what ran in it")
    }

    /// The handle of the caller's own session, or of the last one that was, which may be gone.
    pub async fn last_own(&self, caller: &Caller) -> Result<String, Error> {
        let none = match self.own_or_tell(caller) {
            Ok(own) => return Ok(own),
            Err(none) => none,
        };
        let Some(key) = default_key(&caller.default_session) else { return Err(none) };
        match self.parts.journal.opened_default(&caller.owner, &fingerprint(&key)).await {
            Ok(Some(opened)) => Ok(opened.target.to_string()),
            _ => Err(none),
        }
    }

    /// Why a session is gone. A daemon that is killed cannot write that down; everything else that ends a session is written down last.
    async fn how_it_ended(&self, opened: &Event) -> Option<String> {
        let events = self.parts.journal.history(&opened.owner, &opened.target, None, LOOKED_AT).await.ok()?;
        if let Some(EventKind::SessionClosed { reason }) = events.last().map(|event| &event.kind) {
            return Some(reason.clone());
        }
        let newest = events.iter().rev().find_map(|event| match event.kind {
            EventKind::CellStarted { cell, .. } => Some(cell),
            _ => None,
        });
        // Cells of its last moments may have run without a record.
        let recorded = newest
            .map_or_else(|| "no cell was recorded".to_owned(), |cell| format!("cell {cell} is the last recorded"));
        Some(format!("the daemon that ran it was killed, or the machine went down; {recorded}"))
    }

    /// Whether the daemon that last ran a session was killed: everything else that ends a session is the last event recorded of it.
    pub(super) async fn was_killed(&self, owner: &str, handle: &str) -> bool {
        let newest = self.parts.journal.history(owner, handle, None, 1).await;
        newest.is_ok_and(|events| {
            events.last().is_none_or(|event| !matches!(event.kind, EventKind::SessionClosed { .. }))
        })
    }
}

/// Whose default session it is, in the journal: not everybody who reads a history should learn the ids that clients are known by.
pub(super) fn fingerprint(default_of: &str) -> String {
    hash::hex(&hash::sha256(default_of.as_bytes())[..8])
}

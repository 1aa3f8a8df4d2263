//! What became of sessions that are gone, as far as the journal knows: also of those whose daemon was killed.

use super::{Error, Session, Sessions, keeping::named};
use crate::{
    caller::Caller,
    journal::{Event, EventKind},
};

/// How far back the newest cell is looked for.
const LOOKED_AT: usize = 200;

impl Sessions {
    /// The open session a caller names, or what became of it.
    pub async fn find_or_tell(&self, caller: &Caller, target: &str) -> Result<Session, Error> {
        match self.find(caller, target) {
            Err(error) => Err(self.tell_gone(caller, error).await),
            found => found,
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
        let after =
            newest.map_or_else(|| "before its first cell".to_owned(), |cell| format!("after cell {cell} began"));
        Some(format!("the daemon that ran it was killed, or the machine went down, {after}"))
    }
}

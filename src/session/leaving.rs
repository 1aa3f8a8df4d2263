//! Sessions that end and are to come back: saved when the daemon leaves.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Command, Session, Sessions, State,
    saved::{Definition, NotSaved, Pending, Saved},
};

/// A daemon that leaves does not wait for ever.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(20);
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
    /// Ends the running cell and goes back to the newest checkpoint, if there is one. Returns what whoever uses the session next must know.
    async fn abandon_cell(&self, reason: &str) -> Vec<String> {
        let reason = reason.to_owned();
        self.send(|answer| Command::Abandon { reason, answer }).await.unwrap_or_default()
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

    async fn save_for_later(&self, session: &Session, reason: &str) -> Vec<Unsaved> {
        let (definition, mut unsaved) = self.save_away(session, reason).await;
        let Some(definition) = definition else { return unsaved };
        session.keep_files(true);
        let store = self.parts.store.clone();
        let put = tokio::task::spawn_blocking(move || store.put(&definition)).await;
        if let Err(error) = put.map_err(std::io::Error::other).and_then(|put| put) {
            tracing::warn!(%error, session = %session.info.name, "it could not be written to disk");
            unsaved.push(Unsaved::of(session, "the definition", error.to_string()));
        }
        unsaved
    }

    /// Saves what a session holds. Returns how it is started again, unless there is nothing to come back for, and what is lost.
    async fn save_away(&self, session: &Session, reason: &str) -> (Option<Definition>, Vec<Unsaved>) {
        // A session that nobody named was for one call.
        let is_fresh = session.info.name == session.info.handle;
        let (mut notes, mut unsaved) = (Vec::new(), Vec::new());
        if session.status().state == State::Busy && !is_fresh {
            notes = session.abandon_cell(reason).await;
        }
        let mut keep = session.info.definition.keep;
        if session.holds() && session.status().state == State::Idle && !is_fresh {
            match self.save_variables(session).await {
                Ok(saved) => {
                    keep |= !(saved.saved.is_empty() && saved.not_saved.is_empty());
                    unsaved.extend(not_saved(session, &saved.not_saved));
                }
                Err(why) => {
                    tracing::warn!(why, session = %session.info.name, "its variables could not be saved");
                    keep = true;
                    notes.push(format!("its variables could not be saved: {why}"));
                    unsaved.push(Unsaved::of(session, "the variables", why));
                }
            }
        }
        (keep.then(|| Definition { notes, ..session.definition() }), unsaved)
    }

    /// Saves the variables for when the session is started again. Says why that was not possible.
    async fn save_variables(&self, session: &Session) -> Result<Saved, String> {
        let path = self.parts.store.variables(&session.info.handle);
        let pending = Pending::new(&path).map_err(|error| error.to_string())?;
        let saving = tokio::time::timeout(LEAVE_TIMEOUT, session.save_to(&pending, LEAVE_TIMEOUT / 2));
        let saved = saving.await.map_err(|_| "it took too long".to_owned())?.map_err(|error| error.message())?;
        let kept = tokio::task::spawn_blocking(move || pending.keep()).await;
        kept.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        Ok(saved)
    }
}

/// The variables that could not be saved, in one sentence.
fn not_saved(session: &Session, lost: &[NotSaved]) -> Option<Unsaved> {
    let first = lost.first()?;
    let names: Vec<_> = lost.iter().take(NAMED).map(|lost| lost.name.as_str()).collect();
    let more = if lost.len() > NAMED { " and more" } else { "" };
    let why = if lost.len() == 1 { first.reason.clone() } else { format!("{} ({}), …", first.reason, first.name) };
    Some(Unsaved::of(session, &format!("{}{more}", names.join(", ")), why))
}

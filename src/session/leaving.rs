//! Sessions that end and are to come back: saved when the daemon leaves.

use std::time::Duration;

use super::{
    Command, Session, Sessions, State,
    saved::{Definition, Pending, Saved},
};

/// A daemon that leaves does not wait for ever.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(20);

impl Session {
    /// Ends the running cell and goes back to the newest checkpoint, if there is one. Returns what whoever uses the session next must know.
    async fn abandon_cell(&self, reason: &str) -> Vec<String> {
        let reason = reason.to_owned();
        self.send(|answer| Command::Abandon { reason, answer }).await.unwrap_or_default()
    }
}

impl Sessions {
    /// The daemon is leaving: sessions are saved, so that its successor can bring them back. Those that are busy are saved as they were
    /// at their newest checkpoint.
    pub async fn save_all(&self, reason: &str) {
        let sessions: Vec<_> = {
            let registry = self.registry.lock().expect("no panic while locked");
            registry.open.values().cloned().collect()
        };
        futures::future::join_all(sessions.iter().map(|session| self.save_for_later(session, reason))).await;
    }

    async fn save_for_later(&self, session: &Session, reason: &str) {
        let Some(definition) = self.save_away(session, reason).await else { return };
        session.keep_files(true);
        let store = self.parts.store.clone();
        let put = tokio::task::spawn_blocking(move || store.put(&definition)).await;
        if !matches!(put, Ok(Ok(()))) {
            tracing::warn!(session = %session.info.name, "it could not be written to disk");
        }
    }

    /// Saves what a session holds. Returns how it is started again, unless there is nothing to come back for.
    async fn save_away(&self, session: &Session, reason: &str) -> Option<Definition> {
        // A session that nobody named was for one call.
        let is_fresh = session.info.name == session.info.handle;
        let mut notes = Vec::new();
        if session.status().state == State::Busy && !is_fresh {
            notes = session.abandon_cell(reason).await;
        }
        let mut keep = session.info.definition.keep;
        if session.holds() && session.status().state == State::Idle && !is_fresh {
            match self.save_variables(session).await {
                Ok(saved) => keep |= !(saved.saved.is_empty() && saved.not_saved.is_empty()),
                Err(why) => {
                    tracing::warn!(why, session = %session.info.name, "its variables could not be saved");
                    keep = true;
                    notes.push(format!("its variables could not be saved: {why}"));
                }
            }
        }
        keep.then(|| Definition { notes, ..session.definition() })
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

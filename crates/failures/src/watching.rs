//! What changes, as it changes, for whoever watches: the streams of the web door.

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::broadcast;

use super::{
    Failures,
    record::{Record, Status, Taken},
};

/// Changes that a slow reader may be behind; then it is told to look at everything again.
const KEPT: usize = 1024;

/// Something is not as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "changed", rename_all = "snake_case")]
pub enum Change {
    /// A failure was seen, worked on, or is something else now.
    Failure { id: String, status: Status },
    /// Reports of a run came in. Tests that passed may have changed what their failures are.
    Run { run: String },
    /// Failures were put together or apart by hand.
    Group { id: String },
    /// More happened than is told: look again at everything.
    Missed,
}

impl Change {
    /// The name of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Failure { .. } => "failure",
            Self::Run { .. } => "run",
            Self::Group { .. } => "group",
            Self::Missed => "missed",
        }
    }
}

#[derive(Debug)]
pub(super) struct Watchers(broadcast::Sender<Change>);

impl Default for Watchers {
    fn default() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }
}

impl Watchers {
    pub(super) fn tell(&self, change: Change) {
        // Nobody may be watching.
        let _unheard = self.0.send(change);
    }

    pub(super) fn taken(&self, runs: Vec<String>, taken: &Taken) {
        for known in taken.failures.values() {
            self.tell(Change::Failure { id: known.id.clone(), status: known.status });
        }
        for run in runs {
            self.tell(Change::Run { run });
        }
    }
}

/// The runs that records are of, each once.
pub(super) fn runs_of(records: &[Record]) -> Vec<String> {
    let mut runs: Vec<String> = Vec::new();
    for record in records {
        if !runs.iter().any(|run| run == record.run()) {
            runs.push(record.run().to_owned());
        }
    }
    runs
}

impl Failures {
    /// Changes from now on.
    pub fn watch(&self) -> broadcast::Receiver<Change> {
        self.watchers.0.subscribe()
    }
}

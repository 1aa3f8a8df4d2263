//! Test runs as the daemon takes them in: what runs report now, and what they left in the spool.

use std::{collections::BTreeMap, sync::Arc};

use super::Daemon;
use pylair_failures::{Error, Failures, record::Taken, view::Summary};

impl Daemon {
    /// Takes in what a run reports, the body of `POST /api/runs/RUN/records`. When it returns, all of it is on disk.
    pub async fn take_records(&self, run: &str, lines: Vec<u8>) -> Result<Taken, Error> {
        let ends = |line: Option<&[u8]>| line.is_some_and(|line| event(line).as_deref() == Some("end"));
        let (is_first, is_last) = (begins(&lines), ends(whole_lines(&lines).next_back()));
        let mut taken = self.failures.ingest_lines(run, lines).await?;
        if is_first {
            pylair_os::event_loop::spawn(take_spool(self.failures.clone()));
        }
        if !taken.failures.is_empty() {
            self.frozen.look_soon();
        }
        taken.freeze = self.config.failures.frozen.copies;
        if is_last {
            let frozen = self.frozen_failures(&self.shell_caller(None, None, BTreeMap::new())).await;
            let has_copy = |failure: &Summary| frozen.iter().any(|copy| copy.id == failure.id);
            taken.closing = Some(self.failures.run(run).await?.closing(has_copy));
        }
        Ok(taken)
    }
}

/// Whether the first line is a `run` record.
fn begins(lines: &[u8]) -> bool {
    whole_lines(lines).next().is_some_and(|line| event(line).as_deref() == Some("run"))
}

fn whole_lines(lines: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    lines.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty())
}

/// The kind of a record.
fn event(line: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Which {
        ev: String,
    }
    serde_json::from_slice::<Which>(line).ok().map(|which| which.ev)
}

/// Takes in what was reported while no daemon was there.
pub(super) async fn take_spool(failures: Arc<Failures>) {
    match failures.take_spool().await {
        Ok(spooled) if spooled.files > 0 => {
            tracing::info!(spooled.files, spooled.records, spooled.rejected, "runs were taken in from the spool");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(error = error.message(), "runs in the spool could not be taken in"),
    }
}

//! The one task that takes in what runs report. Batches that come while it writes share the next transaction, so that a hundred reporters
//! wait for one sync of the disk and not for a hundred. What cannot be written is answered with why; nothing is acknowledged before it is kept.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, oneshot};

use super::{
    error::{Error, Trouble},
    ingest::Batch,
    record::{StoredFailure, Taken},
    store::{Limits, Store, Trial},
};
use pylair_os::{clock::Clock, event_loop::carry_for_now};

/// Batches that wait; more callers wait themselves.
const QUEUE: usize = 256;
/// Records of one transaction.
const MAX_RECORDS: usize = 5000;
/// What one weighs, about.
const RECORD_BYTES: usize = 1024;
/// How often a transaction is tried that another writer or a lost connection stopped.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// When the limits are looked at.
const TRIM_AFTER_RECORDS: usize = 50_000;
const TRIM_EVERY: Duration = Duration::from_hours(1);

pub(crate) struct Job {
    batch: Batch,
    reply: oneshot::Sender<Result<Taken, Error>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    pub(crate) fn start(store: Arc<Store>, limits: Limits, clock: Arc<Clock>) -> Self {
        let (jobs, inbox) = mpsc::channel(QUEUE);
        pylair_os::event_loop::spawn(work(store, limits, clock, inbox));
        Self { jobs }
    }

    pub(crate) async fn write(&self, batch: Batch) -> Result<Taken, Error> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { batch, reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

async fn work(store: Arc<Store>, limits: Limits, clock: Arc<Clock>, mut inbox: mpsc::Receiver<Job>) {
    let mut records = TRIM_AFTER_RECORDS;
    let mut trimmed = Instant::now();
    while let Some(first) = inbox.recv().await {
        let mut count = first.batch.records;
        let mut jobs = vec![first];
        while count < MAX_RECORDS
            && let Ok(job) = inbox.try_recv()
        {
            count += job.batch.records;
            jobs.push(job);
        }
        let load = carry_for_now(count * RECORD_BYTES).await;
        write(&store, jobs).await;
        drop(load);
        records += count;
        if records >= TRIM_AFTER_RECORDS && inbox.is_empty() || trimmed.elapsed() >= TRIM_EVERY {
            (records, trimmed) = (0, Instant::now());
            match store.trim(&limits, &clock).await {
                Ok(done) if done != super::Trimmed::default() => tracing::info!(?done, "forgot old runs and failures"),
                Ok(_) => {}
                Err(error) => tracing::warn!(error = error.message(), "old runs and failures could not be forgotten"),
            }
        }
    }
}

async fn write(store: &Store, jobs: Vec<Job>) {
    let batches: Vec<&Batch> = jobs.iter().map(|job| &job.batch).collect();
    match try_write(store, &batches).await {
        Ok(known) => {
            for job in jobs {
                let taken = taken(&job.batch, &known);
                // A caller that went away has its records all the same.
                _ = job.reply.send(Ok(taken));
            }
        }
        Err(error) if jobs.len() == 1 || error.is_temporary() => {
            let error = Arc::new(error);
            for job in jobs {
                _ = job.reply.send(Err(Error::Shared(Arc::clone(&error))));
            }
        }
        // Somebody's records are wrong, which is no reason to refuse those of others.
        Err(_) => {
            for job in jobs {
                let written = try_write(store, &[&job.batch]).await;
                _ = job.reply.send(written.map(|known| taken(&job.batch, &known)));
            }
        }
    }
}

async fn try_write(store: &Store, batches: &[&Batch]) -> Result<BTreeMap<String, StoredFailure>, Error> {
    let mut pause = FIRST_PAUSE;
    for last in (0..TRIES).map(|number| number + 1 == TRIES) {
        let source = match store.write(batches).await {
            Ok(Trial::Done(known)) => return Ok(known),
            Ok(Trial::Refused(error)) => return Err(error),
            Err(source) => source,
        };
        // Whatever was done of it is undone, and doing it again counts nothing twice.
        let again = matches!(Trouble::of(&source), Trouble::Conflict | Trouble::Lost);
        if last || !again {
            return Err(store.failed("write", source));
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(Error::Closed)
}

fn taken(batch: &Batch, known: &BTreeMap<String, StoredFailure>) -> Taken {
    let occurrences =
        batch.reports.iter().filter_map(|report| report.failing.as_ref()).map(|failing| &failing.occurrence);
    let failures = occurrences.filter_map(|name| Some((name.clone(), known.get(name)?.clone()))).collect();
    Taken { taken: batch.records, failures, ..Taken::default() }
}

//! The writer task: the only one that changes the store. It saves what is pending, trims what is old, and
//! tries again what failed; the journal's handle starts it and asks it to flush or to end.

use std::{error::Error as StdError, fs::File, sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};

use jiff::Timestamp;

use super::{Error, JournalState, Request, SAVE_EVERY, WriterState};

/// The timer goes on for this many ticks without events, so that a busy daemon never has to wake the
/// writer and an idle one never ticks.
const IDLE_TICKS: u32 = 25;
/// The limits are checked at the start, after this many saved events or a part of the bound on bytes, and this often.
const TRIM_AFTER_EVENTS: usize = 10_000;
const TRIM_EVERY: Duration = Duration::from_mins(10);

/// Runs until it is told to end, or nobody is left who could.
pub(super) async fn write(shared: Arc<JournalState>, mut inbox: mpsc::Receiver<Request>, lock: File) {
    let mut idle_ticks = 0;
    let mut untrimmed = Saved { events: TRIM_AFTER_EVENTS, bytes: 0 };
    let mut trimmed_at = Instant::now();
    let mut failing = false;
    loop {
        let ticking = shared.lock().writer != WriterState::Asleep;
        let request = tokio::select! {
            request = inbox.recv() => Some(request),
            () = shared.wake.notified() => None,
            () = tokio::time::sleep(SAVE_EVERY), if ticking => None,
        };
        let saved = save(&shared).await;
        match &saved {
            Ok(Saved { events: 0, .. }) => idle_ticks += 1,
            Ok(saved) => {
                idle_ticks = 0;
                untrimmed.events += saved.events;
                untrimmed.bytes += saved.bytes;
            }
            // Once, not five times a second; the events stay in memory and are tried again.
            Err(error) if !failing => {
                tracing::error!(error = error as &dyn StdError, "events are not being saved");
            }
            Err(_) => {}
        }
        failing = saved.is_err();
        shared.lock().rest(idle_ticks >= IDLE_TICKS && !failing);
        let is_due = untrimmed.events >= TRIM_AFTER_EVENTS || untrimmed.bytes >= shared.limits.trim_after_bytes();
        if is_due || trimmed_at.elapsed() >= TRIM_EVERY {
            untrimmed = Saved::default();
            trimmed_at = Instant::now();
            trim(&shared).await;
        }
        match request {
            None => {}
            // Whoever asked may have gone meanwhile.
            Some(Some(Request::Flush(reply))) => _ = reply.send(saved.map(drop)),
            Some(Some(Request::Shutdown(reply))) => {
                let result = close(&shared, lock).await;
                _ = reply.send(result);
                return;
            }
            Some(None) => {
                if let Err(error) = close(&shared, lock).await {
                    tracing::error!(error = &error as &dyn StdError, "the last events are lost");
                }
                return;
            }
        }
    }
}

async fn trim(shared: &JournalState) {
    let oldest = Timestamp::try_from(shared.clock.oldest(shared.limits.max_age)).ok();
    if let Err(error) = shared.store.trim(&shared.limits, oldest).await {
        tracing::error!(error = &error as &dyn StdError, "old events are not being trimmed");
    }
}

/// What came to the store.
#[derive(Debug, Default)]
struct Saved {
    events: usize,
    bytes: u64,
}

/// Saves everything recorded before the call, each batch in one transaction.
async fn save(shared: &JournalState) -> Result<Saved, Error> {
    let goal = shared.lock().last_seq;
    let mut saved = Saved::default();
    let mut untrimmed = 0;
    loop {
        let batch = shared.lock().take_batch();
        if batch.is_empty() {
            return Ok(saved);
        }
        let bytes = shared.store.insert(&batch).await?;
        if let Err(error) = shared.store.fold_log(&shared.limits).await {
            tracing::warn!(error = &error as &dyn StdError, "the journal's log is longer than it should be");
        }
        saved.events += batch.len();
        saved.bytes += bytes;
        untrimmed += bytes;
        if untrimmed >= shared.limits.trim_after_bytes() {
            untrimmed = 0;
            trim(shared).await;
        }
        let reached = batch.last().is_some_and(|last| last.seq >= goal);
        shared.lock().batch_is_saved();
        if reached {
            return Ok(saved);
        }
    }
}

/// Takes no more events, saves the last ones and closes the file.
async fn close(shared: &JournalState, lock: File) -> Result<(), Error> {
    {
        let mut state = shared.lock();
        state.push_gaps();
        state.live = None;
    }
    let result = save(shared).await;
    shared.store.close().await;
    drop(lock);
    result.map(drop)
}

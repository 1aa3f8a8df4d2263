//! The writer task: the only one that changes the store. It saves what is pending, trims what is old, and
//! tries again what failed; the journal's handle starts it and asks it to flush or to end.

use std::{error::Error as StdError, fs::File, sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};

use super::{Error, Limits, Request, SAVE_EVERY, Shared, WriterState};

/// The timer goes on for this many ticks without events, so that a busy daemon never has to wake the
/// writer and an idle one never ticks.
const IDLE_TICKS: u32 = 25;
/// The limits are checked at the start, after this many saved events, and this often.
const TRIM_AFTER_EVENTS: usize = 10_000;
const TRIM_EVERY: Duration = Duration::from_mins(10);

/// Runs until it is told to end, or nobody is left who could.
pub(super) async fn write(shared: Arc<Shared>, mut inbox: mpsc::Receiver<Request>, limits: Limits, lock: File) {
    let mut idle_ticks = 0;
    let mut untrimmed = TRIM_AFTER_EVENTS;
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
            Ok(0) => idle_ticks += 1,
            Ok(count) => {
                idle_ticks = 0;
                untrimmed += count;
            }
            // Once, not five times a second; the events stay in memory and are tried again.
            Err(error) if !failing => {
                tracing::error!(error = error as &dyn StdError, "events are not being saved");
            }
            Err(_) => {}
        }
        failing = saved.is_err();
        shared.lock().rest(idle_ticks >= IDLE_TICKS && !failing);
        if untrimmed >= TRIM_AFTER_EVENTS || trimmed_at.elapsed() >= TRIM_EVERY {
            untrimmed = 0;
            trimmed_at = Instant::now();
            match shared.store.trim(&limits).await {
                Ok(Some(seq)) => shared.lock().trimmed = seq,
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(error = &error as &dyn StdError, "old events are not being trimmed");
                }
            }
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

/// Saves everything recorded before the call, each batch in one transaction. Returns how many events
/// that was.
async fn save(shared: &Shared) -> Result<usize, Error> {
    let goal = shared.lock().last_seq;
    let mut saved = 0;
    loop {
        let batch = shared.lock().take_batch();
        if batch.is_empty() {
            return Ok(saved);
        }
        shared.store.insert(&batch).await?;
        saved += batch.len();
        let reached = batch.last().is_some_and(|last| last.seq >= goal);
        shared.lock().batch_is_saved();
        if reached {
            return Ok(saved);
        }
    }
}

/// Takes no more events, saves the last ones and closes the file.
async fn close(shared: &Shared, lock: File) -> Result<(), Error> {
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

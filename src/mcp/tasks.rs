//! Jobs as MCP tasks, for clients that declare the extension: a cell that outlives the reply becomes a task instead of `running`.
//!
//! Kept by the daemon, not by a connection: the next request of a stateless client comes on another one.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rmcp::{
    model::{CallToolResult, Task},
    task_manager::{TaskExit, TaskManager, TaskOptions},
};

use crate::{daemon::targets::Target, session::Job};

/// How often a client is advised to ask.
const POLL_MS: u64 = 500;
/// How long a result waits for its client, and a cell without a time limit for its end.
const KEPT: Duration = Duration::from_hours(24);
/// Each may hold what a job holds.
const MAX_TASKS: usize = 1000;

#[derive(Default)]
pub struct Tasks {
    manager: TaskManager,
    /// When the ones that may still be kept were made, oldest first.
    made: Mutex<VecDeque<Instant>>,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tasks")
    }
}

impl Tasks {
    pub fn manager(&self) -> &TaskManager {
        &self.manager
    }

    /// Makes a running job a task. `tell` renders it once it has ended; cancelling the task interrupts the cell.
    /// None when so many are kept that the client has to make do with the job.
    pub fn of_job<F>(
        &self,
        target: Target,
        job: Arc<Job>,
        tell: impl FnOnce(Arc<Job>) -> F + Send + 'static,
    ) -> Option<Task>
    where
        F: Future<Output = CallToolResult> + Send + 'static,
    {
        {
            let mut made = self.made.lock().expect("no panic while locked");
            // One that ran to the end of its time is kept for as long again.
            made.retain(|made| made.elapsed() < 2 * KEPT);
            if made.len() >= MAX_TASKS {
                return None;
            }
            made.push_back(Instant::now());
        }
        let kept = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
        let message = format!("cell {} of {} is running as job {}", job.cell, job.session, job.id);
        let options = TaskOptions::new().with_ttl_ms(kept).with_poll_interval_ms(POLL_MS).with_status_message(message);
        Some(self.manager.spawn(options, move |context| {
            Box::pin(async move {
                tokio::select! {
                    execution = job.ended() => {
                        context.set_status_message(format!("cell {} ended: {}", job.cell, execution.outcome.as_str()));
                        Ok(tell(job).await)
                    }
                    () = context.cancelled() => {
                        // A target that is gone has nothing left to interrupt.
                        let _gone = target.interrupt(Some(&job.id)).await;
                        context.set_status_message(format!("cell {} was cancelled", job.cell));
                        Err(TaskExit::Cancelled)
                    }
                }
            })
        }))
    }
}

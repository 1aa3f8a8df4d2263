//! Jobs as MCP tasks, for clients that declare the extension: a cell that outlives the reply becomes a task instead of `running`.
//!
//! Kept for the daemon, not by a connection: the next request of a stateless client comes on another one.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rmcp::{
    ErrorData,
    model::{CallToolResult, Task},
    task_manager::{TaskExit, TaskManager, TaskOptions},
};

use pylair_core::{daemon::targets::Target, session::Job};
use pylair_os::budget::Shares;

/// How often a client is advised to ask.
const POLL_MS: u64 = 500;
/// How long a result waits for its client, and a cell without a time limit for its end.
const KEPT: Duration = Duration::from_hours(24);
/// Maximum number of tasks of all owners; each may hold what a job holds.
const MAX_TASKS: u64 = 1000;

#[derive(Default)]
pub struct Tasks {
    manager: TaskManager,
    /// The ones that may still be kept, oldest first.
    made: Mutex<VecDeque<Made>>,
}

struct Made {
    at: Instant,
    task: String,
    owner: Arc<str>,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tasks")
    }
}

impl Tasks {
    /// What keeps a task, if it is this owner's. The id of anybody else's is as unknown as one that never was.
    pub fn of(&self, owner: &str, task: &str) -> Result<&TaskManager, ErrorData> {
        let made = self.made.lock().expect("no panic while locked");
        if made.iter().any(|made| made.task == task && *made.owner == *owner) {
            return Ok(&self.manager);
        }
        Err(ErrorData::invalid_params(format!("unknown task: {task}"), None))
    }

    /// Makes a running job a task. `tell` renders it once it has ended; cancelling the task interrupts the cell.
    /// None when its owner has so many that the client has to make do with the job.
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
            made.retain(|made| made.at.elapsed() < 2 * KEPT);
            let mut shares = Shares::default();
            made.iter().for_each(|made| shares.add(&made.owner, 1));
            if !shares.leaves_room(&job.owner, 1, MAX_TASKS) {
                return None;
            }
        }
        let owner = job.owner.clone();
        let kept = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
        let message = format!("cell {} of {} is running as job {}", job.cell, job.session, job.id);
        let options = TaskOptions::new().with_ttl_ms(kept).with_poll_interval_ms(POLL_MS).with_status_message(message);
        let task = self.manager.spawn(options, move |context| {
            Box::pin(pylair_os::event_loop::watched(async move {
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
            }))
        });
        let made = Made { at: Instant::now(), task: task.task_id.clone(), owner };
        self.made.lock().expect("no panic while locked").push_back(made);
        Some(task)
    }
}

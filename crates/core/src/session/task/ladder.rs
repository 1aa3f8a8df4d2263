//! The interrupt ladder: what is tried, in which order, to stop a cell.

use std::time::{Duration, Instant};

use super::Task;

/// How long each step has before the next.
const STACKS_GRACE: Duration = Duration::from_millis(40);
const INTERRUPT_GRACE: Duration = Duration::from_millis(1500);
const FORCE_GRACE: Duration = Duration::from_millis(500);
const FORCE_TIMES: u8 = 3;

/// Why a cell is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum Cause {
    Timeout,
    Caller,
}

/// Where on the ladder a cell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum Step {
    Stacks,
    Interrupt,
    /// How often the force was sent: CPython can overlook a signal that comes together with another.
    Force(u8),
    Kill,
}

pub(in crate::session) struct Ladder {
    pub(in crate::session) cause: Cause,
    pub(in crate::session) step: Step,
    pub(in crate::session) until: Instant,
    pub(in crate::session) stacks: String,
}

impl Task {
    pub(super) fn climb(&mut self, cause: Cause) {
        let (Some(running), Some(link)) = (&mut self.running, &self.link) else { return };
        if let Some(ladder) = &mut running.ladder {
            // Asked again: the next step comes at once.
            if cause == Cause::Caller && ladder.step != Step::Stacks {
                ladder.until = Instant::now();
            }
            return;
        }
        // Whatever an earlier dump left behind is not about this cell.
        link.take_stacks();
        link.ask_for_stacks();
        running.ladder =
            Some(Ladder { cause, step: Step::Stacks, until: Instant::now() + STACKS_GRACE, stacks: String::new() });
        self.live.lock().expect("no panic while locked").is_being_ended = true;
    }

    pub(super) fn next_step(&mut self) {
        let (Some(running), Some(link)) = (&mut self.running, &mut self.link) else { return };
        let Some(ladder) = &mut running.ladder else { return };
        let (step, grace) = match ladder.step {
            Step::Stacks => {
                ladder.stacks = link.take_stacks();
                link.interrupt();
                (Step::Interrupt, INTERRUPT_GRACE)
            }
            Step::Interrupt => {
                link.force();
                (Step::Force(1), FORCE_GRACE)
            }
            Step::Force(times) if times < FORCE_TIMES => {
                link.force();
                (Step::Force(times + 1), FORCE_GRACE)
            }
            Step::Force(_) | Step::Kill => {
                link.kill();
                // Its death comes as an event; if it cannot even be killed we try again now and then.
                (Step::Kill, Duration::from_secs(5))
            }
        };
        ladder.step = step;
        ladder.until = Instant::now() + grace;
    }
}

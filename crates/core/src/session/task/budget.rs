//! How often a cell may be held up by a checkpoint: as often as that takes a tenth of the time.
//!
//! A checkpoint costs the fork, and afterwards a copy of each page that the worker writes to. Where cells rewrite large arrays that is
//! far more than the fork.

use std::time::{Duration, Instant};

use pylair_os::machine::Paging;

/// A cell waits for a missing checkpoint when the last one is older than this many times what it cost.
const SHARE: u32 = 10;
/// How much of the smoothed cost of a fork the newest one is, as a divisor.
const SMOOTHING: u32 = 4;
/// Maximum cost of one page: the kernel's time is also spent on other things.
const DEAREST_PAGE: Duration = Duration::from_micros(10);

/// What checkpoints cost in one session, and when the last was tried.
#[derive(Debug, Default)]
pub(super) struct Budget {
    cost: Option<Duration>,
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    tried: Instant,
    /// What the worker had used then.
    paging: Paging,
}

impl Budget {
    /// Whether the next cell may be held up by a checkpoint. The first one is always allowed: nothing is known of its cost. `paging` says
    /// what the worker has used by now.
    pub(super) fn allows(&self, now: Instant, paging: impl FnOnce() -> Option<Paging>) -> bool {
        let (Some(cost), Some(last)) = (self.cost, &self.last) else { return true };
        let age = now.saturating_duration_since(last.tried);
        age >= cost.saturating_mul(SHARE) && {
            let copying = paging().map_or(Duration::ZERO, |now| copying(last.paging, now));
            age >= (cost + copying).saturating_mul(SHARE)
        }
    }

    /// A checkpoint was made or refused. Refusals cost time too.
    pub(super) fn spend(&mut self, took: Duration, now: Instant, paging: Option<Paging>) {
        let cost = self.cost.unwrap_or(took);
        self.cost = Some(cost.saturating_sub(cost / SMOOTHING) + took / SMOOTHING);
        self.renew(now, paging);
    }

    /// The worker is as one that was just copied.
    pub(super) fn renew(&mut self, now: Instant, paging: Option<Paging>) {
        self.last = Some(Last { tried: now, paging: paging.unwrap_or_default() });
    }

    /// There is no checkpoint any more, and so the next is worth its time.
    pub(super) fn start_over(&mut self) {
        self.last = None;
    }
}

/// At most what copying pages has cost since a checkpoint: each page that there was can have been copied once. New memory is taken for
/// copied, because the kernel does not tell them apart.
fn copying(then: Paging, now: Paging) -> Duration {
    let faults = now.faults.saturating_sub(then.faults);
    let each = now.system.saturating_sub(then.system).as_nanos() / u128::from(faults.max(1));
    let pages = u128::from(faults.min(then.resident_pages));
    let nanoseconds = each.min(DEAREST_PAGE.as_nanos()).saturating_mul(pages);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs cells without a pause; `cost` is what the nth checkpoint takes. Returns the time spent on checkpoints, all the time, and the
    /// longest time from a checkpoint to the beginning of a cell.
    fn burst(cells: u32, cell: Duration, cost: impl Fn(u32) -> Duration) -> (Duration, Duration, Duration) {
        let mut budget = Budget::default();
        let begin = Instant::now();
        let (mut now, mut last, mut spent, mut at_risk) = (begin, begin, Duration::ZERO, Duration::ZERO);
        for number in 0..cells {
            if budget.allows(now, || None) {
                let took = cost(number);
                now += took;
                spent += took;
                last = now;
                budget.spend(took, now, None);
            }
            at_risk = at_risk.max(now - last);
            now += cell;
        }
        (spent, now - begin, at_risk)
    }

    #[test]
    fn a_burst_spends_a_tenth_on_checkpoints_and_risks_ten_of_them() {
        let ms = Duration::from_millis;
        for (cell, cost) in [(ms(1), ms(2)), (ms(3), ms(180)), (Duration::from_micros(200), ms(1)), (ms(40), ms(2))] {
            let (spent, all, at_risk) = burst(10_000, cell, |_| cost);
            assert!(spent <= all / 10 + cost, "{spent:?} of {all:?}");
            assert!(at_risk < cost * 10, "{at_risk:?} with {cost:?} each");
        }
    }

    #[test]
    fn a_cost_that_grows_or_falls_is_followed() {
        let ms = Duration::from_millis;
        let (spent, all, _) = burst(100_000, ms(1), |number| if number < 50_000 { ms(1) } else { ms(200) });
        assert!(spent <= all / 9, "{spent:?} of {all:?}");
        let (.., at_risk) = burst(100_000, ms(1), |number| if number == 500 { ms(1000) } else { ms(2) });
        assert!(at_risk < ms(2600), "one that was slow counts for a quarter: {at_risk:?}");
    }

    #[test]
    fn pages_that_cells_copy_count_as_cost() {
        let ms = Duration::from_millis;
        let (mut budget, now) = (Budget::default(), Instant::now());
        let paging = |faults, system| Paging { faults, system, resident_pages: 100_000 };
        budget.spend(ms(5), now, Some(paging(50, ms(30))));
        let allows = |after, paging: Paging| budget.allows(now + after, || Some(paging));
        assert!(allows(ms(50), paging(50, ms(30))));
        // 20,000 pages took 60 ms.
        assert!(!allows(ms(640), paging(20_050, ms(90))));
        assert!(allows(ms(650), paging(20_050, ms(90))));
        // No page is copied twice, and none takes longer than 10 µs.
        assert!(allows(ms(2050), paging(1_000_050, ms(2030))));
        assert!(allows(ms(60), paging(150, ms(9000))));
        assert!(allows(ms(50), Paging::default()), "another process");
    }

    #[test]
    fn without_any_checkpoint_the_next_is_made_at_once() {
        let mut budget = Budget::default();
        let now = Instant::now();
        let allows = |budget: &Budget, after| budget.allows(now + Duration::from_millis(after), || None);
        assert!(allows(&budget, 0));
        budget.spend(Duration::from_millis(5), now, None);
        assert!(!allows(&budget, 49));
        assert!(allows(&budget, 50));
        budget.start_over();
        assert!(allows(&budget, 0));
    }
}

//! What is held for a while and given back: requests, connections, bytes that wait to be read. Doors take from it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Shares, Use};

/// Shared among owners so that there is room left for another. Whoever runs the daemon may use all that is free, and has half of the
/// bound whatever the others hold.
#[derive(Debug)]
pub struct Pool {
    what: &'static str,
    bound: u64,
    own: Arc<str>,
    /// A std mutex: held for a few additions.
    shares: Mutex<Shares>,
    freed: Notify,
}

impl Pool {
    pub fn new(what: &'static str, bound: u64, own: &Arc<str>) -> Arc<Self> {
        let (shares, freed) = (Mutex::default(), Notify::new());
        Arc::new(Self { what, bound, own: own.clone(), shares, freed })
    }

    /// So much for this owner, if there is room for it.
    pub fn take(self: &Arc<Self>, owner: &Arc<str>, amount: u64) -> Option<Taken> {
        let mut taken = Taken { pool: self.clone(), owner: owner.clone(), amount: 0 };
        taken.add(amount).then_some(taken)
    }

    /// The same as soon as there is room for it. Nobody waits for more than there can be.
    pub async fn wait(self: &Arc<Self>, owner: &Arc<str>, amount: u64) -> Taken {
        let amount = amount.min(self.bound / 4);
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Registered before looking, so that nothing is missed between the look and the wait.
            freed.as_mut().enable();
            if let Some(taken) = self.take(owner, amount) {
                return taken;
            }
            freed.await;
        }
    }

    pub fn usage(&self, owner: &str) -> Use {
        let shares = self.lock();
        let (yours, all) = (shares.of(owner), Some(shares.total()));
        Use { what: self.what.to_owned(), yours, all, bound: self.bound, removed: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Shares> {
        // Nothing under the lock leaves it half changed.
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a pool, given back when it is dropped.
#[derive(Debug)]
pub struct Taken {
    pool: Arc<Pool>,
    owner: Arc<str>,
    amount: u64,
}

impl Taken {
    /// So much more, if there is room for it.
    pub fn add(&mut self, amount: u64) -> bool {
        let mut shares = self.pool.lock();
        let (own, bound) = (shares.of(&self.owner).saturating_add(amount), self.pool.bound);
        let is_free = if self.owner == self.pool.own {
            shares.total().saturating_add(amount) <= bound || own <= bound / 2
        } else {
            shares.leaves_room(&self.owner, amount, bound)
        };
        if is_free {
            shares.add(&self.owner, amount);
            self.amount += amount;
        }
        is_free
    }

    /// Part of it is not needed any more.
    pub fn give_back(&mut self, amount: u64) {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        self.pool.lock().remove(&self.owner, amount);
        self.pool.freed.notify_waiters();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.give_back(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_taken_comes_back_and_nobody_takes_all_but_who_runs_it() {
        let (own, a, b): (Arc<str>, Arc<str>, Arc<str>) = ("me".into(), "a".into(), "b".into());
        let pool = Pool::new("things", 100, &own);
        let mut of_a = pool.take(&a, 50).unwrap();
        assert!(pool.take(&a, 1).is_none());
        let of_b = pool.take(&b, 25).unwrap();
        assert!(pool.take(&b, 1).is_none() && pool.take(&own, 51).is_none());
        let mine = pool.take(&own, 50).unwrap();
        assert_eq!((pool.usage("a").yours, pool.usage("a").all), (50, Some(125)));
        of_a.give_back(40);
        drop((of_b, mine));
        assert_eq!((pool.usage("a").yours, pool.usage("a").all), (10, Some(10)));
        assert!(pool.take(&own, 90).is_some());
        let waiting = tokio::time::timeout(std::time::Duration::from_mins(1), pool.wait(&b, 1000));
        let (waited, ()) = tokio::join!(waiting, async { drop(of_a) });
        let waited = waited.unwrap();
        assert_eq!((waited.amount, pool.usage("b").yours), (25, 25));
        drop(waited);
        assert_eq!(pool.usage("b").yours, 0);
    }
}

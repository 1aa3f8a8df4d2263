//! So many at a time for each key, and no key waits for another.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turns of keys that somebody has or waits for.
#[derive(Debug)]
pub struct Turns<K> {
    at_once: usize,
    keys: Mutex<HashMap<K, Weak<Semaphore>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl<K> Default for Turns<K> {
    /// One at a time.
    fn default() -> Self {
        Self::new(1)
    }
}

impl<K> Turns<K> {
    pub fn new(at_once: usize) -> Self {
        Self { at_once, keys: Mutex::default() }
    }
}

impl<K: Eq + Hash> Turns<K> {
    /// Waits for a turn of this key. Who came first has it first.
    pub async fn take<Q>(&self, key: &Q) -> Turn
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        Turn(self.of(key).acquire_owned().await.expect("it is never closed"))
    }

    /// A turn of this key, if there is one now.
    pub fn try_take<Q>(&self, key: &Q) -> Option<Turn>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        self.of(key).try_acquire_owned().ok().map(Turn)
    }

    fn of<Q>(&self, key: &Q) -> Arc<Semaphore>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let mut keys = self.keys.lock().expect("no panic while locked");
        keys.retain(|_, turns| turns.strong_count() > 0);
        if let Some(turns) = keys.get(key).and_then(Weak::upgrade) {
            return turns;
        }
        let turns = Arc::new(Semaphore::new(self.at_once));
        keys.insert(key.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_waits_for_itself_only() {
        let turns = Turns::<String>::default();
        let held = turns.try_take("one");
        assert!(held.is_some() && turns.try_take("one").is_none());
        assert!(turns.try_take("other").is_some());
        drop(held);
        assert!(turns.try_take("one").is_some());
    }

    #[test]
    fn so_many_have_a_turn_at_once() {
        let turns = Turns::<String>::new(2);
        let held = [turns.try_take("one"), turns.try_take("one")];
        assert!(held.iter().all(Option::is_some) && turns.try_take("one").is_none());
    }
}

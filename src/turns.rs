//! One at a time for each key, and no key waits for another.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, Weak},
};

/// The locks of keys that somebody holds or waits for.
#[derive(Debug)]
pub struct Turns<K> {
    turns: Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { turns: Mutex::default() }
    }
}

impl<K: Eq + Hash> Turns<K> {
    /// The lock of this key, to be held while it is worked on.
    pub fn of<Q>(&self, key: &Q) -> Arc<tokio::sync::Mutex<()>>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let mut turns = self.turns.lock().expect("no panic while locked");
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(key).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        turns.insert(key.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_waits_for_itself_only() {
        let turns = Turns::<String>::default();
        let (one, again, other) = (turns.of("one"), turns.of("one"), turns.of("other"));
        let held = one.try_lock().unwrap();
        assert!(again.try_lock().is_err());
        assert!(other.try_lock().is_ok());
        drop(held);
        assert!(again.try_lock().is_ok());
    }
}

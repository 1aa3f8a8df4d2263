//! Sharing what is bounded among owners, so that none of them uses up what the others have.
//!
//! Two rules, for everything that has a bound. What can be removed goes from whoever has most, oldest first: of n owners each keeps
//! at least an n-th of the bound. What cannot be removed, because it is being written or waited for, is refused when its owner would
//! then have more than is still free: however many owners take all they can, there is room for another.

mod pool;

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};

pub use pool::{Pool, Taken};

/// How much of something each owner has.
#[derive(Debug, Default)]
pub struct Shares {
    used: HashMap<Arc<str>, u64>,
    total: u64,
}

impl Shares {
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn of(&self, owner: &str) -> u64 {
        self.used.get(owner).copied().unwrap_or(0)
    }

    pub fn add(&mut self, owner: &Arc<str>, amount: u64) {
        *self.used.entry(owner.clone()).or_default() += amount;
        self.total += amount;
    }

    pub fn remove(&mut self, owner: &str, amount: u64) {
        let Some(used) = self.used.get_mut(owner) else { return };
        let amount = amount.min(*used);
        *used -= amount;
        self.total -= amount;
        if *used == 0 {
            self.used.remove(owner);
        }
    }

    /// Whoever has most, among those of whom something can be removed.
    pub fn largest(&self, is_removable: impl Fn(&str) -> bool) -> Option<Arc<str>> {
        let owners = self.used.iter().filter(|(owner, _)| is_removable(owner));
        // By name among equals, so that it does not depend on the order of a map.
        owners.max_by(|a, b| (a.1, a.0).cmp(&(b.1, b.0))).map(|(owner, _)| owner.clone())
    }

    /// Whether as much is left free as this owner then has.
    pub fn leaves_room(&self, owner: &str, amount: u64, bound: u64) -> bool {
        self.of(owner).saturating_add(amount) <= bound.saturating_sub(self.total).saturating_sub(amount)
    }
}

/// How much of something bounded is used, as `get_status` and `pylair doctor` show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Use {
    pub what: String,
    /// The caller's part.
    pub yours: u64,
    /// Everybody's, for whoever runs the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<u64>,
    pub bound: u64,
    /// How many things of the caller's were removed to make room, since the daemon started.
    pub removed: u64,
}

impl Use {
    /// What somebody may see who is not to know of others.
    #[must_use]
    pub fn of_one(self) -> Self {
        Self { all: None, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(of: &[(&str, u64)]) -> Shares {
        let mut shares = Shares::default();
        for (owner, amount) in of {
            shares.add(&Arc::from(*owner), *amount);
        }
        shares
    }

    #[test]
    fn whoever_has_most_loses_first() {
        let mut shares = shares(&[("a", 5), ("b", 9), ("c", 9)]);
        assert_eq!(shares.largest(|_| true).as_deref(), Some("c"));
        assert_eq!(shares.largest(|owner| owner == "a").as_deref(), Some("a"));
        shares.remove("c", 8);
        assert_eq!((shares.largest(|_| true).as_deref(), shares.total(), shares.of("c")), (Some("b"), 15, 1));
        shares.remove("c", 8);
        assert_eq!((shares.of("c"), shares.total()), (0, 14));
    }

    /// Takes one by one until it is refused.
    fn take_all(shares: &mut Shares, owner: &str, bound: u64) -> u64 {
        while shares.leaves_room(owner, 1, bound) {
            shares.add(&Arc::from(owner), 1);
        }
        shares.of(owner)
    }

    #[test]
    fn however_many_take_all_they_can_there_is_room_for_another() {
        let mut shares = Shares::default();
        let taken = ["a", "b", "c", "d"].map(|owner| take_all(&mut shares, owner, 1000));
        assert_eq!(taken, [500, 250, 125, 62]);
        assert!(shares.leaves_room("e", 31, 1000));
    }
}

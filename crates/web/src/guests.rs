//! Connections of the TCP door. Whoever has not shown a token is a stranger: of those there are few, and for a new one the oldest of the
//! address that has most has to go, so that nobody can shut out others by saying nothing. The others count for the owner of their token.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

use super::visitors::network;
use pylair_os::budget::{Pool, Taken};

#[derive(Debug)]
pub struct Guests {
    strangers: usize,
    places: Arc<Pool>,
    /// A std mutex: held for a look through the lists.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Oldest first.
    strangers: VecDeque<Stranger>,
    known: VecDeque<Weak<Guest>>,
}

#[derive(Debug)]
struct Stranger {
    id: u64,
    network: IpAddr,
    leave: CancellationToken,
    manner: Manner,
}

/// What a stranger has done. Those who have to go first come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Manner {
    /// Sent a request without a good token.
    Failed,
    Silent,
    /// Sent a request whose token is being looked at, which takes a moment.
    Asks,
}

/// One connection.
#[derive(Debug)]
pub struct Guest {
    id: u64,
    guests: Arc<Guests>,
    /// Cancelled when it has to make room.
    pub leave: CancellationToken,
    /// Whose it is, once that is known.
    place: Mutex<Option<(Arc<str>, Taken)>>,
    requests: AtomicUsize,
}

/// There are too many connections.
#[derive(Debug)]
pub struct Full;

impl Guests {
    pub fn new(strangers: usize, places: Arc<Pool>) -> Arc<Self> {
        Arc::new(Self { strangers, places, state: Mutex::default() })
    }

    /// Somebody has connected.
    pub fn arrive(self: &Arc<Self>, address: IpAddr) -> Arc<Guest> {
        let (leave, network) = (CancellationToken::new(), network(address));
        let mut state = self.lock();
        state.next += 1;
        let id = state.next;
        state.strangers.push_back(Stranger { id, network, leave: leave.clone(), manner: Manner::Silent });
        if state.strangers.len() > self.strangers
            && let Some(oldest) = state.most_numerous().and_then(|at| state.strangers.remove(at))
        {
            oldest.leave.cancel();
        }
        let (place, requests) = (Mutex::default(), AtomicUsize::new(0));
        Arc::new(Guest { id, guests: self.clone(), leave, place, requests })
    }

    /// After how many that have come those before have to be heard, so that none of them leaves before he was.
    pub fn heard_every(&self) -> usize {
        self.strangers.div_ceil(4)
    }

    /// How many have not shown a token.
    pub fn strangers(&self) -> usize {
        self.lock().strangers.len()
    }

    /// Lets the oldest connection of this owner go that does nothing.
    fn make_room(&self, owner: &str) -> bool {
        let known: Vec<_> = self.lock().known.iter().filter_map(Weak::upgrade).collect();
        let idle = known.iter().find(|guest| {
            let is_idle = guest.requests.load(Ordering::Acquire) == 0;
            is_idle && guest.place().as_ref().is_some_and(|(of, _)| **of == *owner)
        });
        let Some(idle) = idle else { return false };
        idle.leave.cancel();
        idle.place().take().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The oldest stranger of the address that most come from. Those who sent a bad token go before the others, among whom somebody with
    /// a good one may be.
    fn most_numerous(&self) -> Option<usize> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for stranger in &self.strangers {
            *counts.entry(stranger.network).or_default() += 1;
        }
        let most = counts.values().max()?;
        let candidates = self.strangers.iter().enumerate().filter(|(_, stranger)| counts[&stranger.network] == *most);
        candidates.min_by_key(|(_, stranger)| stranger.manner).map(|(at, _)| at)
    }
}

impl Guest {
    fn place(&self) -> MutexGuard<'_, Option<(Arc<str>, Taken)>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has shown a token of this owner's.
    pub fn introduce(self: &Arc<Self>, owner: &Arc<str>) -> Result<(), Full> {
        if self.place().as_ref().is_some_and(|(of, _)| of == owner) {
            return Ok(());
        }
        let places = &self.guests.places;
        let taken =
            places.take(owner, 1).or_else(|| self.guests.make_room(owner).then(|| places.take(owner, 1)).flatten());
        let taken = taken.ok_or(Full)?;
        // A proxy sends requests of several over one connection; it is then whose the last one was.
        let before = self.place().replace((owner.clone(), taken));
        if before.is_none() {
            let mut state = self.guests.lock();
            state.strangers.retain(|stranger| stranger.id != self.id);
            state.known.push_back(Arc::downgrade(self));
        }
        Ok(())
    }

    /// It has sent a request, whose token is looked at next.
    pub fn speak(&self) {
        self.behave(Manner::Asks);
    }

    /// It has sent a request without a good token.
    pub fn fail(&self) {
        self.behave(Manner::Failed);
    }

    /// Its request was answered.
    pub fn fall_silent(&self) {
        self.behave(Manner::Silent);
    }

    fn behave(&self, manner: Manner) {
        let mut state = self.guests.lock();
        if let Some(stranger) = state.strangers.iter_mut().find(|stranger| stranger.id == self.id)
            && (stranger.manner, manner) != (Manner::Failed, Manner::Silent)
        {
            stranger.manner = manner;
        }
    }

    /// A request is being answered, until this is dropped.
    pub fn ask(self: &Arc<Self>) -> Asking {
        self.requests.fetch_add(1, Ordering::AcqRel);
        Asking(self.clone())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut state = self.guests.lock();
        state.strangers.retain(|stranger| stranger.id != self.id);
        state.known.retain(|known| known.strong_count() > 0);
    }
}

/// A request of a connection that is being answered.
#[derive(Debug)]
pub struct Asking(Arc<Guest>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guests(strangers: usize, places: u64) -> Arc<Guests> {
        Guests::new(strangers, Pool::new("connections", places, &"me".into()))
    }

    #[test]
    fn for_a_new_stranger_the_oldest_of_the_most_numerous_goes() {
        let guests = guests(3, 8);
        let from = |last: u8| guests.arrive(IpAddr::from([192, 0, 2, last]));
        let (first, second, third) = (from(1), from(2), from(2));
        let fourth = from(3);
        let gone = [&first, &second, &third, &fourth].map(|guest| guest.leave.is_cancelled());
        assert_eq!((gone, guests.strangers()), ([false, true, false, false], 3));
        let many: Vec<_> = (0..1000).map(|_| from(9)).collect();
        let gone = [&first, &third, &fourth, &many[998], &many[999]].map(|guest| guest.leave.is_cancelled());
        assert_eq!(gone, [true, false, false, true, false], "a crowd takes one place from the others");
        assert_eq!(guests.strangers(), 3);
        drop((first, second, third, fourth, many));
        assert_eq!(guests.strangers(), 0);
    }

    #[test]
    fn whoever_sent_a_bad_token_goes_before_those_who_have_not_spoken() {
        let guests = guests(3, 8);
        let arrive = || guests.arrive(IpAddr::from([127, 0, 0, 1]));
        let (asks, silent, bad) = (arrive(), arrive(), arrive());
        asks.speak();
        bad.speak();
        bad.fail();
        let is_gone = || [&asks, &silent, &bad].map(|guest| guest.leave.is_cancelled());
        let next = arrive();
        assert_eq!(is_gone(), [false, false, true]);
        next.speak();
        let last = arrive();
        assert_eq!(is_gone(), [false, true, true], "whose token is being looked at stays");
        last.speak();
        let _another = (arrive(), arrive());
        assert!(!asks.leave.is_cancelled() && !next.leave.is_cancelled());
        // An answer that needs no token makes nobody stay.
        next.fall_silent();
        let _one_more = (arrive(), arrive());
        assert!(next.leave.is_cancelled() && !asks.leave.is_cancelled());
    }

    #[test]
    fn whoever_has_a_token_is_no_stranger_and_makes_room_for_himself() {
        let guests = guests(1, 4);
        let (me, other): (Arc<str>, Arc<str>) = ("me".into(), "other".into());
        let arrive = || guests.arrive(IpAddr::from([127, 0, 0, 1]));
        let first = arrive();
        first.introduce(&other).unwrap();
        first.introduce(&other).unwrap();
        let silent: Vec<_> = (0..10).map(|_| arrive()).collect();
        assert!(!first.leave.is_cancelled() && guests.strangers() == 1);
        let second = arrive();
        second.introduce(&other).unwrap();
        let third = arrive();
        let busy = (first.ask(), second.ask());
        assert!(third.introduce(&other).is_err(), "both are needed, and half is left for others");
        let mine: Vec<_> = (0..2).map(|_| arrive()).collect();
        for guest in &mine {
            guest.introduce(&me).unwrap();
        }
        drop((busy.0, mine));
        third.introduce(&other).unwrap();
        assert!(first.leave.is_cancelled() && !second.leave.is_cancelled());
        drop((busy.1, silent, first, second, third));
        assert_eq!(guests.places.usage("me").all, Some(0));
    }
}

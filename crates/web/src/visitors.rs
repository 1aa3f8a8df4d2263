//! Who comes in over TCP: tokens as the running daemon knows them, with what each has left of its limits. The router asks `Visitors`
//! for every request; files that changed are read again first, so that `pylair token` takes effect at once.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::token::{self, Kept, OWN};
use crate::settings::HttpSettings;
use pylair_core::{
    caller::{Scope, own_owner},
    settings::Places,
    visit::Token,
};
use pylair_text::{
    hash::{hex, sha256, unhex},
    mask,
};

/// When a token was last used is written down this often at most.
const USE_EVERY: Duration = Duration::from_mins(1);
/// Addresses whose failures are remembered.
const MAX_PEERS: usize = 1024;

/// A token that opens the door, with what it has left of its limits.
#[derive(Debug)]
pub struct Visitor {
    pub token: Arc<Token>,
    digest: [u8; 32],
    pub requests: Arc<Semaphore>,
    pub streams: Arc<Semaphore>,
    rate: Mutex<Bucket>,
    last_used: AtomicI64,
}

impl Visitor {
    /// How long to wait until the next request, if this one is one too many. The owner's own is not counted: it may do everything
    /// anyway, and its limits would only slow down honest work.
    pub fn too_fast(&self, per_second: u32) -> Option<Duration> {
        if &*self.token.name == OWN || per_second == 0 {
            return None;
        }
        self.rate.lock().expect("no panic while locked").take(f64::from(per_second), 2.0 * f64::from(per_second))
    }

    fn is_same(&self, kept: &Kept, digest: [u8; 32]) -> bool {
        let token = &self.token;
        *token.name == *kept.name
            && *token.owner == *kept.owner
            && token.scopes == kept.scopes
            && token.expires == kept.expires
            && self.digest == digest
    }

    /// What it opens, for the record.
    pub fn facts(&self) -> serde_json::Map<String, serde_json::Value> {
        let token = &self.token;
        let scopes: Vec<_> = token.scopes.iter().map(|scope| scope.name()).collect();
        let mut facts = serde_json::Map::new();
        facts.insert("owner".to_owned(), (&*token.owner).into());
        facts.insert("scopes".to_owned(), scopes.into());
        if let Some(expires) = token.expires {
            facts.insert("expires".to_owned(), expires.to_string().into());
        }
        facts
    }
}

/// So many at once, and so many a second afterwards.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn full(burst: f64) -> Self {
        Self { left: burst, at: Instant::now() }
    }

    fn refill(&mut self, per_second: f64, burst: f64) {
        let now = Instant::now();
        self.left = (self.left + now.duration_since(self.at).as_secs_f64() * per_second).min(burst);
        self.at = now;
    }

    /// Takes one, or says when there is one.
    fn take(&mut self, per_second: f64, burst: f64) -> Option<Duration> {
        self.refill(per_second, burst);
        if self.left >= 1.0 {
            self.left -= 1.0;
            return None;
        }
        Some(Duration::from_secs_f64((1.0 - self.left) / per_second))
    }
}

/// What changed since the tokens were last looked at.
#[derive(Debug, Default)]
pub struct Changes {
    /// Nothing was known before.
    pub is_first: bool,
    pub added: Vec<Arc<Visitor>>,
    /// Those that are there again under the same name, as they are now.
    pub rotated: Vec<Arc<Visitor>>,
    pub revoked: Vec<Arc<Visitor>>,
}

/// A file as it was when it was read.
type Stamp = Option<(i64, i64, u64, u64)>;

#[derive(Debug, Default)]
struct VisitorCache {
    stamps: [Stamp; 2],
    has_looked: bool,
    visitors: Vec<Arc<Visitor>>,
    failures: HashMap<IpAddr, Bucket>,
    written: Option<Instant>,
}

#[derive(Debug)]
pub struct Visitors {
    files: [PathBuf; 2],
    uses: PathBuf,
    settings: HttpSettings,
    owner: Arc<str>,
    /// A std mutex: held for a few comparisons, and for reading two small files when they have changed.
    known: Mutex<VisitorCache>,
}

impl Visitors {
    pub fn new(places: &Places, settings: &HttpSettings) -> Self {
        Self {
            files: [places.token(), places.tokens()],
            uses: places.token_uses(),
            settings: settings.clone(),
            owner: own_owner().into(),
            known: Mutex::default(),
        }
    }

    /// Reads the files again if they have changed.
    pub fn refresh(&self) -> Option<Changes> {
        let mut known = self.known.lock().expect("no panic while locked");
        let stamps = [stamp(&self.files[0]), stamp(&self.files[1])];
        if known.stamps == stamps && stamps.iter().any(Option::is_some) {
            return None;
        }
        known.stamps = stamps;
        let read = self.read(&known.visitors);
        let only = |visitors: &[Arc<Visitor>], without: &[Arc<Visitor>]| -> Vec<Arc<Visitor>> {
            let is_new = |visitor: &&Arc<Visitor>| !without.iter().any(|other| Arc::ptr_eq(visitor, other));
            visitors.iter().filter(is_new).cloned().collect()
        };
        let (new, mut revoked) = (only(&read, &known.visitors), only(&known.visitors, &read));
        let is_named = |one: &Arc<Visitor>, other: &Arc<Visitor>| one.token.name == other.token.name;
        let (rotated, added) = new.into_iter().partition(|visitor| revoked.iter().any(|old| is_named(old, visitor)));
        let rotated: Vec<Arc<Visitor>> = rotated;
        revoked.retain(|old| !rotated.iter().any(|visitor| is_named(old, visitor)));
        let changes = Changes { is_first: !known.has_looked, added, rotated, revoked };
        known.has_looked = true;
        for visitor in &known.visitors {
            if !read.iter().any(|other| Arc::ptr_eq(visitor, other)) {
                visitor.token.revoked.cancel();
            }
        }
        known.visitors = read;
        Some(changes)
    }

    /// Both files. One that cannot be believed opens nothing.
    fn read(&self, before: &[Arc<Visitor>]) -> Vec<Arc<Visitor>> {
        let own = token::load_own(&self.files[0]).unwrap_or_else(|error| {
            tracing::error!(%error, "the owner's token opens nothing now");
            None
        });
        let more = token::load(&self.files[1]).unwrap_or_else(|error| {
            tracing::error!(%error, "tokens open nothing now");
            Vec::new()
        });
        if let Some(own) = &own {
            mask::hide(own);
        }
        let own = own.map(|own| Kept {
            name: OWN.to_owned(),
            owner: self.owner.to_string(),
            scopes: vec![Scope::Admin],
            sha256: hex(&sha256(own.as_bytes())),
            created: Timestamp::UNIX_EPOCH,
            expires: None,
        });
        let digested = own.into_iter().chain(more).filter_map(|kept| Some((unhex(&kept.sha256)?, kept)));
        digested
            .map(|(digest, kept)| {
                let same = before.iter().find(|visitor| visitor.is_same(&kept, digest)).cloned();
                same.unwrap_or_else(|| Arc::new(self.enliven(kept, digest)))
            })
            .collect()
    }

    fn enliven(&self, kept: Kept, digest: [u8; 32]) -> Visitor {
        let token = Token {
            name: kept.name.into(),
            owner: kept.owner.into(),
            scopes: kept.scopes,
            expires: kept.expires,
            revoked: CancellationToken::new(),
        };
        Visitor {
            token: Arc::new(token),
            digest,
            requests: Arc::new(Semaphore::new(self.settings.requests_per_token)),
            streams: Arc::new(Semaphore::new(self.settings.streams_per_token)),
            rate: Mutex::new(Bucket::full(2.0 * f64::from(self.settings.rate))),
            last_used: AtomicI64::new(0),
        }
    }

    /// Whose token was given, if it opens the door. All are compared, each in the same time.
    pub fn find(&self, given: &str) -> Option<Arc<Visitor>> {
        let digest = sha256(given.as_bytes());
        let mut known = self.known.lock().expect("no panic while locked");
        let mut found = None;
        for visitor in &known.visitors {
            if bool::from(visitor.digest.ct_eq(&digest)) {
                found = Some(visitor.clone());
            }
        }
        let found = found.filter(|visitor| !visitor.token.is_over())?;
        found.last_used.store(Timestamp::now().as_second(), Ordering::Relaxed);
        if known.written.is_none_or(|written| written.elapsed() >= USE_EVERY) {
            known.written = Some(Instant::now());
            let uses = known.visitors.iter();
            let uses = uses.map(|one| (one.token.name.to_string(), one.last_used.load(Ordering::Relaxed)));
            let uses: BTreeMap<String, i64> = uses.filter(|(_, at)| *at > 0).collect();
            let path = self.uses.clone();
            tokio::task::spawn_blocking(move || write_uses(&path, uses));
        }
        Some(found)
    }

    /// Counts a failure of this address. How long it has to wait if there were too many.
    pub fn failed(&self, peer: IpAddr) -> Option<Duration> {
        let burst = f64::from(self.settings.auth_failures.max(1));
        let per_second = burst / 60.0;
        let mut known = self.known.lock().expect("no panic while locked");
        if known.failures.len() >= MAX_PEERS {
            known.failures.retain(|_, bucket| {
                bucket.refill(per_second, burst);
                bucket.left < burst
            });
            // Still full: somebody has many addresses. Forgetting all of them only lets them be refused with another number.
            if known.failures.len() >= MAX_PEERS {
                known.failures.clear();
            }
        }
        known.failures.entry(network(peer)).or_insert_with(|| Bucket::full(burst)).take(per_second, burst)
    }
}

/// Who has a whole IPv6 network has all its addresses.
pub(super) fn network(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V6(address) => address.to_ipv4_mapped().map_or_else(
            || {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6([a, b, c, d, 0, 0, 0, 0].into())
            },
            IpAddr::V4,
        ),
        IpAddr::V4(_) => peer,
    }
}

fn stamp(path: &Path) -> Stamp {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec(), metadata.ino(), metadata.size() ^ u64::from(metadata.mode()) << 40))
}

/// When tokens were last used, by name, as seconds since 1970.
pub fn read_uses(path: &Path) -> BTreeMap<String, i64> {
    fs::read_to_string(path).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

fn write_uses(path: &Path, uses: BTreeMap<String, i64>) {
    let mut all = read_uses(path);
    all.extend(uses);
    let written = serde_json::to_vec(&all).map_err(std::io::Error::other).and_then(|text| fs::write(path, text));
    if let Err(error) = written {
        tracing::debug!(%error, "when tokens were used could not be written down");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_says_how_long_to_wait() {
        let mut bucket = Bucket::full(3.0);
        for _ in 0..3 {
            assert_eq!(bucket.take(0.001, 3.0), None);
        }
        let wait = bucket.take(0.001, 3.0).unwrap();
        assert!(wait.as_secs() >= 900 && wait.as_secs() <= 1000, "{wait:?}");
        bucket.at = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
        assert_eq!(bucket.take(1.0, 3.0), None);
    }

    /// What is compared are hashes of 256 bits, all of each and each of all: how long it takes says nothing about a token.
    #[tokio::test]
    async fn tokens_are_found_as_a_whole_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("pylair-visitors-{}", std::process::id()));
        let env = BTreeMap::from([("PYLAIR_HOME".to_owned(), dir.display().to_string())]);
        let places = Places::resolve(&env, 0);
        places.create().unwrap();
        let own = token::load_or_create(&places.token()).unwrap();
        let add = |name| {
            let wanted = token::Wanted { name, owner: "alice", scopes: &[Scope::Read], lasts: None };
            token::add(&places, &wanted).unwrap()
        };
        let made = ["a", "b", "c"].map(add);
        let visitors = Visitors::new(&places, &HttpSettings::default());
        assert!(visitors.refresh().is_some());
        let name = |given: &str| visitors.find(given).map(|visitor| visitor.token.name.to_string());
        assert_eq!(name(&own).as_deref(), Some(OWN));
        assert_eq!(made.each_ref().map(|made| name(made).unwrap()), ["a", "b", "c"]);
        for good in made.iter().chain([&own]) {
            for at in [0, good.len() / 2, good.len() - 1] {
                let mut near = good.clone().into_bytes();
                near[at] ^= 1;
                assert_eq!(name(&String::from_utf8(near).unwrap()), None);
            }
            assert_eq!(
                (name(&good[1..]), name(&good[..good.len() - 1]), name(&format!("{good} "))),
                (None, None, None)
            );
            assert_eq!(name(&hex(&sha256(good.as_bytes()))), None, "what is kept of a token opens nothing");
        }
        assert_eq!(name(""), None);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let address = |text: &str| network(text.parse().unwrap());
        assert_eq!(address("2001:db8:1:2:3:4:5:6"), address("2001:db8:1:2::1"));
        assert_ne!(address("2001:db8:1:2::1"), address("2001:db8:1:3::1"));
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
        assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
    }
}

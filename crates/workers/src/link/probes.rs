//! The daemon's probes: templates, the nursery once somebody needed it, and a worker forked ahead for the next session of each kind.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::Link;
use crate::{
    nursery::{self, Nursery},
    template::{Key, Template, Templates},
};
use pylair_sandbox::confine::Trial;

/// How long after a session was opened the next spare worker is forked.
const SPARE_DELAY: Duration = Duration::from_millis(5);

/// The daemon's probes: templates, and the nursery once somebody needed it.
#[derive(Debug)]
pub struct Probes {
    program: std::path::PathBuf,
    pub templates: Templates,
    nursery: tokio::sync::Mutex<Option<Arc<Nursery>>>,
    spares: Spares,
    trial: Trial,
}

/// A worker per template that was forked ahead and waits for its `start`; `None` while it is being made.
type Spares = Arc<Mutex<HashMap<Key, Option<Link>>>>;

impl Probes {
    /// `program` is the pylair executable, for keepers and the nursery; `trial` what confined workers try to reach.
    pub fn new(program: &Path, trial: Trial) -> io::Result<Self> {
        Ok(Self {
            program: program.to_owned(),
            templates: Templates::new(program)?,
            nursery: tokio::sync::Mutex::default(),
            spares: Spares::default(),
            trial,
        })
    }

    /// The pylair executable.
    pub fn program(&self) -> &Path {
        &self.program
    }

    pub(super) fn trial(&self) -> Trial {
        self.trial.clone()
    }

    /// The spare worker of a template, if it is there and alive.
    pub(super) fn take_spare(&self, key: &Key, template: &Arc<Template>) -> Option<Link> {
        let mut spares = self.spares.lock().expect("no panic while locked");
        // Those of templates that were let go would keep them alive.
        spares.retain(|key, spare| spare.as_ref().is_none_or(|link| self.templates.is_current(key, &link.template)));
        let spare = spares.get_mut(key)?.take_if(|link| Arc::ptr_eq(&link.template, template))?;
        spares.remove(key);
        spare.is_alive().then_some(spare)
    }

    /// Forks the next spare, a little later, so that it does not get in the way of the session that is starting.
    pub(super) fn make_spare(&self, key: Key, template: Arc<Template>) {
        let spares = self.spares.clone();
        match spares.lock().expect("no panic while locked").entry(key.clone()) {
            Entry::Occupied(_) => return,
            Entry::Vacant(slot) => slot.insert(None),
        };
        pylair_os::event_loop::spawn(async move {
            tokio::time::sleep(SPARE_DELAY).await;
            let spare = Link::fork(template, None, None, &[]).await;
            let mut spares = spares.lock().expect("no panic while locked");
            match spare {
                // Nobody waits for it if the daemon has ended them all meanwhile.
                Ok(link) if spares.contains_key(&key) => drop(spares.insert(key, Some(link))),
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "a spare worker could not be made");
                    spares.remove(&key);
                }
            }
        });
    }

    /// Ends what was made ahead.
    pub async fn close(&self) {
        let spares = std::mem::take(&mut *self.spares.lock().expect("no panic while locked"));
        futures::future::join_all(spares.into_values().flatten().map(Link::close)).await;
    }

    /// The nursery, started if there is none or the last one is gone.
    pub async fn nursery(&self) -> Result<Arc<Nursery>, nursery::Error> {
        let mut slot = self.nursery.lock().await;
        if let Some(nursery) = slot.as_ref().filter(|nursery| !nursery.is_gone()) {
            return Ok(nursery.clone());
        }
        let nursery = Arc::new(Nursery::start(&self.program).await?);
        *slot = Some(nursery.clone());
        Ok(nursery)
    }
}

//! The daemon's end of the nursery: the single-threaded helper that makes confined keepers and the templates that enter them.
//!
//! Started when the first confined session is asked for; `keeper::nursery` is the other end.

use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::control::Control;
use pylair_keeper::{
    Report,
    nursery::{KeeperRequest, Request},
};
use pylair_os::inherited;
use pylair_sandbox::share;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the nursery could not be started")]
    Start(#[source] io::Error),
    #[error("this machine does not let pylair confine a session: {0}")]
    Unable(String),
    #[error("the nursery is gone")]
    Gone(#[source] io::Error),
    #[error("{0}")]
    Failed(String),
}

/// A confined keeper: pid 1 of its namespaces, waiting for a worker.
#[derive(Debug)]
pub struct ConfinedKeeper {
    pub control: Control,
    pub pidfd: OwnedFd,
    pub ruleset: Option<OwnedFd>,
    /// Where the session's connections come in, if it was to have a proxy.
    pub proxy: Option<OwnedFd>,
}

#[derive(Debug)]
pub struct Nursery {
    /// One request at a time: each answer belongs to the request before it.
    control: Mutex<Control>,
    gone: AtomicBool,
    _child: tokio::process::Child,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Message {
    ready: Option<bool>,
    error: Option<String>,
}

impl Nursery {
    pub async fn start(program: &Path) -> Result<Self, Error> {
        let (control, theirs) = Control::pair().map_err(Error::Start)?;
        let raw = theirs.as_raw_fd();
        let mut command = std::process::Command::new(program);
        command
            .arg("__nursery")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        inherited::give_back(&mut command);
        // SAFETY: async-signal-safe calls only. dup2 onto itself would keep close-on-exec, so that case is handled apart.
        unsafe {
            command.pre_exec(move || {
                // It stands lower than the daemon, and so does all it makes. Neither matters where it cannot be had.
                libc::setsid();
                libc::nice(share::STEP);
                let result = if raw == 3 { libc::fcntl(3, libc::F_SETFD, 0) } else { libc::dup2(raw, 3) };
                if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn().map_err(Error::Start)?;
        drop(theirs);
        child.id().into_iter().for_each(share::hold_back);
        let (message, _) = control.receive_message::<Message>().await.map_err(Error::Gone)?;
        if message.ready != Some(true) {
            return Err(Error::Unable(message.error.unwrap_or_else(|| "the nursery did not say why".to_owned())));
        }
        Ok(Self { control: Mutex::new(control), gone: AtomicBool::new(false), _child: child })
    }

    /// It ended, or an answer of it did not come: another one has to be started.
    pub fn is_gone(&self) -> bool {
        // While somebody else asks, whether it is there will be seen.
        self.gone.load(Ordering::Acquire) || self.control.try_lock().is_ok_and(|control| control.is_hung_up())
    }

    /// A keeper in fresh namespaces. The descriptors are for the program that is run below it, if one is.
    pub async fn keeper(
        self: &Arc<Self>,
        request: &KeeperRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<ConfinedKeeper, Error> {
        let [control, pidfd] = self.ask(&Request::Keeper(Box::new(request.clone())), descriptors).await?;
        let control = Control::new(control).map_err(Error::Gone)?;
        let ready = tokio::time::timeout(super::control::ANSWER_TIMEOUT, control.receive())
            .await
            .map_err(|_| Error::Failed("the keeper did not get ready in time".to_owned()))?
            .map_err(Error::Gone)?;
        match Report::parse(&ready.bytes) {
            Some(Report::Ready) => {
                let mut gifts = ready.descriptors;
                let proxy = if request.proxy { gifts.pop() } else { None };
                Ok(ConfinedKeeper { control, pidfd, ruleset: gifts.into_iter().next(), proxy })
            }
            Some(Report::Failed(why)) => Err(Error::Unable(why)),
            _ => Err(Error::Failed("the keeper ended before it was ready".to_owned())),
        }
    }

    /// Starts a program where it may enter the namespaces of keepers; returns its pidfd.
    pub async fn spawn(
        self: &Arc<Self>,
        argv: &[String],
        env: &BTreeMap<String, String>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<OwnedFd, Error> {
        let request = serde_json::json!({"op": "spawn", "id": 0, "argv": argv, "env": env});
        let [pidfd] = self.ask(&request, descriptors).await?;
        Ok(pidfd)
    }

    /// Asks in a task of its own: a caller that goes away in the middle would leave its answer for the next one.
    async fn ask<T: Serialize, const N: usize>(
        self: &Arc<Self>,
        request: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<[OwnedFd; N], Error> {
        let request = serde_json::to_vec(request).map_err(|error| Error::Gone(error.into()))?;
        let descriptors: Vec<OwnedFd> =
            descriptors.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>().map_err(Error::Gone)?;
        let nursery = self.clone();
        let asked = pylair_os::event_loop::spawn(async move {
            let control = nursery.control.lock().await;
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            let answer = match control.send_bytes(&request, &borrowed) {
                Ok(()) => control.receive_message::<Message>().await,
                Err(error) => Err(error),
            };
            // Whatever went wrong, an answer may still come and must not be taken for another's.
            answer.inspect_err(|_| nursery.gone.store(true, Ordering::Release)).map_err(Error::Gone)
        });
        let (message, answer) = asked.await.map_err(|error| Error::Gone(io::Error::other(error)))??;
        if let Some(error) = message.error {
            return Err(Error::Failed(error));
        }
        let unexpected = |_| Error::Failed("the nursery sent other descriptors than expected".to_owned());
        answer.descriptors.try_into().map_err(unexpected)
    }
}

//! The daemon's end of the nursery: the single-threaded helper that makes confined keepers and the templates that enter them.
//!
//! Started when the first confined session is asked for; `keeper::nursery` is the other end.

use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::Stdio,
};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::control::Control;
use crate::keeper::Report;

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
}

#[derive(Debug)]
pub struct Nursery {
    /// One request at a time: each answer belongs to the request before it.
    control: Mutex<Control>,
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
        // SAFETY: async-signal-safe calls only. dup2 onto itself would keep close-on-exec, so that case is handled apart.
        unsafe {
            command.pre_exec(move || {
                let result = if raw == 3 { libc::fcntl(3, libc::F_SETFD, 0) } else { libc::dup2(raw, 3) };
                if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn().map_err(Error::Start)?;
        drop(theirs);
        let (message, _) = control.receive_message::<Message>().await.map_err(Error::Gone)?;
        if message.ready != Some(true) {
            return Err(Error::Unable(message.error.unwrap_or_else(|| "the nursery did not say why".to_owned())));
        }
        Ok(Self { control: Mutex::new(control), _child: child })
    }

    /// A keeper in fresh namespaces.
    pub async fn keeper<T: Serialize>(&self, request: &T) -> Result<ConfinedKeeper, Error> {
        let [control, pidfd] = self.ask(request, &[]).await?;
        let control = Control::new(control).map_err(Error::Gone)?;
        let ready = tokio::time::timeout(super::control::ANSWER_TIMEOUT, control.receive())
            .await
            .map_err(|_| Error::Failed("the keeper did not get ready in time".to_owned()))?
            .map_err(Error::Gone)?;
        match Report::parse(&ready.bytes) {
            Some(Report::Ready) => Ok(ConfinedKeeper { control, pidfd, ruleset: ready.descriptors.into_iter().next() }),
            Some(Report::Failed(why)) => Err(Error::Unable(why)),
            _ => Err(Error::Failed("the keeper ended before it was ready".to_owned())),
        }
    }

    /// Starts a program where it may enter the namespaces of keepers; returns its pidfd.
    pub async fn spawn(
        &self,
        argv: &[String],
        env: &BTreeMap<String, String>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<OwnedFd, Error> {
        let request = serde_json::json!({"op": "spawn", "id": 0, "argv": argv, "env": env});
        let [pidfd] = self.ask(&request, descriptors).await?;
        Ok(pidfd)
    }

    async fn ask<T: Serialize, const N: usize>(
        &self,
        request: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<[OwnedFd; N], Error> {
        let control = self.control.lock().await;
        control.send(request, descriptors).map_err(Error::Gone)?;
        let (message, answer) = control.receive_message::<Message>().await.map_err(Error::Gone)?;
        if let Some(error) = message.error {
            return Err(Error::Failed(error));
        }
        answer
            .descriptors
            .try_into()
            .map_err(|_| Error::Failed("the nursery sent other descriptors than expected".to_owned()))
    }
}

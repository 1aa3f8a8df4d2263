//! Packages of a session: installed on request, or before a cell that would miss them.

use std::{
    io::{self, Read},
    path::Path,
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;
use tokio::sync::mpsc;

use super::{Error, MAX_CODE_BYTES, Session, Work, read_answer};
use crate::{
    packages::{Error as InstallError, Installed, Order, Requirement, Site},
    settings::CallerSettings,
};
use pylair_os::regular;
use pylair_probe::wire::Op;
use pylair_workers::{link::Walls, nursery::Nursery};

/// New `.pth` files are run, which may be slow.
const SITE_TIMEOUT: Duration = Duration::from_mins(1);

/// What a worker says to `site`.
#[derive(Debug, Deserialize)]
struct Loaded {
    loaded: Vec<String>,
}

/// What a worker says to `imports`.
#[derive(Debug, Deserialize)]
struct Imports {
    missing: Vec<String>,
}

/// What tells a worker of packages.
pub(super) fn site_request(site: &Site) -> Op {
    Op::Site {
        directory: site.directory.display().to_string(),
        bin: site.programs.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":"),
    }
}

impl Session {
    /// Installs packages into the session's environment and makes them known to the running worker. Lines of the installer are offered
    /// to `lines` as they come. Dropping the future stops the installer.
    pub async fn install(
        &self,
        packages: &[String],
        lines: &mpsc::Sender<String>,
        limit: Duration,
    ) -> Result<Installed, Error> {
        let requirements = Requirement::parse_all(packages).map_err(InstallError::from)?;
        let info = &self.info;
        let confined = info.terms.profile.is_confined();
        let (nursery, mut unconfined) = self.nursery_for_installer().await?;
        let groups = if nursery.is_some() { self.parts.groups().await } else { Arc::default() };
        let order = Order {
            session: &info.name,
            owner: &info.owner,
            handle: &info.handle,
            interpreter: &info.interpreter,
            env: if confined { &info.installer_env } else { &info.env },
            cwd: if confined { Path::new("/") } else { &info.cwd },
            confined,
            sandbox: nursery.as_ref().map(|nursery| (nursery, &groups, info.workspace.owner)),
            requirements: &requirements,
            limit,
        };
        let mut installed = match info.environment.install(order, lines).await {
            Err(InstallError::Sandbox { why }) if self.info.best_effort => {
                unconfined = Some(why);
                info.environment.install(Order { sandbox: None, ..order }, lines).await?
            }
            installed => installed?,
        };
        installed.notes.extend(unconfined.map(|why| format!("the installer ran without a sandbox: {why}")));
        let op = site_request(&installed.site);
        match self.ask(op, Vec::new(), SITE_TIMEOUT).await.and_then(read_answer) {
            Ok(Loaded { loaded }) => installed.note_loaded(&loaded),
            Err(Error::Busy { cell, .. }) => installed.notes.push(format!(
                "cell {cell} is running: the cell after it can import what was installed, and what is loaded already stays as it is"
            )),
            Err(error) => {
                installed.notes.push(format!("the running interpreter could not be told: {}", error.message()));
            }
        }
        Ok(installed)
    }

    /// What makes the sandbox of an installer for a confined session; where that cannot be and need not, why.
    async fn nursery_for_installer(&self) -> Result<(Option<Arc<Nursery>>, Option<String>), Error> {
        if !self.info.terms.profile.is_confined() {
            return Ok((None, None));
        }
        if self.info.walls == Walls::Bare {
            return Ok((None, Some("this machine has none".to_owned())));
        }
        match self.parts.probes.nursery().await {
            Ok(nursery) => Ok((Some(nursery), None)),
            Err(error) if self.info.best_effort => Ok((None, Some(error.to_string()))),
            Err(error) => Err(InstallError::Sandbox { why: error.to_string() }.into()),
        }
    }

    /// Where `auto_install` is on: installs the packages of modules that the code imports and that are not there, before any of it has
    /// run. Only the usual packages, never one by a name nobody knows. Returns what the caller of the cell must know.
    pub(super) async fn before_cell(&self, work: &Work, settings: &CallerSettings) -> Vec<String> {
        if !settings.auto_install {
            return Vec::new();
        }
        let code = match work {
            Work::Code { path: Some(_), .. } => return Vec::new(),
            Work::Code { code, .. } => code.clone().into_bytes(),
            Work::File { source: Some(source), .. } => source.clone().into_bytes(),
            Work::File { file, .. } => match self.script(file).await {
                Some(code) => code,
                None => return Vec::new(),
            },
        };
        if !code.windows(6).any(|window| window == b"import") {
            return Vec::new();
        }
        // A session that is busy, or code that is not UTF-8: the cell itself will tell.
        let Ok(Imports { missing }) = self.look(Op::Imports, code).await else { return Vec::new() };
        let packages: Vec<String> =
            pylair_python::modules::packages_of(&missing).into_iter().map(str::to_owned).collect();
        if packages.is_empty() {
            return Vec::new();
        }
        let (unheard, _) = mpsc::channel(1);
        match self.install(&packages, &unheard, settings.install_timeout).await {
            Ok(installed) => {
                let names: Vec<_> =
                    installed.installed.iter().map(|package| format!("{} {}", package.name, package.version)).collect();
                let mut notes = vec![format!(
                    "installed before the cell ran, because of its imports: {} (into {}, {:.1} s)",
                    names.join(", "),
                    installed.environment,
                    installed.seconds
                )];
                notes.extend(installed.notes);
                notes
            }
            Err(error) => {
                vec![format!("{} could not be installed before the cell ran: {}", packages.join(", "), error.message())]
            }
        }
    }

    /// A script as the session will find it. None if it is no plain file of a reasonable size: the cell itself will tell.
    async fn script(&self, path: &Path) -> Option<Vec<u8>> {
        // What a confined session calls so is another file here.
        let confined = if self.info.terms.profile.is_confined() {
            Some(self.info.workspace.download(path.to_str()?).await.ok()?.file)
        } else {
            None
        };
        let path = path.to_owned();
        let read = tokio::task::spawn_blocking(move || {
            let file = match confined {
                Some(file) => file,
                None => regular::open(&path)?,
            };
            let mut code = Vec::new();
            file.take(MAX_CODE_BYTES as u64 + 1).read_to_end(&mut code)?;
            io::Result::Ok(code)
        });
        read.await.ok()?.ok().filter(|code| code.len() <= MAX_CODE_BYTES)
    }
}

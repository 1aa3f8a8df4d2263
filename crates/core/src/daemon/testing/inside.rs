//! Runs of pytest in a session, within its walls if it has any: a cell that starts pytest. Where the session cannot reach the daemon, the
//! plugin finds none and leaves what it has to report in a directory of the workspace, from where it is taken when the cell has ended.

use std::{
    io::Read,
    path::{Component, Path},
    sync::Arc,
};

use serde_json::json;

use super::{Ended, RunLocation, TestRun, TestWish};
use crate::{
    caller::{Caller, Scope},
    daemon::{
        Daemon,
        targets::{Error, Purpose},
    },
    session::{self, Execution, OnTimeout, OpenOptions, Outcome, RunBy, Session, Work, literal},
};
use pylair_failures::{
    self as failures,
    record::{Frozen, Record},
};
use pylair_files::{self as files, Workspace};
use pylair_probe::directory::{Directory, PYTEST_SCRIPT};
use pylair_sandbox::{self as sandbox, Profile, Wish};

/// The most that is taken in of one run.
const MAX_REPORT_BYTES: u64 = 64 << 20;

/// Why a failure in a sandbox has no living copy.
const NOT_FROZEN: &str = "its test ran in a sandbox, from where no daemon can be reached";

/// A session that tests run in.
struct Room {
    session: Session,
    /// Who opened it for this run alone, and closes it.
    opened_by: Option<Caller>,
    /// Where pytest starts, as the session sees it.
    cwd: String,
}

impl Daemon {
    pub(super) async fn run_tests_inside(
        self: &Arc<Self>,
        caller: &Caller,
        wish: TestWish,
    ) -> Result<Arc<TestRun>, Error> {
        let args = wish.args.clone();
        let room = self.room(caller, wish).await?;
        let started = self.start_inside(caller, &room, &args).await;
        if started.is_err() {
            self.leave(&room).await;
        }
        let (run, left) = started?;
        self.testing.add(run.clone());
        let name = || caller.env.get("USER").cloned().unwrap_or_else(|| caller.owner.to_string());
        let by = caller.credential.as_ref().map_or_else(name, |_| caller.owner.to_string());
        pylair_os::event_loop::spawn(self.clone().follow_inside(run.clone(), room, left, by));
        Ok(run)
    }

    /// The session that was named, or else one that was opened for this.
    async fn room(&self, caller: &Caller, wish: TestWish) -> Result<Room, Error> {
        let wrong = |why: &str| Err(Error::BadArgument(why.to_owned()));
        if let Some(target) = &wish.target {
            if wish.sandbox.is_some() || wish.python.is_some() {
                return wrong("`target` says where the tests run; neither `sandbox` nor `python` goes with it");
            }
            let session = self.session(caller, Some(target), Purpose::Run, "run_tests").await?;
            let cwd = session.workspace().seen_as.join(wish.cwd.unwrap_or_default());
            return Ok(Room { cwd: cwd.display().to_string(), session, opened_by: None });
        }
        let Some(cwd) = wish.cwd.or_else(|| caller.cwd.clone()) else {
            return wrong(
                "the directory of the tests is not known: pass `cwd`, or `target` with a session that has them",
            );
        };
        let cwd = caller.cwd.as_ref().map_or_else(|| cwd.clone(), |from| from.join(&cwd));
        let is_admin = caller.may(Scope::Admin);
        // What there is outside of the sandbox is not for everybody to find out.
        let real = if is_admin { cwd.canonicalize().ok().filter(|cwd| cwd.is_dir()) } else { Some(cwd.clone()) };
        let Some(cwd) = real.filter(|_| cwd.is_absolute()) else {
            return Err(Error::BadArgument(format!("`{}` is not a directory; pass `cwd` with one", cwd.display())));
        };
        let usual = caller.floor.unwrap_or(Profile::Workspace);
        let wanted = wish.sandbox.unwrap_or_else(|| Wish::from(usual.name()));
        let is_sealed = wanted.profile() == Profile::Sealed.name();
        let mut sandbox = wanted.into_rules();
        // Whoever may run tests may have this session, and nothing that its own scopes do not have.
        let mut opener = Caller { scopes: [&caller.scopes[..], &[Scope::Run]].concat(), ..caller.clone() };
        if is_admin {
            // The session works in a directory of its own and is given the project beside it: what pylair needs is put where it can be written,
            // whoever the project belongs to. Being there, it finds the project's interpreter.
            opener.cwd = Some(cwd.clone());
            let may_write = !is_sealed && self.sessions.parts.protected.check(&cwd, true).is_ok();
            let given = if may_write { &mut sandbox.allow_write } else { &mut sandbox.allow_read };
            given.push(cwd.clone());
        }
        let options = OpenOptions {
            name: Some(format!("tests-{}", session::new_handle())),
            python: wish.python,
            sandbox: Some(Wish::Rules(Box::new(sandbox))),
            description: Some("a run of tests".to_owned()),
            ..OpenOptions::default()
        };
        let session = self.sessions.open(&opener, options).await?;
        let room = Room { session, opened_by: Some(opener), cwd: cwd.display().to_string() };
        let terms = &room.session.info.terms;
        let is_plain = !cwd.components().any(|part| part == Component::ParentDir);
        let is_granted =
            is_plain && terms.allow_read.iter().chain(&terms.allow_write).any(|path| cwd.starts_with(path));
        if !is_granted {
            self.leave(&room).await;
            let (name, wanted) = ("allow_read", cwd.display().to_string());
            let refused = match caller.floor {
                Some(_) => sandbox::Error::NotInSettings { name, wanted },
                None => sandbox::Error::NotGranted { name, wanted },
            };
            return Err(session::Error::Sandbox(refused).into());
        }
        Ok(room)
    }

    /// Puts the plugin where the session can read it, and starts the cell. With the run comes what of the workspace is the run's own.
    async fn start_inside(
        &self,
        caller: &Caller,
        room: &Room,
        args: &[String],
    ) -> Result<(Arc<TestRun>, Option<String>), Error> {
        let (session, run) = (&room.session, pylair_os::random::digits(8));
        let is_confined = session.info.terms.profile.is_confined();
        let runtime = self.places.runtime.clone();
        let failed = |why: String| Error::NoRun(format!("the pytest plugin could not be written: {why}"));
        let prepared = tokio::task::spawn_blocking(move || {
            let directory = Directory::for_tests(&runtime);
            if is_confined { Ok(directory) } else { directory.prepare().map(|_| directory) }
        });
        let directory = prepared.await.map_err(|error| failed(error.to_string()))?;
        let directory = directory.map_err(|error| failed(error.to_string()))?;
        let mut env = vec![("PYLAIR_TEST_RUN".to_owned(), run.clone())];
        let mut left = None;
        let place = if is_confined {
            let name = format!(".pylair-{run}.tmp");
            let workspace = session.workspace();
            // Git has no business in it: it would be a change of the code that is tested.
            let ignore = (".gitignore", b"*\n".to_vec());
            for (file, content) in directory.into_files().into_iter().chain([ignore]) {
                if let Err(error) = workspace.write(&format!("{name}/{file}"), content).await {
                    remove(workspace, &name).await;
                    return Err(failed(error.message()));
                }
            }
            let place = workspace.seen_as.join(&name);
            env.push(("PYLAIR_HOME".to_owned(), place.display().to_string()));
            left = Some(name);
            place
        } else {
            let found = self.found_by(&session.info.env).into_iter();
            env.extend(found.map(|(name, value)| (name.to_owned(), value.display().to_string())));
            directory.path().to_owned()
        };
        if let Some(site) = session.info.environment.site() {
            // Packages that were installed for the session are the session's; a child has to be told.
            env.push(("PYTHONPATH".to_owned(), site.directory.display().to_string()));
        }
        let python = session.info.interpreter.executable.clone();
        let code = cell(&python, &place.join(PYTEST_SCRIPT), args, &room.cwd, &env);
        // The cell's own report is shown to nobody.
        let news = session.take_news();
        let work = Work::Code { code, path: None };
        let (sender, by) = (Some(&caller.sender), RunBy { client: &caller.client, settings: &caller.settings });
        let started = session.run_in_order(sender, work, None, OnTimeout::default(), by).await;
        match (started, left) {
            (Ok(job), left) => {
                let place = RunLocation::Session(session.clone());
                let run = TestRun::new(job, run, python, place, args);
                for note in news {
                    run.note(note);
                }
                Ok((Arc::new(run), left))
            }
            (Err(error), left) => {
                session.has_news(news);
                if let Some(left) = left {
                    remove(session.workspace(), &left).await;
                }
                Err(error.into())
            }
        }
    }

    /// Waits for the end, and takes in what was left.
    async fn follow_inside(self: Arc<Self>, run: Arc<TestRun>, room: Room, left: Option<String>, by: String) {
        let execution = run.job.ended().await;
        *run.ended.lock().expect("no panic while locked") = Some(ending(&execution));
        if let Some(left) = left {
            let workspace = room.session.workspace();
            if let Err(why) = self.take_report(workspace, &run, &left, &by).await {
                run.note(format!("what the tests reported was not recorded: {why}"));
            }
            remove(workspace, &left).await;
            if run.exit_code() == Some(1) {
                run.note("they ran in a sandbox, where failures are not frozen; get_failure shows the recorded values");
            }
        }
        run.settled.send_replace(true);
        self.leave(&room).await;
    }

    /// `by` is who asked for the run: in there nobody knows.
    async fn take_report(&self, workspace: &Workspace, run: &TestRun, left: &str, by: &str) -> Result<(), String> {
        let path = format!("{left}/state/spool/{}.jsonl", run.run);
        let report = match workspace.download(&path).await {
            Ok(report) => report,
            // `TestRun::unreported` says what that means.
            Err(files::Error::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.message()),
        };
        let is_cut = report.bytes > MAX_REPORT_BYTES;
        let (id, by) = (run.run.clone(), by.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let mut lines = Vec::new();
            report.file.take(MAX_REPORT_BYTES).read_to_end(&mut lines).map_err(|error| error.to_string())?;
            // The last line of a run that was killed may be half a one.
            lines.truncate(lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
            let mut records = failures::parse(&id, &lines).map_err(|error| error.message())?;
            for record in &mut records {
                match record {
                    Record::Run(began) => began.user = Some(by.clone()),
                    Record::Test(tested) => {
                        if let Some(failure) = &mut tested.failure {
                            failure.frozen.get_or_insert_with(|| Frozen::WhyNot(NOT_FROZEN.to_owned()));
                        }
                    }
                    _ => {}
                }
            }
            Ok::<_, String>(records)
        });
        let records = read.await.map_err(|error| error.to_string())??;
        self.failures.ingest(records).await.map_err(|error| error.message())?;
        if is_cut {
            run.note(format!("reports beyond {} MB were not recorded", MAX_REPORT_BYTES >> 20));
        }
        Ok(())
    }

    /// Closes what was opened for one run.
    async fn leave(&self, room: &Room) {
        if let Some(opener) = &room.opened_by
            && let Err(error) = self.sessions.close(opener, &room.session.info.handle, true).await
        {
            tracing::debug!(error = error.message(), "a session for tests was gone before it was closed");
        }
    }
}

async fn remove(workspace: &Workspace, name: &str) {
    let path = workspace.path.join(name);
    let removed = tokio::task::spawn_blocking(move || files::remove_tree(&path)).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(%error, "what a run of tests left in a workspace could not be removed");
    }
}

/// The cell: an expression, so that it leaves no name behind, whose value is pytest's exit code.
fn cell(python: &Path, script: &Path, args: &[String], cwd: &str, env: &[(String, String)]) -> String {
    let (python, script) = (python.display().to_string(), script.display().to_string());
    let argv: Vec<_> = [&python, &script].into_iter().chain(args).collect();
    let env: serde_json::Map<_, _> = env.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    format!(
        "__import__(\"subprocess\").call({}, cwd={}, env={{**__import__(\"os\").environ, **{}}})",
        literal::value(&json!(argv)),
        literal::string(cwd),
        literal::value(&json!(env)),
    )
}

fn ending(execution: &Execution) -> Ended {
    let code = execution.result.as_ref().and_then(|result| result.trim().parse::<i32>().ok());
    match (execution.outcome, code) {
        (Outcome::Ok, Some(code)) if code >= 0 => Ended::Code(code),
        (Outcome::Interrupted, _) => Ended::Code(2),
        (Outcome::Raised, _) => Ended::NotStarted,
        _ => Ended::Signal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_stay_arguments() {
        let args = ["-k".to_owned(), "a\" or __import__(\"os\")\n".to_owned()];
        let env = [("PYLAIR_HOME".to_owned(), "/workspace/.pylair-r.tmp".to_owned())];
        let code = cell("/usr/bin/python3".as_ref(), "/workspace/p.py".as_ref(), &args, "/workspace", &env);
        assert_eq!(
            code,
            r#"__import__("subprocess").call(["/usr/bin/python3", "/workspace/p.py", "-k", "a\" or __import__(\"os\")\n"], cwd="/workspace", env={**__import__("os").environ, **{"PYLAIR_HOME": "/workspace/.pylair-r.tmp"}})"#
        );
    }
}

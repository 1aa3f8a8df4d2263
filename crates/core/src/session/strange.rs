//! Interpreters that may be a project's own programs: asked what they are in a sandbox without a network, in which they see themselves,
//! what the system shows to everybody, and nothing to write.
//!
//! Called by `sessions` for a session that is to be in a sandbox too. What they answer is believed only as far as it does no harm.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};

use tokio::{io::AsyncReadExt, net::unix::pipe::Receiver};

use super::{Error, Parts};
use crate::caller::plain_environment;
use pylair_keeper::{
    Report,
    nursery::KeeperRequest,
    program::{self, Program, STANDARD_STREAMS},
};
use pylair_python::{self as python, ASK_TIMEOUT, Interpreter};
use pylair_sandbox::{confine, paths::Protected};
use pylair_workers::nursery::{ConfinedKeeper, Nursery};

/// Maximum length of an answer.
const MAX_BYTES: u64 = 64 << 10;
/// How long pipes may stay open when everything that could hold them has been ended.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
const TMP_MB: u32 = 16;
const LIMITS: [(&str, u64); 6] = [
    ("RLIMIT_AS", 4 << 30),
    ("RLIMIT_CORE", 0),
    ("RLIMIT_CPU", 20),
    ("RLIMIT_FSIZE", 16 << 20),
    ("RLIMIT_NOFILE", 256),
    ("RLIMIT_NPROC", 64),
];

/// What this program says that it is.
pub(super) async fn ask(parts: &Parts, path: &Path) -> Result<Interpreter, Error> {
    let strange = |why: String| python::Error::Strange { path: path.to_owned(), why };
    let (protected, named) = (parts.protected.clone(), path.to_owned());
    let shown = tokio::task::spawn_blocking(move || shown(&named, &protected)).await;
    let shown = shown.unwrap_or_else(|error| Err(error.to_string())).map_err(strange)?;
    let asking = async {
        let nursery = parts.probes.nursery().await.map_err(|error| strange(error.to_string()))?;
        let start = |source| python::Error::Start { path: path.to_owned(), source };
        let said = tokio::time::timeout(ASK_TIMEOUT, listen(&nursery, request(path, &shown))).await;
        let said = said.map_err(|_| python::Error::Silent { path: path.to_owned() })?.map_err(start)?;
        let answer = python::read_answer(path, said.status, &said.stdout, &said.stderr)?;
        believed(answer, path, &shown)
    };
    Ok(parts.interpreters.ask_inside(path, asking).await?)
}

/// The answer, as far as it names nothing that the session would not be shown anyway.
fn believed(answer: Interpreter, path: &Path, shown: &Shown) -> Result<Interpreter, python::Error> {
    let lies_there = |path: &Path| confine::is_shown_to_all(path) || shown.all().any(|shown| path.starts_with(shown));
    let is_shown =
        |path: &Path| confine::is_shown_to_all(path) || shown.real.iter().any(|shown| path.starts_with(shown));
    let fits = |path: &Path| lies_there(path) && path.canonicalize().map_or(true, |real| is_shown(&real));
    let Interpreter { prefix, base_prefix, exec_prefix, base_exec_prefix, base_executable, .. } = &answer;
    let named = [prefix, base_prefix, exec_prefix, base_exec_prefix, base_executable];
    if let Some(elsewhere) = named.into_iter().find(|path| !fits(path)) {
        let detail = format!("it says that it is in `{}`, which it is not shown", elsewhere.display());
        return Err(python::Error::NotPython { path: path.to_owned(), detail });
    }
    let site_packages = answer.site_packages.iter().filter(|path| fits(path)).cloned().collect();
    Ok(Interpreter { executable: path.to_owned(), site_packages, within: shown.real.clone(), ..answer })
}

/// What a program is shown.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    /// Without symlinks.
    real: Vec<PathBuf>,
    /// The directory it is installed in, as it was named.
    named: PathBuf,
}

impl Shown {
    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.real.iter().chain([&self.named])
    }
}

/// What of this machine it needs: the directory it is installed in, and that of the interpreter it was made with if both are parts of one
/// project. An error says why that is too much. Blocks.
fn shown(path: &Path, protected: &Protected) -> Result<Shown, String> {
    let prefix = prefix_of(path).ok_or("it is in no directory")?;
    let real_prefix = prefix.canonicalize().map_err(|error| error.to_string())?;
    let around = real_prefix.parent().unwrap_or(&real_prefix).to_owned();
    let mut shown = vec![real_prefix.clone()];
    let real = path.canonicalize().map_err(|error| error.to_string())?;
    if !real.starts_with(&real_prefix) && !confine::is_shown_to_all(&real) {
        let elsewhere = prefix_of(&real).filter(|prefix| prefix.starts_with(&around));
        shown.push(elsewhere.ok_or_else(|| format!("it leads to `{}`", real.display()))?);
    }
    let home = python::home_of_venv(path).and_then(|home| home.canonicalize().ok());
    let base = home.and_then(|home| prefix_of(&home.join("python")));
    shown.extend(base.filter(|base| base.starts_with(&around) && *base != around));
    for path in &shown {
        protected.check(path, false).map_err(|error| error.to_string())?;
        if protected.homes.iter().any(|home| home.starts_with(path)) {
            return Err(format!("`{}` is a home directory", path.display()));
        }
    }
    Ok(Shown { real: shown, named: prefix })
}

/// Where a program of this name would be installed.
fn prefix_of(program: &Path) -> Option<PathBuf> {
    let directory = program.parent()?;
    let is_bin = directory.file_name().is_some_and(|name| name == "bin");
    let prefix = if is_bin { directory.parent()? } else { directory };
    prefix.parent().map(|_| prefix.to_owned())
}

fn request(path: &Path, shown: &Shown) -> KeeperRequest {
    KeeperRequest {
        id: 0,
        read_only: shown.all().cloned().collect(),
        within: shown.real.clone(),
        readable: Vec::new(),
        writable: Vec::new(),
        views: Vec::new(),
        workspace: None,
        tmp_mb: TMP_MB,
        network: false,
        proxy: false,
        uid: confine::new_outer_id(),
        program: Some(Program {
            argv: python::question(path),
            env: plain_environment("/tmp", "pylair"),
            cwd: "/".into(),
            descriptors: STANDARD_STREAMS,
            limits: LIMITS.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect(),
        }),
    }
}

struct Said {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// What the program says until it ends.
async fn listen(nursery: &Arc<Nursery>, request: KeeperRequest) -> io::Result<Said> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let ((stdout, stdout_end), (stderr, stderr_end)) = (pipe()?, pipe()?);
    let null = std::fs::File::open("/dev/null")?;
    let passed = [null.as_fd(), stdout_end.as_fd(), stderr_end.as_fd()];
    let keeper = nursery.keeper(&request, &passed).await.map_err(io::Error::other)?;
    drop((stdout_end, stderr_end));
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let status = {
        let mut reading = std::pin::pin!(async {
            tokio::join!(collect(stdout, &mut said), collect(stderr, &mut complained));
        });
        let mut ended = std::pin::pin!(end_of(keeper));
        let mut is_read = false;
        let status = loop {
            tokio::select! {
                () = &mut reading, if !is_read => is_read = true,
                status = &mut ended => break status?,
            }
        };
        if !is_read {
            // Who held them is being ended.
            let _open = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
        }
        status
    };
    Ok(Said { status, stdout: said, stderr: complained })
}

/// Waits for the program's end. What it has started ends with its keeper.
async fn end_of(keeper: ConfinedKeeper) -> io::Result<ExitStatus> {
    loop {
        let datagram = keeper.control.receive().await?;
        match Report::parse(&datagram.bytes) {
            Some(Report::Exit { pid: program::PID, status }) => return Ok(ExitStatus::from_raw(status)),
            None if datagram.bytes.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
}

/// Reads until the end or the limit, and closes the pipe, so that a program which goes on ends by SIGPIPE.
async fn collect(pipe: OwnedFd, into: &mut Vec<u8>) {
    let Ok(pipe) = Receiver::from_owned_fd(pipe) else { return };
    // What came before an error is kept.
    let _broken = pipe.take(MAX_BYTES).read_to_end(into).await;
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn answer(prefix: &str) -> Interpreter {
        Interpreter {
            executable: "/anything".into(),
            version: "3.12.1".into(),
            implementation: "cpython".into(),
            prefix: prefix.into(),
            base_prefix: prefix.into(),
            base_executable: "/project/env/bin/python".into(),
            exec_prefix: prefix.into(),
            base_exec_prefix: prefix.into(),
            site_packages: vec!["/project/env/lib/site-packages".into(), "/home/me".into()],
            within: Vec::new(),
        }
    }

    #[test]
    fn what_a_program_says_of_itself_shows_nothing_to_its_session() {
        let env = PathBuf::from("/project/env");
        let (path, shown) = (Path::new("/project/env/bin/python"), Shown { real: vec![env.clone()], named: env });
        let found = believed(answer("/project/env"), path, &shown).unwrap();
        assert_eq!(found.executable, path);
        assert_eq!(found.site_packages, [PathBuf::from("/project/env/lib/site-packages")]);
        assert!(believed(answer("/home/me"), path, &shown).is_err());
        assert!(believed(answer("/"), path, &shown).is_err());
        // Nor does what it has a link of its own lead to.
        let base = std::env::temp_dir().canonicalize().unwrap().join(format!("pylair-believed-{}", std::process::id()));
        let env = base.join("env");
        fs::create_dir_all(env.join("lib")).unwrap();
        fs::create_dir_all(base.join("private")).unwrap();
        symlink(base.join("private"), env.join("link")).unwrap();
        let shown = Shown { real: vec![env.clone()], named: env.clone() };
        let says =
            |prefix: &Path| Interpreter { base_executable: env.join("python"), ..answer(prefix.to_str().unwrap()) };
        assert_eq!(believed(says(&env.join("lib")), path, &shown).unwrap().within, std::slice::from_ref(&env));
        assert!(believed(says(&env.join("link")), path, &shown).unwrap_err().to_string().contains("not shown"));
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_program_is_shown_where_it_is_installed_and_no_more() {
        let base = std::env::temp_dir().canonicalize().unwrap().join(format!("pylair-strange-{}", std::process::id()));
        for directory in ["home/project/env/bin", "home/project/tools/bin", "home/bin", "home/other/bin"] {
            fs::create_dir_all(base.join(directory)).unwrap();
            fs::write(base.join(directory).join("python"), "").unwrap();
        }
        let (project, protected) =
            (base.join("home/project"), Protected { homes: vec![base.join("home")], ..Protected::default() });
        let env = project.join("env");
        assert_eq!(shown(&env.join("bin/python"), &protected).unwrap().real, std::slice::from_ref(&env));
        fs::write(env.join("pyvenv.cfg"), format!("home = {}\n", project.join("tools/bin").display())).unwrap();
        let both = [env.clone(), project.join("tools")];
        assert_eq!(shown(&env.join("bin/python"), &protected).unwrap().real, both);
        // Another project's is no part of this one.
        fs::write(env.join("pyvenv.cfg"), format!("home = {}\n", base.join("home/other/bin").display())).unwrap();
        assert_eq!(shown(&env.join("bin/python"), &protected).unwrap().real, std::slice::from_ref(&env));
        fs::remove_file(env.join("bin/python")).unwrap();
        symlink(base.join("home/other/bin/python"), env.join("bin/python")).unwrap();
        assert!(shown(&env.join("bin/python"), &protected).unwrap_err().contains("it leads to"));
        assert!(shown(&base.join("home/bin/python"), &protected).unwrap_err().contains("home directory"));
        fs::remove_dir_all(base).unwrap();
    }
}

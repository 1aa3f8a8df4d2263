//! What `python` may name: a path, a version, an environment, or a project whose environment is found.
//!
//! Environments are real venvs where the tools would have put them. The tools themselves are stand-ins where they appear: what is tested
//! is what becomes of their answers.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use pylair_core::session::OpenOptions;
use pylair_python::{Error, Interpreter, Interpreters};

use crate::support::{Home, newest_python, on_newest_python};

/// A home with one real venv, and short ways to lay out the rest.
struct Place {
    home: Home,
    env: BTreeMap<String, String>,
    venv: PathBuf,
}

impl Place {
    fn new() -> Self {
        let home = Home::new();
        let venv = home.path.join("a-venv");
        venv_at(&venv);
        let mut env = home.env.clone();
        // No interpreter of this machine is found by accident.
        env.insert("PATH".to_owned(), home.path.join("bin").display().to_string());
        fs::create_dir(home.path.join("bin")).expect("the home is writable");
        Self { home, env, venv }
    }

    fn set(&mut self, name: &str, value: &Path) {
        self.env.insert(name.to_owned(), value.display().to_string());
    }

    fn work(&self) -> PathBuf {
        self.home.work().canonicalize().expect("it is there")
    }

    fn project(&self, files: &[(&str, &str)]) -> PathBuf {
        let project = self.work().join("project");
        fs::create_dir_all(&project).expect("the home is writable");
        for (name, text) in files {
            fs::write(project.join(name), text).expect("the home is writable");
        }
        project
    }

    /// A program on the `PATH` of sessions.
    fn program(&self, name: &str, script: &str) {
        let path = self.home.path.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("the home is writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    fn resolve(&self, wanted: &str) -> Result<Interpreter, Error> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        runtime.block_on(Interpreters::default().resolve(Some(wanted), None, &self.home.work(), &self.env))
    }

    #[track_caller]
    fn assert_found(&self, wanted: &str, prefix: &Path) {
        match self.resolve(wanted) {
            Ok(found) => assert_eq!(found.prefix.canonicalize().ok(), prefix.canonicalize().ok()),
            Err(error) => panic!("{wanted}: {error}; {}", error.hint()),
        }
    }

    #[track_caller]
    fn failure(&self, wanted: &str) -> String {
        match self.resolve(wanted) {
            Ok(found) => panic!("{wanted} was found: {found:?}"),
            Err(error) => error.to_string(),
        }
    }
}

/// Makes a venv in this place.
fn venv_at(path: &Path) -> PathBuf {
    let made = Command::new(newest_python()).args(["-m", "venv", "--without-pip"]).arg(path).output();
    let made = made.expect("Python starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path.to_owned()
}

fn version_of(python: &Path) -> String {
    let code = "import sys; print('%d.%d.%d' % sys.version_info[:3])";
    let output = Command::new(python).args(["-I", "-c", code]).output().expect("Python starts");
    String::from_utf8(output.stdout).expect("it is text").trim().to_owned()
}

/// What Poetry itself computes (`EnvManager.generate_env_name`), in its own language.
fn poetry_name(name: &str, directory: &Path) -> String {
    let code = "import base64, hashlib, os, sys\n\
                h = base64.urlsafe_b64encode(hashlib.sha256(os.path.realpath(sys.argv[2]).encode()).digest()).decode()[:8]\n\
                print(f'{sys.argv[1]}-{h}')";
    let output = Command::new(newest_python()).args(["-I", "-c", code, name]).arg(directory).output();
    String::from_utf8(output.expect("Python starts").stdout).expect("it is text").trim().to_owned()
}

#[test]
fn a_path_an_environment_and_a_project_are_found() {
    let place = Place::new();
    let venv = &place.venv;
    place.assert_found(&venv.join("bin/python").display().to_string(), venv);
    place.assert_found(&venv.display().to_string(), venv);
    place.assert_found("../a-venv", &place.home.work().join("../a-venv"));
    let project = place.project(&[("pyproject.toml", "[project]\nname = \"x\"\n")]);
    for name in ["venv", ".venv"] {
        let inside = venv_at(&project.join(name));
        place.assert_found(&project.display().to_string(), &inside);
        place.assert_found("project", &place.home.work().join("project").join(name));
        place.assert_found("~/project", &place.home.work().join("project").join(name));
    }
}

#[test]
fn a_version_is_looked_for_on_the_path_and_where_pyenv_and_uv_keep_theirs() {
    let mut place = Place::new();
    let version = version_of(&newest_python());
    let minor = version.rsplit_once('.').expect("three numbers").0.to_owned();
    let told = place.failure(&minor);
    assert_eq!(told, format!("no Python {minor} was found: python on PATH, pyenv and uv were looked through"));
    // A shim that leads nowhere, and one of another version, are passed over.
    place.program(&format!("python{minor}"), "echo pyenv: command not found >&2; exit 127");
    let pyenv = place.home.path.join("pyenv");
    for (directory, prefix) in [("versions", ""), ("python", "cpython-")] {
        let root = pyenv.join(directory);
        fs::create_dir_all(root.join(format!("{prefix}3.1.2"))).expect("the home is writable");
        let venv = venv_at(&root.join(format!("{prefix}{version}")));
        place.set(
            if prefix.is_empty() { "PYENV_ROOT" } else { "UV_PYTHON_INSTALL_DIR" },
            if prefix.is_empty() { &pyenv } else { &root },
        );
        place.assert_found(&minor, &venv);
        place.assert_found(&version, &venv);
        fs::remove_dir_all(&venv).expect("it is ours");
    }
    let told = place.failure(&minor);
    assert!(told.contains(&format!("bin/python{minor}` does not start")), "{told}");
    symlink(place.venv.join("bin/python"), place.home.path.join("bin/python3")).expect("the home is writable");
    let told = place.failure("3.1");
    assert!(told.contains(&format!("python3` is {version}")), "{told}");
    assert!(place.failure("3.1").starts_with("no Python 3.1 was found"));
    assert_eq!(place.resolve(&minor).expect("python3 is that").version, version);
    let project = place.project(&[(".python-version", &format!("# ours\n{minor}\n"))]);
    assert_eq!(place.resolve(&project.display().to_string()).expect("it is named").version, version);
}

#[test]
fn poetrys_environment_is_found_with_and_without_poetry() {
    let mut place = Place::new();
    let project = place.project(&[("pyproject.toml", "[project]\nname = \"My_Thing\"\n[tool.poetry]\n")]);
    let wanted = project.display().to_string();
    let cache = place.home.path.join("cache");
    place.set("POETRY_CACHE_DIR", &cache);
    let name = poetry_name("my-thing", &project);
    let told = place.failure(&wanted);
    assert!(
        told.ends_with(&format!("environment of Poetry `{}`-py*", cache.join("virtualenvs").join(&name).display())),
        "{told}"
    );
    let older = venv_at(&cache.join("virtualenvs").join(format!("{name}-py3.9")));
    let newer = venv_at(&cache.join("virtualenvs").join(format!("{name}-py3.10")));
    venv_at(&cache.join("virtualenvs").join("my-thing-AAAAAAAA-py3.12"));
    place.assert_found(&wanted, &newer);
    fs::write(cache.join("virtualenvs/envs.toml"), format!("[{name}]\nminor = \"3.9\"\npatch = \"3.9.1\"\n"))
        .expect("the home is writable");
    place.assert_found(&wanted, &older);
    // Poetry itself knows better. It is asked without the plugins a project may bring.
    place.program(
        "poetry",
        &format!("[ \"$1\" = --no-plugins ] && [ \"$PWD\" = {wanted} ] && echo {}", place.venv.display()),
    );
    place.assert_found(&wanted, &place.venv);
    place.program("poetry", "exit 1");
    assert!(place.failure(&wanted).contains("bin/poetry` knows"), "{}", place.failure(&wanted));
}

#[test]
fn conda_environments_are_found_by_the_name_in_environment_yml() {
    let mut place = Place::new();
    let project =
        place.project(&[("environment.yml", "# ours\nname: \"lab\"  # the lab\ndependencies:\n  - name: x\n")]);
    let wanted = project.display().to_string();
    let told = place.failure(&wanted);
    assert!(told.contains("no Conda environment `lab` (environment.yml)"), "{told}");
    let elsewhere = venv_at(&place.home.path.join("elsewhere/lab"));
    fs::create_dir(place.home.work().join(".conda")).expect("the home is writable");
    fs::write(place.home.work().join(".conda/environments.txt"), format!("/nowhere\n{}\n", elsewhere.display()))
        .expect("the home is writable");
    place.assert_found(&wanted, &elsewhere);
    let own = venv_at(&place.home.work().join("miniforge3/envs/lab"));
    place.assert_found(&wanted, &own);
    let first = venv_at(&place.home.path.join("envs/lab"));
    place.set("CONDA_ENVS_PATH", &place.home.path.join("envs"));
    place.assert_found(&wanted, &first);
    // A prefix of Conda is one like any other.
    place.assert_found(&own.display().to_string(), &own);
    place.project(&[("environment.yml", "name: ../../a-venv\n")]);
    assert!(place.failure(&wanted).contains("no name in environment.yml"), "a name is no path");
}

#[test]
fn the_environments_of_uv_pixi_and_pipenv_are_found() {
    let mut place = Place::new();
    let project = place.project(&[("uv.lock", "")]);
    let wanted = project.display().to_string();
    assert!(place.failure(&wanted).ends_with("no uv on PATH to ask"));
    place.program(
        "uv",
        &format!(
            "[ \"$*\" = 'python find --system' ] && [ \"$PWD\" = {wanted} ] && echo {}/bin/python",
            place.venv.display()
        ),
    );
    place.assert_found(&wanted, &place.venv);
    fs::write(project.join("Pipfile"), "").expect("the home is writable");
    let pipenv = venv_at(&place.home.work().join(".local/share/virtualenvs/project-x1"));
    place.assert_found(&wanted, &place.venv);
    fs::write(pipenv.join(".project"), &wanted).expect("the home is writable");
    place.assert_found(&wanted, &pipenv);
    let pixi = venv_at(&project.join(".pixi/envs/default"));
    place.assert_found(&wanted, &pixi);
    let named = venv_at(&project.join("named"));
    place.set("UV_PROJECT_ENVIRONMENT", Path::new("named"));
    place.assert_found(&wanted, &named);
}

#[test]
fn a_directory_without_an_environment_is_an_error_that_says_what_was_looked_for() {
    let place = Place::new();
    let project = place.project(&[("main.py", "")]);
    assert_eq!(
        place.failure(&project.display().to_string()),
        format!(
            "`{}` is neither a Python environment nor a project that has one: there is no bin/python, no .venv, no venv, \
             no .conda, no .pixi/envs/default",
            project.display()
        )
    );
    assert_eq!(place.failure("/nowhere/at/all"), "Python interpreter not found at `/nowhere/at/all`");
}

#[test]
fn programs_in_a_project_are_not_run() {
    let mut place = Place::new();
    let project = place.project(&[("uv.lock", ""), ("poetry.lock", "")]);
    for name in ["uv", "poetry"] {
        let script = format!("#!/bin/sh\ntouch {}/was-run\n", project.display());
        fs::write(project.join(name), script).expect("the home is writable");
        fs::set_permissions(project.join(name), fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    place.set("PATH", Path::new(".::project"));
    place.failure(&project.display().to_string());
    assert!(!project.join("was-run").exists());
}

#[test]
fn a_word_means_a_directory_or_a_python_and_no_other_command() {
    let place = Place::new();
    let ran = place.home.path.join("was-run");
    for name in ["project", "python-config", "python3"] {
        place.program(name, &format!("echo run > {}; exec {} \"$@\"", ran.display(), newest_python().display()));
    }
    assert_eq!(
        place.failure("project"),
        "`project` is neither a directory here nor the name of a Python: a command of that name is not run"
    );
    assert!(place.failure("python-config").contains("is not run"));
    assert!(!ran.exists());
    let inside = venv_at(&place.project(&[]).join(".venv"));
    place.assert_found("project", &inside);
    // A directory that has no environment is nobody's interpreter, whatever it is called.
    fs::create_dir(place.work().join("python3")).expect("the home is writable");
    fs::create_dir(place.work().join("empty")).expect("the home is writable");
    place.program("empty", &format!("echo run > {}", ran.display()));
    assert!(place.failure("empty").contains("neither a Python environment nor a project"));
    assert!(!ran.exists());
    assert!(place.resolve("python3").is_ok() && ran.exists());
    let inside = venv_at(&place.work().join("python3/.venv"));
    place.assert_found("python3", &inside);
}

#[test]
fn a_session_is_opened_with_the_environment_of_its_project() {
    on_newest_python(async |core| {
        let project = core.home.work().join("project");
        venv_at(&project.join(".venv"));
        let options = OpenOptions { python: Some("project".to_owned()), ..OpenOptions::default() };
        let session = core.open_session(options).await.expect("the session opens");
        let prefix = format!("'{}'", project.join(".venv").display());
        assert_eq!(session.value("import sys\nsys.prefix").await, prefix);
        let error = core.open_session(OpenOptions { python: Some(".".to_owned()), ..OpenOptions::default() }).await;
        let error = error.expect_err("there is no environment");
        assert_eq!(error.kind(), "no_python");
        assert!(error.hint().contains("-m venv .venv"), "{}", error.hint());
    });
}

#[test]
fn a_fifo_where_a_project_has_a_file_is_no_file() {
    let place = Place::new();
    let project = place.project(&[]);
    for name in ["pyproject.toml", ".python-version", "environment.yml"] {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, project.join(name), rustix::fs::FileType::Fifo, mode, 0)
            .expect("a FIFO can be made");
    }
    let said = place.failure(&project.display().to_string());
    assert!(said.contains("neither a Python environment nor a project"), "{said}");
}

#[test]
fn a_program_that_never_stops_talking_is_no_interpreter() {
    let place = Place::new();
    place.program("python3", "exec yes");
    let said = place.failure("python3");
    assert!(said.contains("is not a Python interpreter"), "{said}");
    assert!(said.len() < 1000, "{said}");
}

#[test]
fn what_a_confined_session_made_is_no_interpreter() {
    on_newest_python(async |core| {
        let made = core.home.places().workspaces().join("s-1/.venv/bin");
        fs::create_dir_all(&made).expect("the home is writable");
        symlink(newest_python(), made.join("python")).expect("the home is writable");
        symlink(made.parent().expect("it has one"), core.home.work().join("env")).expect("the home is writable");
        for python in [made.join("python"), core.home.work().join("env")] {
            let options = OpenOptions { python: Some(python.display().to_string()), ..OpenOptions::default() };
            let Err(error) = core.open_session(options).await else { panic!("{} was run", python.display()) };
            assert!(error.to_string().contains("was made by a confined session"), "{error}");
        }
    });
}

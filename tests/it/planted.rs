//! Programs that a project plants where an interpreter is looked for, for a session in a sandbox. Each leaves a mark where no sandbox
//! can write, and then is the interpreter it stands for; a control shows that it does.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use pylair_core::session::{Error, OpenOptions, Outcome};
use tokio::sync::mpsc;

use crate::support::{
    Core, Home, PATIENCE, TestSession, newest_python, on_newest_python, skip, why_no_namespaces, with_settings,
};

/// A mark that whatever is run outside of a sandbox leaves.
struct Mark(PathBuf);

impl Mark {
    fn new(core: &Core) -> Self {
        Self(core.home.path.join("mark"))
    }

    /// Whether something was run outside since this was last asked.
    fn take(&self) -> bool {
        fs::remove_file(&self.0).is_ok()
    }

    /// A program that leaves the mark and goes on as the real interpreter.
    fn plant(&self, path: &Path) {
        let real = newest_python();
        let script =
            format!("#!/bin/sh\necho run >> {} 2>/dev/null\nexec {} \"$@\"\n", self.0.display(), real.display());
        write_program(path, &script);
    }

    /// A module that leaves the mark when it is imported.
    fn module(&self) -> String {
        format!("try:\n    open({:?}, 'a').close()\nexcept OSError:\n    pass\n", self.0.display().to_string())
    }
}

fn write_program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().expect("it is in a directory")).expect("the home is writable");
    let _absent = fs::remove_file(path);
    fs::write(path, script).expect("the home is writable");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

fn venv_at(path: &Path) -> PathBuf {
    let made = Command::new(newest_python()).args(["-m", "venv", "--without-pip"]).arg(path).output();
    let made = made.expect("Python starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path.to_owned()
}

fn site_packages(venv: &Path) -> PathBuf {
    let lib =
        fs::read_dir(venv.join("lib")).expect("it has one").next().expect("of one version").expect("it can be read");
    lib.path().join("site-packages")
}

/// A project, which is where the caller is.
fn project(core: &Core) -> PathBuf {
    let project = core.home.work().join("project");
    fs::create_dir_all(&project).expect("the home is writable");
    project.canonicalize().expect("it is there")
}

async fn open(core: &Core, cwd: &Path, python: Option<&str>, sandbox: &str) -> Result<TestSession, Error> {
    let mut caller = core.caller.clone();
    caller.cwd = Some(cwd.to_owned());
    let (name, value) = core.home.marker();
    let options = OpenOptions {
        python: python.map(str::to_owned),
        sandbox: Some(sandbox.into()),
        env: [(name.to_owned(), value.to_owned())].into(),
        ..OpenOptions::default()
    };
    core.open_session_as(&caller, options).await
}

async fn opened(core: &Core, cwd: &Path, python: Option<&str>, sandbox: &str) -> TestSession {
    let opened = open(core, cwd, python, sandbox).await;
    opened.unwrap_or_else(|error| panic!("{python:?} in {sandbox}: {error}: {}", error.hint()))
}

const PREFIX: &str = "__import__('sys').prefix";

#[test]
fn an_environment_counts_only_if_it_is_named_and_its_program_is_not_run() {
    if let Some(reason) = why_no_namespaces() {
        return skip("an_environment_counts_only_if_it_is_named_and_its_program_is_not_run", &reason);
    }
    on_newest_python(async |core| {
        let (mark, project) = (Mark::new(core), project(core));
        let venv = venv_at(&project.join(".venv"));
        mark.plant(&venv.join("bin/python"));
        fs::write(site_packages(&venv).join("planted.pth"), format!("import sys; exec({:?})\n", mark.module()))
            .expect("it is ours");
        let prefix = format!("'{}'", venv.display());
        for sandbox in ["workspace", "sealed"] {
            let session = opened(core, &project, None, sandbox).await;
            let report = session.run(PREFIX).await;
            assert_ne!(report.result.as_deref(), Some(&*prefix));
            assert!(report.notes.iter().any(|note| note.contains("python=\".venv\"")), "{:?}", report.notes);
            for named in [".venv", ".", ".venv/bin/python"] {
                let session = opened(core, &project, Some(named), sandbox).await;
                assert_eq!(session.value(PREFIX).await, prefix, "{named}");
                // What an interpreter runs by itself is run, inside.
                assert_eq!(session.value("'planted' in open(__import__('site').__file__).read()").await, "False");
            }
            assert!(!mark.take(), "{sandbox}: it was run outside");
        }
        opened(core, &project, None, "open").await;
        assert!(mark.take(), "without a sandbox it is the user's own and is run");
    });
}

/// A project's files can lead anywhere, and what an interpreter consists of is shown to its sessions.
#[test]
fn links_in_an_environment_show_nobodys_files() {
    if let Some(reason) = why_no_namespaces() {
        return skip("links_in_an_environment_show_nobodys_files", &reason);
    }
    on_newest_python(async |core| {
        let project = project(core);
        let private = core.home.path.join("private");
        fs::create_dir_all(private.join("site-packages")).expect("the home is writable");
        fs::write(private.join("key"), "secret").expect("the home is writable");
        for part in ["lib64", "lib", "bin/python3.14", "share"] {
            let venv = venv_at(&project.join("env"));
            if venv.join(part).is_dir() && !venv.join(part).is_symlink() {
                fs::rename(venv.join(part), venv.join("before")).expect("it is ours");
            }
            let _absent = fs::remove_file(venv.join(part));
            symlink(&private, venv.join(part)).expect("it is ours");
            let options = OpenOptions {
                python: Some("env".into()),
                cwd: Some(project.clone()),
                sandbox: Some("workspace".into()),
                ..OpenOptions::default()
            };
            let session = core.open_session_as(&core.caller, options).await;
            let session = session.unwrap_or_else(|error| panic!("{part}: {error}: {}", error.hint()));
            let read = format!(
                "import os\n[name for name in ({:?}, {:?}) if os.path.exists(name)]",
                private.join("key").display().to_string(),
                venv.join(part).join("key").display().to_string()
            );
            assert_eq!(session.value(&read).await, "[]", "{part}");
            core.close_session(&session).await;
            fs::remove_dir_all(&venv).expect("it is ours");
        }
    });
}

#[test]
fn an_interpreter_that_a_project_brings_runs_inside_only() {
    if let Some(reason) = why_no_namespaces() {
        return skip("an_interpreter_that_a_project_brings_runs_inside_only", &reason);
    }
    on_newest_python(async |core| {
        let (mark, project) = (Mark::new(core), project(core));
        // An interpreter that is no environment, and an environment that was made with it.
        mark.plant(&project.join("tools/bin/python"));
        symlink("python", project.join("tools/bin/python3")).expect("the home is writable");
        let venv = venv_at(&project.join("env"));
        mark.plant(&venv.join("bin/python"));
        let home = format!("home = {}\n", project.join("tools/bin").display());
        fs::write(venv.join("pyvenv.cfg"), home).expect("it is ours");
        for named in ["tools", "env", "tools/bin/python3"] {
            for sandbox in ["workspace", "sealed"] {
                // It may start, or not find its library where a sandbox shows it nothing else: the real one is a system's, or somebody's.
                let session = open(core, &project, Some(named), sandbox).await;
                assert!(!mark.take(), "{named} in {sandbox} was run outside");
                if let Ok(session) = session {
                    assert_eq!(session.value("21 * 2").await, "42");
                    core.wait_for_checkpoint(&session, 1).await;
                    let report = session.run("import os\nos._exit(3)").await;
                    assert_eq!(report.outcome, Outcome::Died, "{report:#?}");
                    assert!(report.error.is_some_and(|error| error.message.contains("exited with code 3")));
                    assert_eq!(session.value("'rolled back'").await, "'rolled back'");
                    core.close_session(&session).await;
                }
                assert!(!mark.take(), "{named} in {sandbox} was run outside");
            }
            let _session = open(core, &project, Some(named), "open").await;
            assert!(mark.take(), "{named}: the plant works");
        }
    });
}

/// A whole interpreter in a project, as Conda and Pixi put it there, is a session's like any other.
#[test]
fn a_whole_interpreter_in_a_project_works_inside() {
    if let Some(reason) = why_no_namespaces() {
        return skip("a_whole_interpreter_in_a_project_works_inside", &reason);
    }
    on_newest_python(async |core| {
        let (mark, project) = (Mark::new(core), project(core));
        let Some(copied) = copy_interpreter(&project.join("env")) else {
            return skip("a_whole_interpreter_in_a_project_works_inside", "this Python cannot be copied");
        };
        fs::write(copied.join("sitecustomize.py"), mark.module()).expect("it is ours");
        for sandbox in ["workspace", "sealed"] {
            let session = opened(core, &project, Some("env"), sandbox).await;
            assert_eq!(session.value(PREFIX).await, format!("'{}'", project.join("env").display()));
            assert_eq!(session.value("'sitecustomize' in __import__('sys').modules").await, "True");
            session.value("x = 1").await;
            let enforced = session.session.full_status().await.enforced;
            assert!(!enforced.is_empty());
            assert!(enforced.iter().all(|promise| promise.how != pylair_sandbox::truth::How::No), "{enforced:?}");
            core.wait_for_checkpoint(&session, 3).await;
            let report = session.run("x = 2\nimport os\nos.kill(os.getpid(), 9)").await;
            assert_eq!(report.outcome, Outcome::Died, "{report:#?}");
            assert_eq!(session.value("x").await, "1");
            let branch = core.branch(&session, None).await.expect("it can be branched");
            assert_eq!(branch.value("x + 1").await, "2");
            core.close_session(&branch).await;
            core.close_session(&session).await;
            assert!(!mark.take(), "{sandbox}: it was run outside");
        }
        opened(core, &project, Some("env"), "open").await;
        assert!(mark.take(), "the plant works");
    });
}

/// The interpreter with its library, in another place. Where modules of it are, if that works.
fn copy_interpreter(prefix: &Path) -> Option<PathBuf> {
    const COPY: &str = r#"
import glob, os, shutil, sys, sysconfig
to = sys.argv[1]
library = sysconfig.get_path("stdlib")
name = os.path.basename(library)
os.makedirs(to + "/bin")
skipped = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "config-*", "ensurepip")
shutil.copytree(library, f"{to}/lib/{name}", ignore=skipped)
os.makedirs(f"{to}/lib/{name}/site-packages")
program = os.path.realpath(sys.executable)
if sysconfig.get_config_var("Py_ENABLE_SHARED"):
    for shared in glob.glob(sysconfig.get_config_var("LIBDIR") + "/libpython*.so*"):
        shutil.copy(shared, to + "/lib")
    shutil.copy(program, to + "/bin/python.real")
    with open(to + "/bin/python", "w") as script:
        script.write(f'#!/bin/sh\nLD_LIBRARY_PATH={to}/lib exec {to}/bin/python.real "$@"\n')
    os.chmod(to + "/bin/python", 0o755)
else:
    shutil.copy(program, to + "/bin/python")
print(f"{to}/lib/{name}")
"#;
    let made = Command::new(newest_python()).args(["-I", "-c", COPY]).arg(prefix).output().expect("Python starts");
    let library = PathBuf::from(String::from_utf8(made.stdout).ok()?.trim());
    let asked = Command::new(prefix.join("bin/python")).args(["-c", "import sys, ctypes; print(sys.prefix)"]).output();
    let prefixed = asked.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim() == prefix.display().to_string());
    (made.status.success() && prefixed).then_some(library)
}

#[test]
fn tools_that_look_at_a_project_are_not_run() {
    if let Some(reason) = why_no_namespaces() {
        return skip("tools_that_look_at_a_project_are_not_run", &reason);
    }
    on_newest_python(async |core| {
        let (mark, project) = (Mark::new(core), project(core));
        fs::write(project.join("uv.lock"), "").expect("the home is writable");
        fs::write(project.join("poetry.lock"), "").expect("the home is writable");
        fs::write(project.join(".python-version"), "./python\n").expect("the home is writable");
        let tools = core.home.path.join("tools");
        for name in ["uv", "poetry"] {
            mark.plant(&tools.join(name));
        }
        let mut caller = core.caller.clone();
        caller.cwd = Some(project);
        let path = format!("{}:/usr/bin:/bin", tools.display());
        for (sandbox, is_run) in [("workspace", false), ("sealed", false), ("open", true)] {
            let options = OpenOptions {
                python: Some(".".to_owned()),
                sandbox: Some(sandbox.into()),
                env: [("PATH".to_owned(), path.clone())].into(),
                ..OpenOptions::default()
            };
            let error = core.open_session_as(&caller, options).await.expect_err("there is no environment");
            assert_eq!(error.kind(), "no_python", "{error}");
            assert_eq!(mark.take(), is_run, "{sandbox}");
        }
    });
}

#[test]
fn a_shim_finds_nothing_by_the_variables_of_a_call() {
    if let Some(reason) = why_no_namespaces() {
        return skip("a_shim_finds_nothing_by_the_variables_of_a_call", &reason);
    }
    let outside = Home::new();
    let (root, tools) = (outside.path.join("pyenv"), outside.path.join("tools"));
    let (shim, mark) = (root.join("shims/python"), Mark(outside.path.join("mark")));
    mark.plant(&tools.join("lookup"));
    write_program(&shim, "#!/usr/bin/env lookup\n");
    let text = |path: &Path| path.to_str().expect("our paths are UTF-8").to_owned();
    with_settings(&[("PYENV_ROOT", &text(&root))], async |core| {
        for (sandbox, is_run) in [("workspace", false), ("sealed", false), ("open", true)] {
            let path = format!("{}:/usr/bin:/bin", tools.display());
            let options = OpenOptions {
                python: Some(text(&shim)),
                sandbox: Some(sandbox.into()),
                env: [("PATH".to_owned(), path), ("PYENV_ROOT".to_owned(), text(&tools))].into(),
                ..OpenOptions::default()
            };
            assert!(core.open_session(options).await.is_err(), "what it leads to is no interpreter");
            assert_eq!(mark.take(), is_run, "{sandbox}");
        }
        write_program(&shim, &format!("#!/bin/sh\nexec {} \"$@\"\n", newest_python().display()));
        let python = Some(text(&shim));
        let options = OpenOptions { python, sandbox: Some("sealed".into()), ..OpenOptions::default() };
        assert_eq!(core.open_session(options).await.expect("it opens").value("1 + 1").await, "2");
    });
}

#[test]
fn what_is_preloaded_is_imported_inside() {
    if let Some(reason) = why_no_namespaces() {
        return skip("what_is_preloaded_is_imported_inside", &reason);
    }
    on_newest_python(async |core| {
        let (mark, project) = (Mark::new(core), project(core));
        let venv = venv_at(&project.join(".venv"));
        fs::write(site_packages(&venv).join("planted.py"), mark.module()).expect("it is ours");
        for (sandbox, is_run) in [("workspace", false), ("sealed", false), ("open", true)] {
            let (name, value) = core.home.marker();
            let options = OpenOptions {
                python: Some(venv.display().to_string()),
                sandbox: Some(sandbox.into()),
                preload: vec!["planted".to_owned()],
                env: [(name.to_owned(), value.to_owned())].into(),
                ..OpenOptions::default()
            };
            let session = core.open_session(options.clone()).await.expect("it opens");
            assert_eq!(session.value("'planted' in __import__('sys').modules").await, "True", "{sandbox}");
            assert_eq!(mark.take(), is_run, "{sandbox}");
            let absent = OpenOptions { preload: vec!["no_such_module".to_owned()], ..options };
            let error = core.open_session(absent).await.expect_err("there is no such module");
            assert!(error.to_string().contains("preloading no_such_module failed"), "{sandbox}: {error}");
            mark.take();
        }
    });
}

#[test]
fn a_cell_plants_nothing_that_is_run_outside() {
    if let Some(reason) = why_no_namespaces() {
        return skip("a_cell_plants_nothing_that_is_run_outside", &reason);
    }
    on_newest_python(async |core| {
        let (mark, project) = (Mark::new(core), project(core));
        let venv = venv_at(&project.join("env"));
        let (name, value) = core.home.marker();
        let bound = OpenOptions {
            python: Some("env".to_owned()),
            sandbox: Some("workspace".into()),
            cwd: Some(project.clone()),
            env: [(name.to_owned(), value.to_owned())].into(),
            ..OpenOptions::default()
        };
        let mut caller = core.caller.clone();
        caller.cwd = Some(project.clone());
        let session = core.open_session_as(&caller, bound.clone()).await.expect("it opens");
        assert_eq!(session.value("open('note', 'w').write('x')").await, "1", "the directory itself can be written");
        let packages = site_packages(&venv);
        for attempt in [
            "open('env/pyvenv.cfg', 'a')".to_owned(),
            "open('env/bin/new', 'w')".to_owned(),
            "import os; os.remove('env/bin/python')".to_owned(),
            "import os; os.rename('env', 'other')".to_owned(),
            "import os; os.rename('env/bin', 'env/other')".to_owned(),
            format!("open({:?}, 'w')", packages.join("planted.pth").display().to_string()),
        ] {
            let report = session.run(&attempt).await;
            assert_eq!(report.outcome, Outcome::Raised, "{attempt}: {report:#?}");
        }
        // Beside it a cell can put what it likes.
        let planted = project.join(".venv");
        mark.plant(&core.home.path.join("plant"));
        let script = fs::read_to_string(core.home.path.join("plant")).expect("it was written");
        let code = format!(
            "import os\nos.makedirs('.venv/bin')\nopen('.venv/bin/python', 'w').write({script:?})\n\
             os.chmod('.venv/bin/python', 0o755)\nopen('.venv/pyvenv.cfg', 'w').write('home = {}/bin\\n')",
            planted.display()
        );
        session.value(&code).await;
        for python in [None, Some(".venv".to_owned())] {
            // It may be no interpreter in there; that it is not run outside is what counts.
            let _opened = core.open_session_as(&caller, OpenOptions { python, ..bound.clone() }).await;
            assert!(!mark.take(), "it was run outside");
        }
        opened(core, &project, None, "open").await;
        assert!(mark.take(), "the plant works");
    });
}

#[test]
fn an_environment_that_is_the_directory_itself_keeps_its_interpreter() {
    if let Some(reason) = why_no_namespaces() {
        return skip("an_environment_that_is_the_directory_itself_keeps_its_interpreter", &reason);
    }
    on_newest_python(async |core| {
        let project = venv_at(&project(core));
        let (name, value) = core.home.marker();
        let options = OpenOptions {
            python: Some(project.display().to_string()),
            sandbox: Some("workspace".into()),
            cwd: Some(project.clone()),
            env: [(name.to_owned(), value.to_owned())].into(),
            ..OpenOptions::default()
        };
        let session = core.open_session(options).await.expect("it opens");
        session.value("open('note', 'w').close()").await;
        for attempt in ["open('bin/new', 'w')", "open('pyvenv.cfg', 'a')", "open('lib/new', 'w')"] {
            assert_eq!(session.run(attempt).await.outcome, Outcome::Raised, "{attempt}");
        }
    });
}

const MAKE_WHEEL: &str = r#"
import sys, zipfile
directory, name, more, text = sys.argv[1:]
info = f"{name}-1.0.dist-info"
files = {
    f"{name}.py": f"def main(): print('hello from {name}')\n",
    f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{info}/entry_points.txt": f"[console_scripts]\n{name}-hello = {name}:main\n",
}
for path in more.split():
    files[f"{name}-1.0.data/{path}"] = text
record = f"{info}/RECORD"
files[record] = "".join(f"{path},,\n" for path in [*files, record])
with zipfile.ZipFile(f"{directory}/{name}-1.0-py3-none-any.whl", "w") as wheel:
    for path, content in files.items():
        entry = zipfile.ZipInfo(path)
        entry.external_attr = 0o100755 << 16
        wheel.writestr(entry, content)
"#;

fn make_wheel(directory: &Path, name: &str, more: &str, text: &str) {
    fs::create_dir_all(directory).expect("the home is writable");
    let made = Command::new(newest_python())
        .args(["-I", "-c", MAKE_WHEEL, &directory.display().to_string(), name, more, text])
        .output()
        .expect("Python starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

async fn install(session: &TestSession, package: &str) -> Result<String, Error> {
    let (lines, _) = mpsc::channel(1);
    Ok(session.session.install(&[package.to_owned()], &lines, 10 * PATIENCE).await?.environment)
}

/// What is in `bin` by the names of interpreters, and `pyvenv.cfg`.
fn interpreters(venv: &Path) -> Vec<(String, String)> {
    let mut found: Vec<_> = fs::read_dir(venv.join("bin"))
        .expect("it is there")
        .filter_map(|entry| {
            Some(entry.expect("it can be read").path()).filter(|path| path.display().to_string().contains("/python"))
        })
        .map(|path| (path.display().to_string(), format!("{:?}", fs::read_link(&path))))
        .collect();
    found.sort();
    found.push(("pyvenv.cfg".to_owned(), fs::read_to_string(venv.join("pyvenv.cfg")).expect("it is there")));
    found
}

#[test]
fn a_package_replaces_no_interpreter_and_its_programs_work() {
    if let Some(reason) = why_no_namespaces() {
        return skip("a_package_replaces_no_interpreter_and_its_programs_work", &reason);
    }
    on_newest_python(async |core| {
        let (mark, project, wheels) = (Mark::new(core), project(core), core.home.path.join("wheels"));
        let plant = core.home.path.join("plant");
        mark.plant(&plant);
        let script = fs::read_to_string(&plant).expect("it was written");
        make_wheel(&wheels, "planter", "scripts/python scripts/python3", &script);
        make_wheel(&wheels, "planter_again", "scripts/python scripts/python3", &script);
        make_wheel(&wheels, "greeter", "data/share/greeter/note data/etc/greeter.toml headers/greeter.h", "hello\n");
        let made = Command::new(newest_python()).args(["-m", "venv"]).arg(project.join("env")).output();
        assert!(made.expect("Python starts").status.success());
        let mut caller = core.caller.clone();
        let mut env = (*caller.env).clone();
        let index = wheels.display().to_string();
        for (name, value) in
            [("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", &index), ("UV_OFFLINE", "1"), ("UV_FIND_LINKS", &index)]
        {
            env.insert(name.to_owned(), value.to_owned());
        }
        caller.env = env.into();
        caller.cwd = Some(project.clone());
        let (name, value) = core.home.marker();
        for python in [Some("env".to_owned()), None] {
            let options = OpenOptions {
                python: python.clone(),
                sandbox: Some("workspace".into()),
                env: [(name.to_owned(), value.to_owned())].into(),
                ..OpenOptions::default()
            };
            let session = core.open_session_as(&caller, options.clone()).await.expect("it opens");
            let environment = install(&session, "greeter").await.expect("it installs");
            let before = interpreters(Path::new(&environment));
            let hello = "__import__('subprocess').run(['greeter-hello'], capture_output=True, text=True).stdout";
            assert_eq!(session.value(hello).await, "'hello from greeter\\n'", "{python:?}");
            // Whether it says no or puts it elsewhere is the installer's business.
            let _said = install(&session, "planter").await;
            assert_eq!(interpreters(Path::new(&environment)), before, "{python:?}");
            assert_eq!(session.value(hello).await, "'hello from greeter\\n'", "{python:?}");
            if python.is_none() {
                let which = "__import__('subprocess').run(['python', '-c', 'import sys; print(sys.prefix)'], capture_output=True, text=True)";
                assert_eq!(session.value(&format!("{which}.stdout")).await, format!("'{environment}\\n'"));
            }
            let again =
                core.open_session_as(&caller, OpenOptions { python: Some(environment.clone()), ..options }).await;
            assert_eq!(again.is_ok(), python.is_some(), "{again:?}");
            assert!(!mark.take(), "{python:?}: it was run outside");
        }
        // The same without a sandbox, where it is the user who installs.
        let options = OpenOptions { python: Some("env".to_owned()), ..OpenOptions::default() };
        let options = OpenOptions { env: (*caller.env).clone(), ..options };
        let session = core.open_session_as(&caller, options).await.expect("it opens");
        install(&session, "planter_again").await.expect("it installs");
        let _ran = Command::new(project.join("env/bin/python")).args(["-c", ""]).output();
        assert!(mark.take(), "the plant works");
    });
}

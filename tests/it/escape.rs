//! Named attempts to get out of a session (`tests/escape`): without a sandbox they work, in one they do not, as root and as anybody else.

use std::{
    collections::BTreeMap,
    fs,
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{MetadataExt, PermissionsExt},
            net::{SocketAddr, UnixListener},
        },
    },
    path::Path,
    process::Command,
};

use pylair::{sandbox::Wish, session::OpenOptions};
use serde_json::{Value, json};

use crate::support::{Core, TestSession, on_newest_python, skip};

const ATTEMPTS: &str = include_str!("../escape/attempts.py");
/// An ordinary user, whom nobody else is.
const SOMEBODY: &str = "54321";
/// Where a test that is run again as somebody else has its home.
const HOMES: &str = "PYLAIR_TEST_HOMES";

/// Makes all attempts in a session. By name: how it failed, or nothing if it worked.
async fn make_attempts(core: &Core, session: &TestSession, surroundings: &Value) -> BTreeMap<String, Option<String>> {
    let sandboxed = session.session.status().sandbox != "open";
    session.value(ATTEMPTS).await;
    let at = serde_json::to_string(surroundings).expect("it is JSON");
    let file = "attempts.json";
    let code = format!(
        "with open({file:?}, 'w') as file: _ = file.write(make_all(json.loads({at:?}), {}))",
        if sandboxed { "True" } else { "False" }
    );
    session.value(&code).await;
    let made = session.session.workspace().path.join(file);
    assert!(core.home.path.exists());
    serde_json::from_str(&fs::read_to_string(made).expect("they were made")).expect("it is JSON")
}

async fn open(core: &Core, profile: &str) -> Option<TestSession> {
    let (name, value) = core.home.marker();
    let env = [(name.to_owned(), value.to_owned())].into();
    let options = OpenOptions { sandbox: Some(Wish::from(profile)), env, ..OpenOptions::default() };
    match core.open_session(options).await {
        Ok(session) => Some(session),
        Err(error) if error.kind() == "sandbox_unavailable" => {
            skip("no_attempt_gets_out_of_a_sandbox", &error.message());
            None
        }
        Err(error) => panic!("{}: {}", error.message(), error.hint()),
    }
}

async fn attempts(core: &Core) {
    let places = core.home.places();
    let outside = core.home.work().join("others");
    fs::create_dir(&outside).unwrap();
    for name in ["secret", "victim"] {
        fs::write(outside.join(name), name).unwrap();
    }
    fs::write(places.token(), "0123456789abcdef").unwrap();
    fs::create_dir_all(places.workspaces()).unwrap();
    let tmp = std::env::temp_dir().join(format!("pylair-escape-{}", std::process::id()));
    fs::create_dir_all(&tmp).unwrap();
    fs::set_permissions(&tmp, fs::Permissions::from_mode(0o777)).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let _udp = UdpSocket::bind(("127.0.0.1", port)).ok();
    let name = format!("pylair-escape-{}", std::process::id());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let _socket = UnixListener::bind(outside.join("socket")).unwrap();
    let _daemon = UnixListener::bind(places.socket()).unwrap();
    let interfaces = fs::read_to_string("/proc/net/dev").unwrap_or_default().matches(':').count() - 1;

    let open_session = open(core, "open").await.expect("there is always one without a sandbox");
    for profile in ["open", "workspace", "sealed"] {
        let session = match profile {
            "open" => open_session.clone(),
            _ => match open(core, profile).await {
                Some(session) => session,
                None => return,
            },
        };
        let limits = session.session.info.terms.limits;
        let surroundings = json!({
            "secret": outside.join("secret"), "victim": outside.join("victim"), "outside": outside, "data": places.data,
            "runtime": places.runtime, "pid": std::process::id(), "pids": [std::process::id(), open_session.pid()],
            "tcp": port, "abstract": name, "tmp": tmp, "tmp_inode": fs::metadata(&tmp).unwrap().ino(), "interfaces": interfaces,
            "root": rustix::process::geteuid().is_root(), "processes": limits.processes, "open_files": limits.open_files,
            "file_size_mb": limits.file_size_mb, "tmp_mb": limits.tmp_mb, "address_space": limits.address_space_bytes(),
        });
        let made = make_attempts(core, &session, &surroundings).await;
        let failed =
            |wanted: bool| made.iter().filter(move |(_, failure)| failure.is_some() == wanted).collect::<Vec<_>>();
        if profile == "open" {
            // What this kernel was built without cannot be tried.
            let is_absent =
                |failure: &Option<String>| failure.as_ref().is_some_and(|failure| failure.contains("[Errno 38]"));
            let broken: Vec<_> = failed(true).into_iter().filter(|(_, failure)| !is_absent(failure)).collect();
            assert!(broken.is_empty(), "attempts that do not work at all: {broken:#?}");
            assert!(made.len() > 30, "only {} attempts", made.len());
        } else {
            assert!(failed(false).is_empty(), "out of {profile}: {:#?}", failed(false));
            assert!(made.len() > 90, "only {} attempts", made.len());
            let late: Vec<_> =
                made.iter().filter(|(_, failure)| failure.as_deref() == Some("it took too long")).collect();
            assert!(late.is_empty(), "{late:?}");
        }
        assert_eq!(session.value("6 * 7").await, "42", "the session works all the same");
    }
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
    fs::remove_dir_all(tmp).unwrap();
}

#[test]
fn no_attempt_gets_out_of_a_sandbox() {
    on_newest_python(attempts);
}

#[test]
fn no_attempt_gets_out_of_an_ordinary_users_sandbox() {
    let name = "no_attempt_gets_out_of_an_ordinary_users_sandbox";
    if !rustix::process::geteuid().is_root() {
        return skip(name, "no_attempt_gets_out_of_a_sandbox is that test for whoever is not root");
    }
    let Some(python) = python_for_everybody() else { return skip(name, "no Python that everybody may run") };
    let homes = std::env::temp_dir().join(format!("pylair-homes-{}", std::process::id()));
    fs::create_dir_all(&homes).unwrap();
    let (program, built) = (homes.join("it"), homes.join("pylair"));
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_pylair"), &built).unwrap();
    std::os::unix::fs::chown(&homes, SOMEBODY.parse().ok(), SOMEBODY.parse().ok()).unwrap();
    let told = Command::new("setpriv")
        .args(["--reuid", SOMEBODY, "--regid", SOMEBODY, "--clear-groups"])
        .arg(&program)
        .args(["--exact", "escape::no_attempt_gets_out_of_a_sandbox"])
        .current_dir("/")
        .env(HOMES, &homes)
        .env("PYLAIR_TEST_PROGRAM", &built)
        .env("PYLAIR_TEST_PYTHONS", python)
        .output();
    fs::remove_dir_all(&homes).unwrap();
    match told {
        Err(error) => skip(name, &format!("setpriv: {error}")),
        Ok(told) => {
            let said = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
            assert!(told.status.success() && said.contains("1 passed"), "{said}");
        }
    }
}

/// One that does not lie in somebody's home.
fn python_for_everybody() -> Option<&'static Path> {
    ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().map(Path::new).find(|path| path.exists())
}

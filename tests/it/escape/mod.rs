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

use pylair_core::session::OpenOptions;
use pylair_sandbox::Wish;
use serde_json::{Value, json};

use crate::support::{Core, TestSession, on_newest_python, skip, why_no_namespaces};
use driven::{DRIVEN, Try};

mod driven;

const ATTEMPTS: &str = include_str!("../../escape/attempts.py");
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

/// With little of what is spent, so that it is spent soon.
async fn open(core: &Core, profile: &str, python_env: &[(&str, &str)]) -> TestSession {
    let (name, value) = core.home.marker();
    let mut env: BTreeMap<String, String> = [(name.to_owned(), value.to_owned())].into();
    env.extend(python_env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let wish = match profile {
        "open" => json!("open"),
        profile => json!({"profile": profile, "memory_mb": 512, "tmp_mb": 32, "processes": 64}),
    };
    let wish = Wish::from_json(wish).expect("a wish");
    let options = OpenOptions { sandbox: Some(wish), env, ..OpenOptions::default() };
    core.open_session(options).await.unwrap_or_else(|error| panic!("{}: {}", error.message(), error.hint()))
}

async fn attempts(core: &Core) {
    let places = core.home.places();
    let outside = core.home.work().join("others");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret of others").unwrap();
    fs::write(outside.join("victim"), "victim").unwrap();
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

    // What somebody else's session has, and what its caller had: none of it may be in the memory that sessions are copies of.
    let canaries = ["variable-of-somebody-else", "value-of-somebody-else"].map(|text| format!("{text}-{name}"));
    let open_session = open(core, "open", &[("SOMEBODYS_SECRET", &canaries[0])]).await;
    for profile in ["workspace", "sealed"] {
        let other = open(core, profile, &[("SOMEBODYS_SECRET", &canaries[0])]).await;
        other.value(&format!("kept = {:?} * 1000", canaries[1])).await;
    }
    let kinds: BTreeMap<String, (String, Option<String>)> = {
        open_session.value(ATTEMPTS).await;
        open_session.value("_ = open('kinds.json', 'w').write(list_all())").await;
        let listed = fs::read_to_string(open_session.session.workspace().path.join("kinds.json")).unwrap();
        serde_json::from_str(&listed).expect("it is JSON")
    };
    check_kinds(&kinds);
    let mut seen = BTreeMap::new();
    for profile in ["open", "workspace", "sealed"] {
        let session = match profile {
            "open" => open_session.clone(),
            _ => open(core, profile, &[]).await,
        };
        let limits = session.session.info.terms.limits;
        let backwards: Vec<String> = canaries.iter().map(|canary| canary.chars().rev().collect()).collect();
        let surroundings = json!({
            "secret": outside.join("secret"), "victim": outside.join("victim"), "outside": outside, "data": places.data,
            "runtime": places.runtime, "pid": std::process::id(), "pids": [std::process::id(), open_session.pid()],
            "tcp": port, "abstract": name, "tmp": tmp, "tmp_inode": fs::metadata(&tmp).unwrap().ino(), "interfaces": interfaces,
            "root": rustix::process::geteuid().is_root(), "processes": limits.processes, "open_files": limits.open_files,
            "file_size_mb": limits.file_size_mb, "tmp_mb": limits.tmp_mb, "address_space": limits.address_space_bytes(),
            "memory": limits.memory_mb << 20, "canaries": backwards,
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
            seen = made;
        } else {
            assert!(failed(false).is_empty(), "out of {profile}: {:#?}", failed(false));
            assert_eq!(made.len(), kinds.len());
            let late: Vec<_> =
                made.iter().filter(|(_, failure)| failure.as_deref() == Some("it took too long")).collect();
            assert!(late.is_empty(), "{late:?}");
            // Those that only root can make were seen to work if this is root.
            let is_root = rustix::process::geteuid().is_root();
            let unseen = |name: &&String| is_root && kinds[*name].1.is_none() && !seen.contains_key(*name);
            assert_eq!(made.keys().find(unseen), None, "neither seen to work nor said why not");
            assert_eq!(session.value("6 * 7").await, "42", "the session works all the same");
            for (name, _, _) in DRIVEN {
                // The last of them ends it.
                let session =
                    if *name == "live_on_after_the_end" { open(core, profile, &[]).await } else { session.clone() };
                let attempt = Try { core, session: &session, outside: outside.clone() };
                let failure = attempt.make(name).await;
                assert!(failure.is_err(), "out of {profile}: {name}");
            }
        }
    }
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret of others");
    assert!(!outside.join("planted-by-tool").exists() && outside.join("victim").exists());
    fs::remove_dir_all(tmp).unwrap();
}

/// There are enough of each kind, and of each it is known whether it works without a sandbox, or why that is not tried.
fn check_kinds(made_inside: &BTreeMap<String, (String, Option<String>)>) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for kind in made_inside.values().map(|(kind, _)| kind.as_str()).chain(DRIVEN.iter().map(|(_, kind, _)| *kind)) {
        *counts.entry(kind).or_default() += 1;
    }
    assert!(counts.values().sum::<usize>() >= 120, "{counts:?}");
    for (kind, least) in [
        ("file", 40),
        ("network", 15),
        ("process", 25),
        ("kernel", 20),
        ("resource", 20),
        ("protocol", 7),
        ("file-tool", 10),
    ] {
        assert!(counts.get(kind).is_some_and(|count| *count >= least), "{kind}: {counts:?}");
    }
    let unsaid: Vec<_> = made_inside.iter().filter(|(_, (_, unless))| unless.as_deref() == Some("")).collect();
    assert!(unsaid.is_empty() && DRIVEN.iter().all(|(_, _, unless)| unless.is_some()), "{unsaid:?}");
}

#[test]
fn no_attempt_gets_out_of_a_sandbox() {
    if let Some(reason) = why_no_namespaces() {
        return skip("no_attempt_gets_out_of_a_sandbox", &reason);
    }
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

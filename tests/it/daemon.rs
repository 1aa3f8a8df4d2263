//! The daemon as a process: its directory and sockets, how it starts, leaves, dies and meets other versions.

use std::{
    fs,
    io::{Read, Write},
    os::{
        fd::AsFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pylair_keeper::datagram;
use pylair_mcp::bridge::{Answer, Hello, slate};
use rustix::process::Signal;

use crate::support::{Client, Home, PATIENCE, Server, Watched, kill};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode() & 0o777
}

#[test]
fn directories_and_sockets_are_private_and_there_is_a_log() {
    let home = Home::new();
    assert!(home.run(&["exec", "1"]).status.success());
    let places = home.places();
    for directory in [&places.runtime, &places.state, &places.data] {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    for file in [places.socket(), places.bridge_socket(), places.log()] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    let log = fs::read_to_string(places.log()).expect("there is a log");
    assert!(log.contains("the daemon is ready"), "{log}");
}

/// A command whose starter has left a file open, for reading and for writing.
fn with_a_file_left_open(home: &Home, file: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec 7<\"$0\" 8>>\"$0\"; exec \"$@\""]).arg(file).arg(&home.program).args(args);
    command.env_clear().envs(&home.env).current_dir(home.work()).stdin(Stdio::null());
    command
}

fn open_files(pid: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is ours");
    listed.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect()
}

#[test]
fn descriptors_of_whoever_starts_a_daemon_stay_with_their_owner() {
    let code = "import os; [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') \
                if os.path.islink(f'/proc/self/fd/{n}')]";
    let is_clean = |said: &str, secret: &Path| said.contains("pipe:") && !said.contains(secret.to_str().unwrap());
    for args in [&["mcp"][..], &["mcp", "--standalone"]] {
        let home = Home::new();
        let secret = home.path.join("secret");
        fs::write(&secret, "secret").unwrap();
        let mut client = Client::start(with_a_file_left_open(&home, &secret, args));
        client.initialize();
        let said = client.execute_text(code);
        assert!(is_clean(&said, &secret), "{args:?}: {said}");
        if args.len() == 1 {
            assert!(!open_files(&home.daemon_pid().to_string()).contains(&secret), "the daemon has it");
        }
    }
    let home = Home::new();
    let secret = home.path.join("secret");
    fs::write(&secret, "secret").unwrap();
    let _server = Server::start(with_a_file_left_open(&home, &secret, &["serve", "--port", "0"]), &home.places());
    let said = home.run(&["exec", code]).stdout;
    assert!(is_clean(&said, &secret), "serve: {said}");
    assert!(!open_files(&home.daemon_pid().to_string()).contains(&secret), "the server has it");
}

#[test]
fn sessions_have_the_mask_and_the_limits_the_daemon_was_started_with() {
    let home = Home::new();
    let code = "import os, resource, subprocess\n\
                open('made', 'w').close()\n\
                mask = os.umask(0); _ = os.umask(mask)\n\
                print(oct(mask), subprocess.check_output('umask', shell=True).decode().strip())\n\
                resource.getrlimit(resource.RLIMIT_NOFILE)[0]";
    let mut started = Command::new("/bin/sh");
    started.args(["-c", "umask 027; ulimit -S -n 300; exec \"$0\" exec \"$1\""]).arg(&home.program).arg(code);
    let said = started.env_clear().envs(&home.env).current_dir(home.work()).output().expect("the program starts");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "0o27 0027\n300\n", "{said:?}");
    assert_eq!(mode(&home.work().join("made")), 0o640);
    let mut client = Client::start(home.command(&["mcp", "--tools", "run,files"]));
    client.initialize();
    client.data("write_file", &serde_json::json!({"path": "new/file.txt", "content": "x"}));
    assert_eq!((mode(&home.work().join("new")), mode(&home.work().join("new/file.txt"))), (0o750, 0o640));
}

#[test]
fn stale_sockets_are_recovered() {
    let home = Home::new();
    let places = home.places();
    places.create().expect("the home is writable");
    for path in [places.socket(), places.bridge_socket()] {
        drop(UnixListener::bind(path).expect("it is not there yet"));
    }
    assert_eq!(home.run(&["exec", "1 + 1"]).stdout, "2\n");
}

#[test]
fn sigterm_leaves_nothing() {
    let home = Home::new();
    let code = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True).pid and None";
    let opened = home.run(&["exec", code]);
    assert!(opened.status.success(), "{opened:?}");
    let processes = home.processes();
    assert!(processes.len() >= 4, "daemon, keeper, worker and child: {processes:?}");
    kill(home.daemon_pid(), Signal::TERM);
    for process in &processes {
        process.assert_ends();
    }
    let places = home.places();
    assert!(!places.socket().exists() && !places.bridge_socket().exists());
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let home = Home::new();
    assert!(home.run(&["exec", "1"]).status.success());
    let pid = home.daemon_pid();
    let processes = home.processes();
    // Both are there when it wakes up.
    for signal in [Signal::STOP, Signal::TERM, Signal::INT, Signal::CONT] {
        kill(pid, signal);
    }
    for process in &processes {
        process.assert_ends();
    }
    assert!(home.places().socket().exists(), "nothing was closed in order");
}

#[test]
fn sigkill_ends_all_session_processes_too() {
    let home = Home::new();
    let code = "import os, subprocess\n\
                subprocess.Popen(['sleep', '1000'], start_new_session=True)\n\
                if os.fork() == 0:\n    os.setsid()\n    while True: pass\n";
    let opened = home.run(&["exec", code]);
    assert!(opened.status.success(), "{opened:?}");
    let processes = home.processes();
    assert!(processes.len() >= 5, "daemon, keeper, worker and two children: {processes:?}");
    kill(home.daemon_pid(), Signal::KILL);
    for process in &processes {
        process.assert_ends();
    }
}

#[test]
fn an_idle_daemon_leaves_by_itself() {
    let home = Home::new().set("PYLAIR_IDLE_EXIT_S", "1");
    let daemon = Watched::new(home.daemon_pid());
    daemon.assert_ends();
    assert!(!home.places().socket().exists());
    // The next one must not leave before a slow machine has asked it.
    let home = home.set("PYLAIR_IDLE_EXIT_S", "900");
    assert_eq!(home.run(&["exec", "'another'"]).stdout, "'another'\n");
}

#[test]
fn a_command_of_another_version_is_told_and_can_still_stop_it() {
    let home = Home::new();
    home.daemon_pid();
    let ask = |path: &str| {
        let mut socket = UnixStream::connect(home.places().socket()).expect("the daemon listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let request =
            format!("GET {path} HTTP/1.0\r\nHost: pylair\r\nx-pylair-version: 0.0.1\r\nContent-Length: 0\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("the daemon reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("the daemon answers");
        answer
    };
    let refused = ask("/api/sessions");
    assert!(refused.starts_with("HTTP/1.0 409"), "{refused}");
    assert!(refused.contains("this command is 0.0.1") && refused.contains("pylair stop"), "{refused}");
    assert!(ask("/api/status").starts_with("HTTP/1.0 200"));
}

#[test]
fn a_bridge_of_another_version_is_refused_in_one_sentence() {
    let home = Home::new();
    home.daemon_pid();
    let hello =
        Hello { version: "0.0.1".to_owned(), cwd: None, env: home.env.clone(), introduction: None, resumed: None };
    let memory = hello.to_memory_file().expect("memory files can be made");
    let slate = slate::create().expect("memory files can be made");
    let (_ours, theirs) = UnixStream::pair().expect("sockets can be made");
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
        .expect("sockets can be made");
    let address = rustix::net::SocketAddrUnix::new(home.places().bridge_socket()).expect("the path is short");
    rustix::net::connect(&socket, &address).expect("the daemon listens");
    datagram::send_datagram(&socket, b"{}", &[memory.as_fd(), theirs.as_fd(), theirs.as_fd(), slate.as_fd()])
        .expect("the daemon reads");
    let mut buffer = [0; 4096];
    let answer = datagram::recv_datagram(&socket, &mut buffer).expect("the daemon answers");
    let answer: Answer = serde_json::from_slice(answer.bytes).expect("JSON");
    let Answer::Refused { message, hint } = answer else { panic!("not refused: {answer:?}") };
    assert_eq!(message, format!("the daemon is pylair {}, this bridge is 0.0.1", env!("CARGO_PKG_VERSION")));
    assert!(hint.contains("pylair stop"), "{hint}");
}

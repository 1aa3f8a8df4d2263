//! A real nursery, under root and under an ordinary user, and a visitor it spawned that enters the keepers as a template would.
//!
//! Both are this test program again, told by its arguments to run `inside` or `visitor`. What the visitor finds behind the walls it
//! says in lines of `NAME OUTCOME`. Nothing but the walls under test is up: no system call filter.

use super::*;
use crate::{Order, datagram::pass_credentials, pid_within};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// An ordinary user. Not 65534, which is what every user looks like where it is not known.
const SOMEBODY: u32 = 54321;
const OUTER: u32 = 0x7000_1234;

/// Under whom a nursery runs. As root both are tried, otherwise only what we are.
fn users() -> Vec<Option<u32>> {
    if rustix::process::geteuid().is_root() { vec![None, Some(SOMEBODY)] } else { vec![None] }
}

fn as_test(name: &str) -> Vec<String> {
    let name = format!("nursery::tests::{name}");
    ["/proc/self/exe", "--exact", &name, "--ignored", "--test-threads=1"].map(str::to_owned).to_vec()
}

fn is_helper() -> bool {
    // SAFETY: the number is asked about in one system call, which says so if nothing is open under it; it is not kept.
    let control = unsafe { BorrowedFd::borrow_raw(CONTROL) };
    rustix::net::sockopt::socket_type(control) == Ok(SocketType::SEQPACKET)
        && std::env::args().any(|argument| argument == "--test-threads=1")
}

#[test]
#[ignore = "run by the other tests as the nursery that has moved into its user namespace"]
fn inside() {
    if is_helper() {
        serve()
    }
}

#[test]
#[ignore = "run by the other tests as the program that enters a keeper"]
fn visitor() {
    while is_helper() {
        // SAFETY: descriptor 3 was given to this process for this.
        let control = unsafe { BorrowedFd::borrow_raw(CONTROL) };
        let mut buffer = vec![0; 4096];
        let Ok(datagram) = recv_datagram(control, &mut buffer) else { leave(0) };
        let visit: Visit = serde_json::from_slice(datagram.bytes).unwrap();
        let [keeper, ruleset, alive] = <[OwnedFd; 3]>::try_from(datagram.fds).unwrap();
        enter(&keeper, libc::CLONE_NEWPID).unwrap();
        // A dead child that its parent outside does not reap keeps the namespace, and with it the keeper, from ending.
        // SAFETY: no code of ours is installed as a handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        // SAFETY: the child is a single thread that never returns from here.
        if unsafe { libc::fork() } == 0 {
            reset_signals();
            let found = visit.make(&keeper, &ruleset, &alive).unwrap_or_else(|error| format!("visit {error}\n"));
            send_datagram(control, found.as_bytes(), &[]).unwrap();
            loop {
                // SAFETY: it only waits.
                unsafe { libc::pause() };
            }
        }
    }
}

fn enter(keeper: &OwnedFd, namespaces: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::setns(keeper.as_raw_fd(), namespaces) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What a visitor is asked to look at.
#[derive(Serialize, Deserialize)]
#[expect(clippy::unsafe_derive_deserialize, reason = "its fields promise nothing")]
struct Visit {
    change_ids: bool,
    host_pid: i32,
    host_socket: String,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
}

impl Visit {
    fn make(&self, keeper: &OwnedFd, ruleset: &OwnedFd, alive: &OwnedFd) -> io::Result<String> {
        enter(keeper, namespaces(false) & !libc::CLONE_NEWPID)?;
        if self.change_ids {
            let (uid, gid) = (Uid::from_raw(INNER_ID), Gid::from_raw(INNER_ID));
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        give_up_capabilities()?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        rustix::process::chdir("/tmp")?;
        // SAFETY: no memory is involved.
        if unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // One that tries to get away, for whoever holds the other end of the pipe.
        // SAFETY: the child is a single thread that never returns from here.
        if unsafe { libc::fork() } == 0 {
            let _ = rustix::process::setsid();
            // SAFETY: as above.
            if unsafe { libc::fork() } == 0 {
                loop {
                    // SAFETY: it only waits.
                    unsafe { libc::pause() };
                }
            }
            leave(0);
        }
        rustix::io::fcntl_getfd(alive)?;

        let mut found = Observations(String::new());
        found.note("processes", || Ok(processes()?.iter().all(|pid| *pid < 8).to_string()));
        found.note("host-name", || {
            std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned())
        });
        found.note("signal-host", || signal(self.host_pid));
        found.note("signal-keeper", || signal(1));
        found.note("keeper-memory", || std::fs::File::open("/proc/1/mem").map(|_| String::new()));
        found.note("keeper-descriptors", || std::fs::read_dir("/proc/1/fd").map(|_| String::new()));
        found.note("tcp", || {
            TcpStream::connect_timeout(&([1, 1, 1, 1], 80).into(), Duration::from_secs(1)).map(|_| String::new())
        });
        found.note("udp", || UdpSocket::bind("0.0.0.0:0")?.send_to(b"x", "1.1.1.1:53").map(|_| String::new()));
        found.note("abstract-socket", || {
            UnixStream::connect_addr(&SocketAddr::from_abstract_name(&self.host_socket)?).map(|_| String::new())
        });
        found.note("usr", || std::fs::write("/usr/pylair-was-here", "").map(|()| String::new()));
        found.note("root", || std::fs::write("/pylair-was-here", "").map(|()| String::new()));
        found.note("shadow", || std::fs::read_to_string("/etc/shadow"));
        found.note("home", || std::fs::read_dir("/home").map(|_| String::new()));
        found.note("tmp", || std::fs::write("/tmp/x", "text").map(|()| String::new()));
        found.note("tmp-2-mb", || std::fs::write("/tmp/y", vec![0; 2 << 20]).map(|()| String::new()));
        found.note("program", || {
            std::process::Command::new("/bin/sh").args(["-c", "exit 7"]).status().map(|status| status.to_string())
        });
        for path in &self.read {
            found.note(&format!("read {}", path.display()), || std::fs::read_to_string(path));
        }
        for path in &self.write {
            found
                .note(&format!("write {}", path.display()), || std::fs::write(path, "changed").map(|()| String::new()));
        }
        Ok(found.0)
    }
}

fn signal(pid: i32) -> io::Result<String> {
    // SAFETY: no memory is involved.
    if unsafe { libc::kill(pid, 0) } == 0 { Ok(String::new()) } else { Err(io::Error::last_os_error()) }
}

fn processes() -> io::Result<Vec<i32>> {
    Ok(std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

struct Observations(String);

impl Observations {
    fn note(&mut self, name: &str, look: impl FnOnce() -> io::Result<String>) {
        let outcome = match look() {
            Ok(text) => format!("ok {text}"),
            Err(error) => format!("{:?}", error.kind()),
        };
        let _ = writeln!(self.0, "{name}: {outcome}");
    }
}

struct TestNursery {
    control: OwnedFd,
    pid: i32,
    ready: Ready,
}

impl TestNursery {
    /// `None` where the system forbids namespaces, after checking that it says so well.
    fn start(user: Option<u32>) -> Option<Self> {
        let (control, theirs) = sockets();
        // SAFETY: the child is a single thread that never returns from here.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
            place(null.as_raw_fd(), 1).unwrap();
            place(theirs.as_raw_fd(), CONTROL).unwrap();
            close_all_but(&[CONTROL]);
            if let Some(user) = user {
                let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
            }
            let arguments: Vec<_> = as_test("inside").into_iter().map(|word| CString::new(word).unwrap()).collect();
            start(&arguments.iter().map(CString::as_c_str).collect::<Vec<_>>())
        }
        drop(theirs);
        let (bytes, _) = receive(&control);
        let ready: Ready = serde_json::from_slice(&bytes).unwrap();
        if ready.ready {
            return Some(Self { control, pid, ready });
        }
        assert!(ready.error.unwrap().contains("To confine sessions, "));
        None
    }

    fn ask(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> (Reply, Vec<OwnedFd>) {
        send_datagram(&self.control, request, fds).unwrap();
        let (bytes, fds) = receive(&self.control);
        (serde_json::from_slice(&bytes).unwrap(), fds)
    }

    #[track_caller]
    fn refusal(&self, request: &serde_json::Value, fds: &[BorrowedFd<'_>]) -> String {
        match self.ask(request.to_string().as_bytes(), fds) {
            (Reply::Failed { failed: 9, error }, _) => error,
            (reply, _) => panic!("{reply:?}"),
        }
    }

    /// The keeper's control socket, its pidfd and its first report.
    fn keeper(
        &self,
        read_only: &[&Path],
        writable: &[&Path],
        workspace: Option<&Path>,
    ) -> (OwnedFd, OwnedFd, Report, Vec<OwnedFd>) {
        let request = Request::Keeper(Box::new(KeeperRequest {
            id: 5,
            read_only: read_only.iter().map(|path| path.to_path_buf()).collect(),
            within: Vec::new(),
            readable: Vec::new(),
            proxy: false,
            writable: writable.iter().map(|path| path.to_path_buf()).collect(),
            views: Vec::new(),
            workspace: workspace.map(Path::to_path_buf),
            tmp_mb: 1,
            network: false,
            uid: Some(OUTER),
            program: None,
        }));
        let (reply, fds) = self.ask(&serde_json::to_vec(&request).unwrap(), &[]);
        assert!(matches!(reply, Reply::Keeper { keeper: 5, .. }), "{reply:?}");
        let [control, pidfd] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        let (report, ruleset) = receive(&control);
        (control, pidfd, Report::parse(&report).unwrap(), ruleset)
    }

    fn spawn_visitor(&self) -> (OwnedFd, OwnedFd) {
        let (control, theirs) = sockets();
        let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        let request = Request::Spawn(SpawnRequest { id: 6, argv: as_test("visitor"), env: BTreeMap::new() });
        let fds = [null.as_fd(), null.as_fd(), null.as_fd(), theirs.as_fd(), null.as_fd()];
        let (reply, fds) = self.ask(&serde_json::to_vec(&request).unwrap(), &fds);
        assert!(matches!(reply, Reply::Spawned { spawned: 6, .. }), "{reply:?}");
        let [pidfd] = <[OwnedFd; 1]>::try_from(fds).unwrap();
        (control, pidfd)
    }

    fn close(self) {
        drop(self.control);
        let mut status = 0;
        // SAFETY: the status is written during the call.
        assert_eq!(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }, self.pid);
        assert_eq!(status, 0);
    }
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn receive(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    assert!(readable(socket), "nobody says anything");
    let mut buffer = vec![0; 1 << 16];
    let datagram = recv_datagram(socket, &mut buffer).unwrap();
    (datagram.bytes.to_vec(), datagram.fds)
}

fn readable(fd: impl AsFd) -> bool {
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&TIMEOUT)).unwrap() > 0
}

/// A directory of the nursery's user that nobody else may search.
struct Home(PathBuf);

impl Home {
    fn new(name: &str, user: Option<u32>) -> Self {
        let path = std::env::temp_dir().join(format!("pylair-{name}-{}-{}", std::process::id(), user.unwrap_or(0)));
        std::fs::create_dir_all(path.join("prefix/lib")).unwrap();
        std::fs::create_dir_all(path.join("project/.venv")).unwrap();
        symlink("prefix", path.join("alias")).unwrap();
        for (file, text) in [("private", "secret"), ("prefix/lib/module", "code"), ("project/.venv/module", "code")] {
            std::fs::write(path.join(file), text).unwrap();
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        if user.is_some() {
            for below in ["", "prefix", "project", "project/.venv", "project/.venv/module"] {
                std::os::unix::fs::chown(path.join(below), user, user).unwrap();
            }
        }
        Self(path)
    }

    fn join(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_session_sees_its_own_world_only() {
    for user in users() {
        let Some(nursery) = TestNursery::start(user) else { continue };
        let home = Home::new("world", user);
        let (prefix, alias, project, venv) =
            (home.join("prefix"), home.join("alias"), home.join("project"), home.join("project/.venv"));
        let missing = home.join("missing");
        let space = home.join("space");
        std::fs::create_dir(&space).unwrap();
        if rustix::process::geteuid().is_root() {
            let owner = Some(user.unwrap_or(OUTER));
            std::os::unix::fs::chown(&space, owner, owner).unwrap();
        }
        let (control, pidfd, report, ruleset) =
            nursery.keeper(&[&alias, &venv, &missing, &missing], &[&project], Some(&space));
        assert_eq!(report, Report::Ready);
        assert_eq!(pid_within(&pidfd).unwrap(), 1);
        let [ruleset] = <[OwnedFd; 1]>::try_from(ruleset).expect("this kernel has Landlock");

        let host_socket = format!("pylair-test-{}-{}", std::process::id(), user.unwrap_or(0));
        let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&host_socket).unwrap()).unwrap();
        let change_ids = nursery.ready.outer_uid.is_none();
        let inner = Path::new(WORKSPACE).join("new");
        let visit = Visit {
            change_ids,
            host_pid: i32::try_from(std::process::id()).unwrap(),
            host_socket,
            read: vec![prefix.join("lib/module"), alias.join("lib/module"), venv.join("module"), home.join("private")],
            write: vec![prefix.join("new"), venv.join("module"), project.join("new"), space.join("new"), inner.clone()],
        };
        let (visitor, visitor_pidfd) = nursery.spawn_visitor();
        let (alive, holder) = io::pipe().unwrap();
        send_datagram(
            &visitor,
            &serde_json::to_vec(&visit).unwrap(),
            &[pidfd.as_fd(), ruleset.as_fd(), holder.as_fd()],
        )
        .unwrap();
        drop(holder);
        let text = String::from_utf8(receive(&visitor).0).unwrap();
        let found: HashMap<_, _> = text.lines().filter_map(|line| line.split_once(": ")).collect();

        for (name, expected) in [
            ("processes", "ok true"),
            ("host-name", "ok pylair"),
            ("signal-host", "Uncategorized"),
            ("signal-keeper", "PermissionDenied"),
            ("keeper-memory", "PermissionDenied"),
            ("keeper-descriptors", "PermissionDenied"),
            ("udp", "NetworkUnreachable"),
            ("abstract-socket", "ConnectionRefused"),
            ("usr", "ReadOnlyFilesystem"),
            ("root", "ReadOnlyFilesystem"),
            ("shadow", "NotFound"),
            ("home", "NotFound"),
            ("tmp", "ok "),
            ("tmp-2-mb", "StorageFull"),
            ("program", "ok exit status: 7"),
            (&format!("read {}", prefix.join("lib/module").display()), "ok code"),
            (&format!("read {}", alias.join("lib/module").display()), "ok code"),
            (&format!("read {}", venv.join("module").display()), "ok code"),
            (&format!("read {}", home.join("private").display()), "NotFound"),
            (&format!("write {}", prefix.join("new").display()), "ReadOnlyFilesystem"),
            (&format!("write {}", venv.join("module").display()), "ReadOnlyFilesystem"),
            (&format!("write {}", project.join("new").display()), "ok "),
            (&format!("write {}", space.join("new").display()), "NotFound"),
            (&format!("write {}", inner.display()), "ok "),
        ] {
            assert_eq!(found.get(name), Some(&expected), "{name} under {user:?} in\n{text}");
        }
        assert_eq!(std::fs::read_to_string(space.join("new")).unwrap(), "changed");
        // Refused by Landlock where it can, and by an empty network where it cannot.
        assert!(["PermissionDenied", "NetworkUnreachable"].contains(&found["tcp"]), "under {user:?} in\n{text}");

        drop(control);
        assert!(readable(&pidfd), "the keeper lives on");
        assert!(readable(&alive), "somebody got away");
        drop(visitor);
        assert!(readable(&visitor_pidfd), "the visitor lives on");
        nursery.close();
    }
}

#[test]
fn a_branch_ends_without_its_keeper() {
    for user in users() {
        let Some(nursery) = TestNursery::start(user) else { continue };
        let (control, pidfd, _, ruleset) = nursery.keeper(&[], &[], None);
        let [ruleset] = <[OwnedFd; 1]>::try_from(ruleset).expect("this kernel has Landlock");
        let (visitor, _visitor_pidfd) = nursery.spawn_visitor();
        pass_credentials(&visitor).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let visit = Visit {
            change_ids: nursery.ready.outer_uid.is_none(),
            host_pid: i32::try_from(std::process::id()).unwrap(),
            host_socket: String::new(),
            read: vec![],
            write: vec![],
        };
        let enter = || {
            let fds = [pidfd.as_fd(), ruleset.as_fd(), null.as_fd()];
            send_datagram(&visitor, &serde_json::to_vec(&visit).unwrap(), &fds).unwrap();
            assert!(readable(&visitor), "nobody says anything");
            let mut buffer = vec![0; 1 << 16];
            let sender = recv_datagram(&visitor, &mut buffer).unwrap().credentials.unwrap();
            let pid = rustix::process::Pid::from_raw(sender.pid).unwrap();
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap()
        };
        let (original, branched) = (enter(), enter());
        let (branch, theirs) = sockets();
        let order = Order::Ward { pid: pid_within(&branched).unwrap() };
        send_datagram(&control, order.encode().as_bytes(), &[theirs.as_fd()]).unwrap();
        drop(theirs);
        assert_eq!(Report::parse(&receive(&branch).0), Some(Report::Ready));

        for (control, worker) in [(branch, &branched), (control, &original)] {
            assert!(!ended(worker), "it was taken along");
            rustix::net::shutdown(&control, rustix::net::Shutdown::Write).unwrap();
            while readable(&control) && recv_datagram(&control, &mut [0; 64]).is_ok() {}
            assert!(ended(worker), "the end came too early");
        }
        assert!(readable(&pidfd), "the keeper lives on");
        drop(visitor);
        nursery.close();
    }
}

fn ended(pidfd: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn no_request_ends_the_nursery() {
    for user in users() {
        let Some(nursery) = TestNursery::start(user) else { continue };
        let failed = |bytes: &[u8]| nursery.ask(bytes, &[]).0;
        assert!(matches!(failed(b"garbage"), Reply::Failed { failed: 0, .. }));
        assert!(matches!(failed(&vec![b' '; MAX_REQUEST_BYTES + 1]), Reply::Failed { failed: 0, .. }));
        let request = |extra: serde_json::Value| {
            let mut request = serde_json::json!({"id": 9});
            request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            request
        };
        assert!(nursery.refusal(&request(serde_json::json!({"op": "dance"})), &[]).contains("dance"));
        let spawn = request(serde_json::json!({"op": "spawn", "argv": ["/missing"], "env": {}}));
        assert!(nursery.refusal(&spawn, &[]).contains("5 descriptors are needed, not 0"));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(nursery.refusal(&spawn, &[null.as_fd(); 5]).starts_with("exec /missing: No such file"));
        if nursery.ready.outer_uid.is_none() {
            for uid in [serde_json::Value::Null, 0.into()] {
                let keeper = serde_json::json!({"op": "keeper", "tmp_mb": 1, "network": false, "uid": uid});
                assert!(nursery.refusal(&request(keeper), &[]).contains("not 0"));
            }
        }

        for (path, why) in [
            ("/missing", "open /missing: No such file"),
            ("relative", "path relative: "),
            ("/", "path /: "),
            ("/proc/self", "path /proc/self: "),
            ("/bin/../etc", "path /bin/../etc: "),
        ] {
            let keeper =
                serde_json::json!({"op": "keeper", "tmp_mb": 1, "network": false, "uid": OUTER, "writable": [path]});
            let said = nursery.refusal(&request(keeper), &[]);
            assert!(said.starts_with(why), "{said}");
        }

        // What goes wrong later is said by the keeper that could not be.
        for (path, why) in [("relative", "path relative: "), ("/", "path /: ")] {
            let (_, pidfd, report, _) = nursery.keeper(&[Path::new(path)], &[], None);
            assert!(matches!(&report, Report::Failed(said) if said.starts_with(why)), "{report:?}");
            assert!(readable(&pidfd), "it lives on");
        }
        assert_eq!(nursery.keeper(&[], &[], None).2, Report::Ready);
        nursery.close();
    }
}

#[test]
fn keepers_outlive_the_nursery() {
    for user in users() {
        let Some(nursery) = TestNursery::start(user) else { continue };
        let (control, pidfd, report, _) = nursery.keeper(&[], &[], None);
        assert_eq!(report, Report::Ready);
        nursery.close();
        send_datagram(&control, Order::Sweep { keep: vec![] }.encode().as_bytes(), &[]).unwrap();
        assert_eq!(Report::parse(&receive(&control).0), Some(Report::Swept(0)));
        drop(control);
        assert!(readable(&pidfd), "the keeper lives on");
    }
}

#[test]
fn a_refusal_names_the_remedy() {
    let refused = refusal("making namespaces", &io::Error::from_raw_os_error(libc::ENOSPC));
    assert!(refused.starts_with("making namespaces was refused: No space left"), "{refused}");
    assert!(refused.contains("sysctl user.max_user_namespaces"), "{refused}");
    let refused = refusal("making namespaces", &io::Error::from_raw_os_error(libc::EPERM));
    assert!(refused.contains("To confine sessions, "), "{refused}");
}

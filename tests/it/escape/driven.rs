//! Attempts that take somebody outside as well: a caller of the file tools, the daemon that reads a worker's answers, the end of a session.

use std::{fs, path::PathBuf, time::Duration};

use pylair_core::session::Outcome;

use crate::support::{Core, PATIENCE, TestSession, Watched};

/// By name: of what kind it is, and why it is not made without a sandbox, if it is not.
pub const DRIVEN: &[(&str, &str, Option<&str>)] = &[
    ("read_through_a_planted_link", "file-tool", EVERYWHERE),
    ("read_through_a_planted_directory", "file-tool", EVERYWHERE),
    ("read_through_a_planted_way_to_the_root", "file-tool", EVERYWHERE),
    ("read_a_planted_pipe", "file-tool", EVERYWHERE),
    ("read_a_planted_socket", "file-tool", EVERYWHERE),
    ("write_through_a_planted_link", "file-tool", EVERYWHERE),
    ("write_into_a_planted_directory", "file-tool", EVERYWHERE),
    ("delete_through_a_planted_directory", "file-tool", EVERYWHERE),
    ("list_a_planted_directory", "file-tool", EVERYWHERE),
    ("download_through_a_planted_link", "file-tool", EVERYWHERE),
    ("swap_a_file_for_a_link_while_it_is_read", "file-tool", EVERYWHERE),
    ("swap_a_directory_for_a_link_while_it_is_written", "file-tool", EVERYWHERE),
    ("answer_in_the_place_of_the_worker", "protocol", EVERYWHERE),
    ("answer_twice", "protocol", EVERYWHERE),
    ("answer_what_was_not_asked_yet", "protocol", EVERYWHERE),
    ("answer_with_what_is_no_frame", "protocol", EVERYWHERE),
    ("announce_more_than_there_is_room_for", "protocol", EVERYWHERE),
    ("flood_the_daemon_with_descriptors", "protocol", EVERYWHERE),
    ("offer_a_checkpoint_that_nobody_asked_for", "protocol", EVERYWHERE),
    ("live_on_after_the_end", "process", EVERYWHERE),
    ("get_a_right_back_by_going_back", "file", Some("without a sandbox no right was given up")),
    ("get_a_right_in_a_branch", "file", Some("without a sandbox no right was given up")),
];

const EVERYWHERE: Option<&str> = Some("it must not work without a sandbox either");

/// Where an attempt is made.
pub struct Try<'a> {
    pub core: &'a Core,
    pub session: &'a TestSession,
    /// A directory with the files `secret` and `victim`.
    pub outside: PathBuf,
}

const LINK: &str = "import os, socket\nos.chdir(HERE)\n";

/// What the worker's own descriptors lead to, and how a frame is written.
const WIRE: &str = r#"
import os, json, stat, fcntl, socket, array
def frame(header): text = json.dumps(header).encode(); return len(text).to_bytes(4, "big") + text
def pipes():
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if fd > 2 and stat.S_ISFIFO(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY: yield fd
        except OSError: pass
def sockets():
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if fd > 2 and stat.S_ISSOCK(os.fstat(fd).st_mode): yield fd
        except OSError: pass
def say(data):
    for fd in pipes():
        os.set_blocking(fd, False)
        try: os.write(fd, data)
        except OSError: pass
        os.set_blocking(fd, True)
def current():
    import sys
    frame = sys._getframe()
    while frame is not None:
        request = frame.f_locals.get("request")
        if isinstance(request, dict) and "id" in request: return request["id"]
        frame = frame.f_back
def done(id, result): return frame({"ch": 1, "id": id, "ev": "done", "outcome": "ok", "result": result})
"#;

impl Try<'_> {
    /// How an attempt failed; `Ok` when it did not.
    pub async fn make(&self, name: &str) -> Result<(), String> {
        match name {
            "answer_in_the_place_of_the_worker" => self.answer_from_a_child().await,
            "answer_twice" => self.answer_twice().await,
            "answer_what_was_not_asked_yet" => self.answer_early().await,
            "answer_with_what_is_no_frame" => self.breaks_the_wire("say(b'\\xff' * 64)").await,
            "announce_more_than_there_is_room_for" => self.breaks_the_wire("say(b'\\x7f\\xff\\xff\\xff{')").await,
            "flood_the_daemon_with_descriptors" => self.flood().await,
            "offer_a_checkpoint_that_nobody_asked_for" => self.offer_a_checkpoint().await,
            "live_on_after_the_end" => self.live_on().await,
            "get_a_right_back_by_going_back" => self.go_back().await,
            "get_a_right_in_a_branch" => self.branch().await,
            name => self.use_the_tools(name).await,
        }
    }

    async fn plant(&self, code: &str) {
        let outside = self.outside.display().to_string();
        let setup = format!(
            "OUT = {outside:?}\nHERE = os.getcwd() if 'os' in globals() else __import__('os').getcwd()\n{LINK}{code}"
        );
        self.session.value(&setup).await;
    }

    async fn use_the_tools(&self, name: &str) -> Result<(), String> {
        let files = self.session.session.workspace();
        let told = |result: Result<bool, pylair_files::Error>| match result {
            Ok(true) => Ok(()),
            Ok(false) => Err("nothing was found".to_owned()),
            Err(error) => Err(error.message()),
        };
        let is_secret = |page: pylair_files::Page| format!("{page:?}").contains("secret of others");
        match name {
            "read_through_a_planted_link" => {
                self.plant("os.symlink(OUT + '/secret', 'p1')").await;
                told(files.read("p1", 0, 100).await.map(is_secret))
            }
            "read_through_a_planted_directory" => {
                self.plant("os.symlink(OUT, 'p2')").await;
                told(files.read("p2/secret", 0, 100).await.map(is_secret))
            }
            "read_through_a_planted_way_to_the_root" => {
                self.plant("os.symlink('/proc/self/root', 'p3')").await;
                let path = format!("p3{}/secret", self.outside.display());
                told(files.read(&path, 0, 100).await.map(is_secret))
            }
            "read_a_planted_pipe" => {
                self.plant("os.mkfifo('p4')").await;
                let read = tokio::time::timeout(Duration::from_secs(5), files.read("p4", 0, 100)).await;
                told(read.map_or(Ok(true), |read| read.map(|_| true)))
            }
            "read_a_planted_socket" => {
                self.plant("s = socket.socket(socket.AF_UNIX); s.bind('p5'); s.close(); del s").await;
                told(files.read("p5", 0, 100).await.map(|_| true))
            }
            "write_through_a_planted_link" => {
                self.plant("os.symlink(OUT + '/victim', 'p6')").await;
                let written = files.write("p6", b"overwritten".to_vec()).await;
                told(written.map(|_| self.is_changed()))
            }
            "write_into_a_planted_directory" => {
                self.plant("os.symlink(OUT, 'p7')").await;
                let written = files.write("p7/planted-by-tool", b"x".to_vec()).await;
                told(written.map(|_| self.outside.join("planted-by-tool").exists()))
            }
            "delete_through_a_planted_directory" => {
                self.plant("os.symlink(OUT, 'p8')").await;
                let deleted = files.delete("p8/victim").await;
                told(deleted.map(|_| !self.outside.join("victim").exists()))
            }
            "list_a_planted_directory" => {
                self.plant("os.symlink(OUT, 'p9')").await;
                let listed = files.list("p9", pylair_files::ListOptions::default()).await;
                told(listed.map(|listing| format!("{listing:?}").contains("victim")))
            }
            "download_through_a_planted_link" => {
                self.plant("os.symlink(OUT + '/secret', 'p10')").await;
                told(files.download("p10").await.map(|_| true))
            }
            "swap_a_file_for_a_link_while_it_is_read" => {
                let swap = "import threading\nswapping = True\ndef swap():\n    while swapping:\n        for made in (lambda: os.symlink(OUT + '/secret', 'n1'), \
                            lambda: open('n1', 'w').close()):\n            made(); os.replace('n1', 'r1')\nthread = threading.Thread(target=swap); thread.start()";
                self.plant(swap).await;
                let mut worked = false;
                for _ in 0..300 {
                    worked |= files.read("r1", 0, 100).await.is_ok_and(is_secret);
                }
                self.session.value("swapping = False; thread.join(); del thread").await;
                told(Ok(worked))
            }
            "swap_a_directory_for_a_link_while_it_is_written" => {
                let swap = "import threading\nswapping = True\nos.mkdir('d2'); os.symlink(OUT, 'l2')\ndef swap():\n    while swapping:\n        \
                            os.rename('d2', 'r2'); os.rename('r2', 'd2'); os.rename('l2', 'r2'); os.rename('r2', 'l2')\n\
                            thread = threading.Thread(target=swap); thread.start()";
                self.plant(swap).await;
                for _ in 0..300 {
                    let _may_fail = files.write("r2/raced-by-tool", b"x".to_vec()).await;
                }
                self.session.value("swapping = False; thread.join(); del thread").await;
                told(Ok(self.outside.join("raced-by-tool").exists()))
            }
            other => panic!("there is no attempt {other}"),
        }
    }

    fn is_changed(&self) -> bool {
        fs::read_to_string(self.outside.join("victim")).is_ok_and(|text| text == "overwritten")
    }

    /// The cell that runs has a number that can be guessed; a child tries many.
    async fn answer_from_a_child(&self) -> Result<(), String> {
        let code = format!(
            "{WIRE}\npid = os.fork()\nif pid == 0:\n    for id in range(1, 400): say(done(id, 'forged'))\n    os._exit(0)\nos.waitpid(pid, 0)\n'honest'"
        );
        let report = self.session.run(&code).await;
        match report.result.as_deref() {
            Some("'honest'") => Err("the worker's own answer came".to_owned()),
            _ => Ok(()),
        }
    }

    /// A worker that answers for itself twice: the second is nobody's, also not the next cell's.
    async fn answer_twice(&self) -> Result<(), String> {
        let code = format!("{WIRE}\nid = current()\nfor word in ('first', 'second', 'third'): say(done(id, word))");
        self.session.run(&code).await;
        self.is_honest().await
    }

    async fn answer_early(&self) -> Result<(), String> {
        let code = format!("{WIRE}\nfor id in range(current() + 1, current() + 500): say(done(id, 'forged'))");
        self.session.run(&code).await;
        self.is_honest().await
    }

    async fn is_honest(&self) -> Result<(), String> {
        for number in 0..3 {
            let report = self.session.run(&format!("{number} + 40")).await;
            if report.result.as_deref() != Some(&*(number + 40).to_string()) {
                return Ok(());
            }
        }
        Err("what comes after is answered by the worker".to_owned())
    }

    /// Ends the worker and nothing else.
    async fn breaks_the_wire(&self, code: &str) -> Result<(), String> {
        let report = self.session.run(&format!("{WIRE}\n{code}\nimport time\ntime.sleep(60)")).await;
        if report.outcome != Outcome::Died {
            return Ok(());
        }
        self.is_honest().await.map_err(|_| "the worker was ended, and the session went on".to_owned())
    }

    async fn flood(&self) -> Result<(), String> {
        let before = descriptors();
        let code = format!(
            "{WIRE}\nnull = os.open('/dev/null', os.O_RDONLY)\nfor fd in sockets():\n    s = socket.socket(fileno=os.dup(fd)); s.setblocking(False)\n    \
             for n in range(2000):\n        try: s.sendmsg([json.dumps({{'checkpoint': f'c{{n}}'}}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [null] * 8))])\n        \
             except OSError: break\n    s.close()"
        );
        self.session.run(&code).await;
        let honest = self.is_honest().await;
        if descriptors() > before + 200 { Ok(()) } else { honest }
    }

    async fn offer_a_checkpoint(&self) -> Result<(), String> {
        let cell = self.session.session.status().cell + 1;
        let code = format!(
            "{WIRE}\nfor fd in sockets():\n    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n    s = socket.socket(fileno=os.dup(fd))\n    \
             try: s.sendmsg([json.dumps({{'checkpoint': 'c{cell}'}}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [theirs.fileno()]))])\n    \
             except OSError: pass\n    ours.send(json.dumps({{'frozen': 'c{cell}'}}).encode()); s.close()"
        );
        self.session.run(&code).await;
        self.is_honest().await
    }

    /// Twice forked, in a session and a group of its own, deaf to signals.
    async fn live_on(&self) -> Result<(), String> {
        let mark = format!("pylair-lives-on-{}", std::process::id());
        let code = format!(
            "import os, sys, signal, subprocess\ncode = \"import os, signal, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\n\
             if os.fork(): os._exit(0)\\n[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15, 13)]\\nprint('up', flush=True)\\ntime.sleep(1000)\"\n\
             p = subprocess.Popen([sys.executable, '-c', code, {mark:?}], stdout=subprocess.PIPE); p.stdout.readline(); p.wait(); p.stdout.close(); del p"
        );
        self.session.value(&code).await;
        let left: Vec<_> = processes_with(&mark).into_iter().map(Watched::new).collect();
        assert!(!left.is_empty(), "it was started");
        self.core.close_session(self.session).await;
        if left.iter().all(Watched::ends) { Err("it ended with the session".to_owned()) } else { Ok(()) }
    }

    async fn go_back(&self) -> Result<(), String> {
        self.session.value("kept = 1").await;
        let cell = self.session.session.status().cell;
        self.core.wait_for_checkpoint(self.session, cell).await;
        self.session.value("kept = 2").await;
        self.session.session.undo(Some(cell)).await.expect("it goes back");
        self.has_a_right(self.session).await
    }

    async fn branch(&self) -> Result<(), String> {
        let branch = self.core.branch(self.session, None).await.expect("it branches");
        let result = self.has_a_right(&branch).await;
        self.core.close_session(&branch).await;
        result
    }

    async fn has_a_right(&self, session: &TestSession) -> Result<(), String> {
        let secret = self.outside.join("secret").display().to_string();
        let code = format!(
            "import os, socket\nrights = []\ntry: open({secret:?}); rights.append('file')\nexcept OSError: pass\n\
             try: socket.create_connection(('127.0.0.1', 9), 2)\nexcept ConnectionRefusedError: rights.append('network')\nexcept OSError: pass\n\
             status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n\
             rights += [name for name in ('CapEff', 'CapPrm', 'CapBnd', 'CapAmb') if int(status[name], 16)]\n\
             rights += [name for name, wanted in (('NoNewPrivs', '1'), ('Seccomp', '2')) if status[name].strip() != wanted]\n\
             rights += [t for t in (os.readlink(f'/proc/self/fd/{{n}}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{{n}}'))\n  \
             if t.startswith('/') and not t.startswith(('/dev/null', '/proc/'))]\nrights"
        );
        match session.value(&code).await.as_str() {
            "[]" => Err("it has none".to_owned()),
            _ => Ok(()),
        }
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn processes_with(mark: &str) -> Vec<i32> {
    let is_marked = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
    };
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let all = fs::read_dir("/proc").expect("there is one").flatten();
        let found: Vec<i32> =
            all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_marked).collect();
        if !found.is_empty() || std::time::Instant::now() > deadline {
            return found;
        }
    }
}

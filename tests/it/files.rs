//! Files of a session's workspace: what is done is on disk and seen by the session, and nothing leads out of it.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use pylair_files::{Content, DEFAULT_PAGE_BYTES, Entry, ListOptions, Listing, MAX_WRITE_BYTES, Page, Workspace};
use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use serde_json::{Value, json};

use crate::{
    sealed::open_sealed,
    support::{Client, Core, Home, TestSession, on_newest_python, skip, text_of},
};

/// A workspace that is only a directory; sessions are tested where they matter.
struct Directory {
    home: Home,
    workspace: Workspace,
}

impl Directory {
    fn new() -> Self {
        let home = Home::new();
        let path = home.work().join("space");
        fs::create_dir(&path).expect("the home is writable");
        fs::write(home.work().join("secret"), "secret").expect("the home is writable");
        Self { home, workspace: Workspace::open(&path) }
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.workspace.path.join(name)
    }

    fn secret(&self) -> String {
        fs::read_to_string(self.home.work().join("secret")).expect("it is still there")
    }

    fn read(&self, path: &str) -> Result<Page, String> {
        run(self.workspace.read(path, 0, DEFAULT_PAGE_BYTES)).map_err(|error| error.kind().to_owned())
    }

    fn write(&self, path: &str, content: impl Into<Vec<u8>>) -> Result<bool, String> {
        run(self.workspace.write(path, content.into()))
            .map(|written| written.created)
            .map_err(|error| error.kind().to_owned())
    }

    fn delete(&self, path: &str) -> Result<String, String> {
        run(self.workspace.delete(path))
            .map(|deleted| deleted.deleted.to_owned())
            .map_err(|error| error.kind().to_owned())
    }

    fn list(&self, path: &str, depth: usize) -> Result<Listing, String> {
        run(self.workspace.list(path, ListOptions { depth })).map_err(|error| error.kind().to_owned())
    }

    fn names(&self, path: &str, depth: usize) -> Vec<String> {
        let listing = self.list(path, depth).expect("it can be listed");
        listing.entries.iter().map(|entry| entry.path.clone()).collect()
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async { tokio::time::timeout(crate::support::PATIENCE, work).await.expect("nothing blocks") })
}

fn text(page: &Page) -> &str {
    match &page.content {
        Content::Text(text) => text,
        other => panic!("no text: {other:?}"),
    }
}

fn error<T: std::fmt::Debug>(kind: &str) -> Result<T, String> {
    Err(kind.to_owned())
}

/// What works in every session, whatever its profile.
async fn files_work(core: &Core, session: &TestSession) {
    let workspace = session.session.workspace();
    let written = workspace.write("scripts/sub/a.py", b"print('hello')\n".to_vec()).await.expect("it is written");
    assert_eq!((written.path.as_str(), written.bytes, written.created), ("scripts/sub/a.py", 15, true));
    assert_eq!(session.value("open('scripts/sub/a.py').read()").await, r#""print('hello')\n""#);
    session.value("import os\nos.chmod('scripts/sub/a.py', 0o751)").await;
    assert!(!workspace.write("scripts/sub/a.py", b"x = 1\n".to_vec()).await.expect("it is replaced").created);
    // The session owns what was written for it: it can change and remove it.
    let code = "oct(os.stat('scripts/sub/a.py').st_mode & 0o777), os.stat('scripts/sub/a.py').st_uid == os.getuid()";
    assert_eq!(session.value(code).await, "('0o751', True)");
    session.value("open('scripts/sub/a.py', 'a').write('y = 2\\n')\nopen('scripts/sub/b.py', 'w').close()").await;
    let page = workspace.read("scripts/sub/a.py", 0, DEFAULT_PAGE_BYTES).await.expect("it is read");
    assert_eq!((text(&page), page.bytes, page.next_offset), ("x = 1\ny = 2\n", 12, None));
    // By the path the session knows it by.
    let cwd = session.value("os.getcwd()").await;
    let absolute = format!("{}/scripts/sub/a.py", cwd.trim_matches('\''));
    assert_eq!(text(&workspace.read(&absolute, 0, 6).await.expect("it is read")), "x = 1\n");
    let listing = workspace.list("scripts", ListOptions::default()).await.expect("it is listed");
    let names: Vec<_> = listing.entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(names, ["scripts/sub", "scripts/sub/a.py", "scripts/sub/b.py"]);
    // A new worker sees the same files.
    core.daemon.sessions.find(&core.caller, &session.session.info.name).expect("it is open");
    session.session.restart(pylair_core::session::RestartMode::Restart).await.expect("it restarts");
    assert_eq!(session.value("import os\nos.remove('scripts/sub/b.py')\nos.listdir('scripts/sub')").await, "['a.py']");
    assert_eq!(workspace.delete("scripts/sub").await.expect_err("it is not empty").kind(), "not_empty");
    assert_eq!(workspace.delete("scripts/sub/a.py").await.expect("it is deleted").deleted, "file");
    assert_eq!(workspace.delete("scripts/sub").await.expect("it is deleted").deleted, "directory");
    assert_eq!(session.value("os.path.exists('scripts/sub')").await, "False");
    // Symlinks that code makes lead nowhere else.
    session.value("os.symlink('/etc', 'out'); os.symlink('/etc/passwd', 'passwd')").await;
    for path in ["out/passwd", "passwd", "../secret", "/etc/passwd"] {
        let refused = workspace.read(path, 0, 100).await.expect_err("it leads out");
        assert_eq!(refused.kind(), "outside_workspace", "{path}: {refused}");
        let refused = workspace.write(path, b"planted".to_vec()).await.expect_err("it leads out");
        assert_eq!(refused.kind(), "outside_workspace", "{path}: {refused}");
    }
    assert_eq!(workspace.delete("out").await.expect("the link itself").deleted, "symlink");
}

#[test]
fn what_is_written_is_the_sessions_and_the_other_way_round() {
    on_newest_python(async |core| files_work(core, &core.session().await).await);
}

#[test]
fn a_sealed_session_works_in_a_directory_of_its_own() {
    let test = "a_sealed_session_works_in_a_directory_of_its_own";
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, test).await else { return };
        files_work(core, &session).await;
        let workspace = session.session.workspace().clone();
        assert_eq!(session.value("import os\nos.getcwd(), sorted(os.listdir())").await, {
            "('/workspace', ['outputs', 'passwd', 'scripts', 'uploads'])"
        });
        assert_eq!(session.session.status().cwd, "/workspace");
        assert_eq!(workspace.path.parent(), Some(&*core.home.places().workspaces()));
        // Under root somebody else owns it, so that another session cannot even by a hole in its walls.
        let other = open_sealed(core, test).await.expect("the first one opened");
        let owner = |path: &Path| fs::metadata(path).expect("it is there").uid();
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(owner(&workspace.path) != owner(&other.session.workspace().path), is_root);
        assert_eq!(fs::metadata(&workspace.path).expect("it is there").mode() & 0o777, 0o700);
        assert_eq!(other.value("import os\nsorted(os.listdir())").await, "['outputs', 'scripts', 'uploads']");
        // The host's path of it is nowhere inside.
        let code = format!("os.path.exists({:?})", workspace.path.display().to_string());
        assert_eq!(other.value(&code).await, "False");
        // Also what its owner cannot search any more is removed.
        session.value("import os\nos.makedirs('a/b/c'); os.chmod('a/b', 0); os.mkfifo('pipe')").await;
        core.close_session(&session).await;
        assert!(!workspace.path.exists());
        let gone = workspace.read("passwd", 0, 100).await.expect_err("it is gone");
        assert_eq!(gone.kind(), "workspace_gone");
        let others = other.session.workspace().path.clone();
        core.close_session(&other).await;
        assert!(!others.exists() && core.home.places().workspaces().exists());
    });
}

#[test]
fn a_branch_shares_the_directory_and_the_last_one_removes_it() {
    let test = "a_branch_shares_the_directory_and_the_last_one_removes_it";
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, test).await else { return };
        let name = session.session.info.name.clone();
        session.value("open('outputs/a', 'w').write('from the original')").await;
        core.wait_for_checkpoint(&session, 1).await;
        let branch = core.daemon.sessions.branch(&core.caller, &name, None, None).await.expect("it branches");
        let branch = TestSession { session: branch };
        let workspace = branch.session.workspace().clone();
        core.close_session(&session).await;
        assert_eq!(branch.value("open('outputs/a').read()").await, "'from the original'");
        assert!(workspace.write("outputs/a", b"after".to_vec()).await.is_ok_and(|written| !written.created));
        core.close_session(&branch).await;
        assert!(!workspace.path.exists());
    });
}

#[test]
fn a_kept_session_finds_its_files_again() {
    let test = "a_kept_session_finds_its_files_again";
    on_newest_python(async |core| {
        let Some(probe) = open_sealed(core, test).await else { return };
        core.close_session(&probe).await;
        let (name, value) = core.home.marker();
        let options = pylair_core::session::OpenOptions {
            name: Some("kept".to_owned()),
            sandbox: Some("sealed".into()),
            env: [(name.to_owned(), value.to_owned())].into(),
            keep: true,
            ..Default::default()
        };
        let session = core.open_session(options).await.expect("the first one opened");
        let path = session.session.workspace().path.clone();
        session.session.workspace().write("outputs/a", b"kept".to_vec()).await.expect("it is written");
        core.close_session(&session).await;
        assert!(path.join("outputs/a").exists());
        let session = core.daemon.sessions.reach(&core.caller, "kept").await.expect("it comes back");
        let session = TestSession { session };
        assert_eq!(session.session.workspace().path, path);
        assert_eq!(session.value("open('outputs/a', 'a').write('!')\nopen('outputs/a').read()").await, "'kept!'");
        core.daemon.sessions.close(&core.caller, "kept", true).await.expect("it is forgotten");
        assert!(!path.exists());
    });
}

#[test]
fn a_session_that_does_not_open_leaves_no_directory() {
    let test = "a_session_that_does_not_open_leaves_no_directory";
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, test).await else { return };
        let options = pylair_core::session::OpenOptions {
            // Of a kind of its own, for which no worker is made ahead.
            sandbox: Some(pylair_sandbox::Wish::from_json(json!({"profile": "sealed", "disk_mb": 99})).unwrap()),
            startup: Some("1 / 0".to_owned()),
            ..Default::default()
        };
        let failed = core.open_session(options).await.expect_err("its startup code raises");
        assert_eq!(failed.kind(), "startup_failed");
        core.close_session(&session).await;
        let left = || fs::read_dir(core.home.places().workspaces()).expect("it is there").count();
        let removed = async {
            // Those of the workers that wait for the next session stay.
            while left() > 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(crate::support::PATIENCE, removed).await.expect("it is removed");
    });
}

#[test]
fn no_path_leads_out() {
    let directory = Directory::new();
    fs::create_dir_all(directory.path("in/deep")).unwrap();
    symlink("../secret", directory.path("up")).unwrap();
    symlink("..", directory.path("above")).unwrap();
    symlink(directory.home.work().join("secret"), directory.path("absolute")).unwrap();
    symlink("loop", directory.path("loop")).unwrap();
    symlink("/proc/self/root", directory.path("root")).unwrap();
    symlink("/proc/self/cwd", directory.path("in/cwd")).unwrap();
    for path in ["../secret", "in/../../secret", "/etc/passwd", "//etc/passwd", "up", "above/secret", "absolute"]
        .into_iter()
        .chain(["loop", "root/etc/passwd", "in/cwd/Cargo.toml", "in/deep/../../../secret"])
    {
        assert_eq!(directory.read(path).map(drop), error("outside_workspace"), "reading {path}");
        assert_eq!(directory.write(path, "planted"), error("outside_workspace"), "writing {path}");
    }
    for path in ["above/secret", "../secret", "root/etc/passwd"] {
        assert_eq!(directory.delete(path), error("outside_workspace"), "deleting {path}");
    }
    for path in ["above", "..", "/", "root", "in/cwd"] {
        assert_eq!(directory.list(path, 3).map(drop), error("outside_workspace"), "listing {path}");
    }
    for path in ["", ".", "in/..", "/."] {
        assert!(directory.delete(path).is_err(), "deleting {path:?}");
    }
    for path in ["", ".", "in", "in/", "new/"] {
        assert_eq!(directory.write(path, "x"), error("is_a_directory"), "writing {path:?}");
    }
    assert_eq!(directory.write("a\0b", "x"), error("bad_argument"));
    assert_eq!(directory.write(&"n".repeat(256), "x"), error("bad_argument"));
    assert_eq!(directory.write("in/deep/../up.txt", "x"), Ok(true));
    assert_eq!(directory.delete("up"), Ok("symlink".to_owned()));
    assert_eq!(directory.secret(), "secret");
    assert!(!directory.path("new").exists(), "a refused write leaves no directory");
    // Links of the kernel's own, reached without any absolute symlink.
    let processes = Workspace::open(Path::new("/proc/self"));
    for path in ["root/etc/passwd", "cwd/Cargo.toml", "fd/0", "exe"] {
        let refused = run(processes.read(path, 0, 100)).expect_err("magic links are not followed");
        assert_eq!(refused.kind(), "outside_workspace", "{path}: {refused}");
    }
    assert!(run(processes.read("status", 0, 100)).is_ok_and(|page| text(&page).starts_with("Name:")));
}

#[test]
fn symlinks_that_stay_inside_work() {
    let directory = Directory::new();
    fs::create_dir(directory.path("real")).unwrap();
    fs::write(directory.path("real/file"), "before").unwrap();
    symlink("real", directory.path("directory")).unwrap();
    symlink("real/file", directory.path("link")).unwrap();
    symlink("../link", directory.path("real/chain")).unwrap();
    symlink("made/later", directory.path("dangling")).unwrap();
    assert_eq!(directory.read("directory/file").as_ref().map(text), Ok("before"));
    assert_eq!(directory.write("real/chain", "after"), Ok(false));
    assert_eq!(fs::read_to_string(directory.path("real/file")).unwrap(), "after");
    assert!(directory.path("link").is_symlink(), "the link stays a link");
    assert_eq!(directory.write("dangling", "new"), Ok(true));
    assert_eq!(fs::read_to_string(directory.path("made/later")).unwrap(), "new");
    let entry = |name: &str| -> Entry {
        let listing = directory.list("", 3).unwrap();
        listing.entries.into_iter().find(|entry| entry.path == name).expect("it is listed")
    };
    assert_eq!((entry("directory").kind, entry("directory").target.as_deref()), ("symlink", Some("real")));
    assert!(!directory.names("", 3).contains(&"directory/file".to_owned()), "links to directories are not followed");
    assert_eq!(directory.delete("link"), Ok("symlink".to_owned()));
    assert!(directory.path("real/file").exists());
}

/// Somebody exchanges a directory and a symlink to the outside all the time.
#[test]
fn no_race_leads_out() {
    let directory = Directory::new();
    let outside = directory.home.work().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "secret").unwrap();
    fs::create_dir(directory.path("swap")).unwrap();
    symlink(&outside, directory.path("swapped")).unwrap();
    symlink("../../../outside", directory.path("swapped-relative")).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (one, others) =
                (directory.path("swap"), ["swapped", "swapped-relative"].map(|name| directory.path(name)));
            while !over.load(Ordering::Relaxed) {
                for other in &others {
                    for _ in 0..2 {
                        rustix::fs::renameat_with(CWD, &one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                    }
                }
            }
        });
        let mut refused = 0;
        for round in 0..1500 {
            refused += usize::from(directory.write("swap/file", format!("ours {round}")).is_err());
            refused += usize::from(directory.write(&format!("swap/new-{round}/file"), "ours").is_err());
            if let Ok(page) = directory.read("swap/file") {
                assert!(text(&page).starts_with("ours"), "{page:?}");
            }
            if let Ok(listing) = directory.list("swap", 3) {
                assert!(listing.entries.len() < 1000 && !format!("{listing:?}").contains("secret"));
            }
            let _either = directory.delete("swap/file");
            let _either = directory.delete(&format!("swap/new-{round}/file"));
            let _either = directory.delete(&format!("swap/new-{round}"));
        }
        over.store(true, Ordering::Relaxed);
        assert!(refused > 0, "the swapping was seen at least once");
    });
    let left: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["file"]);
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "secret");
}

#[test]
fn special_files_are_refused_without_waiting() {
    let directory = Directory::new();
    rustix::fs::mknodat(CWD, directory.path("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let listener = UnixListener::bind(directory.path("socket"));
    if listener.is_err() {
        skip("special_files_are_refused_without_waiting", "the path is too long for a socket");
    }
    for name in ["fifo", "socket"].into_iter().filter(|name| directory.path(name).exists()) {
        assert_eq!(directory.read(name).map(drop), error("special_file"), "{name}");
        assert_eq!(directory.write(name, "x"), error("special_file"), "{name}");
    }
    assert_eq!(directory.delete("fifo"), Ok("FIFO".to_owned()));
    let devices = Workspace::open(Path::new("/dev"));
    let refused = run(devices.read("zero", 0, 100)).expect_err("a device is no file");
    assert!(refused.to_string().contains("is a device"), "{refused}");
}

#[test]
fn a_hard_link_is_replaced_and_not_written_through() {
    let directory = Directory::new();
    fs::hard_link(directory.home.work().join("secret"), directory.path("hard")).unwrap();
    assert_eq!(directory.write("hard", "changed"), Ok(false));
    assert_eq!((directory.secret().as_str(), directory.read("hard").as_ref().map(text)), ("secret", Ok("changed")));
}

#[test]
fn a_file_is_replaced_as_a_whole_or_not_at_all() {
    let directory = Directory::new();
    assert_eq!(directory.write("file", "before"), Ok(true));
    fs::set_permissions(directory.path("file"), fs::Permissions::from_mode(0o640)).unwrap();
    let inode = fs::metadata(directory.path("file")).unwrap().ino();
    let limit = usize::try_from(MAX_WRITE_BYTES).unwrap();
    assert_eq!(directory.write("file", vec![b'x'; limit + 1]), error("too_large"));
    assert_eq!(directory.write("new/deep/file", vec![b'x'; limit + 1]), error("too_large"));
    assert_eq!(directory.read("file").as_ref().map(text), Ok("before"));
    assert_eq!(directory.names("", 5), ["file"], "neither a temporary file nor a directory is left");
    assert_eq!(fs::read_dir(&directory.workspace.path).unwrap().count(), 1);
    assert_eq!(directory.write("file", "after"), Ok(false));
    let metadata = fs::metadata(directory.path("file")).unwrap();
    assert_ne!(metadata.ino(), inode, "a reader of the old file still has all of it");
    assert_eq!(metadata.mode() & 0o777, 0o640);
    assert_eq!(directory.write("file/below", "x"), error("not_a_directory"));
    assert_eq!(directory.delete("nothing"), error("not_found"));
}

#[test]
fn text_is_read_in_pages_that_end_between_characters() {
    let directory = Directory::new();
    let whole = "äöü€😀\n".repeat(500);
    directory.write("text", whole.as_str()).unwrap();
    let (mut read, mut next, mut pages) = (String::new(), Some(0), 0);
    while let Some(offset) = next {
        let page = run(directory.workspace.read("text", offset, 101)).unwrap();
        assert_eq!((page.offset, page.bytes, page.kind), (offset, whole.len() as u64, "text"));
        read.push_str(text(&page));
        (next, pages) = (page.next_offset, pages + 1);
    }
    assert!(read == whole && pages > 60, "{pages} pages");
    let inside = run(directory.workspace.read("text", 1, 4)).unwrap();
    assert_eq!((inside.offset, text(&inside)), (2, "ö"), "the rest of a cut character is skipped, and it is said");
    let past = run(directory.workspace.read("text", 1 << 40, 4)).expect_err("there is nothing");
    assert_eq!(past.kind(), "bad_argument");
    directory.write("empty", "").unwrap();
    assert_eq!(directory.read("empty").as_ref().map(text), Ok(""));
}

#[test]
fn bytes_and_images_are_told_from_text() {
    let directory = Directory::new();
    let png = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec(), vec![0; 100], b"IEND\xaeB`\x82".to_vec()].concat();
    directory.write("image.png", png.clone()).unwrap();
    directory.write("cut.png", &png[..50]).unwrap();
    directory.write("latin.txt", b"caf\xe9".to_vec()).unwrap();
    directory.write("table.db", b"SQLite format 3\0rest".to_vec()).unwrap();
    assert_eq!(directory.read("image.png").unwrap().content, Content::Image { mime: "image/png", bytes: png.clone() });
    let cut = directory.read("cut.png").unwrap();
    assert_eq!((cut.kind, cut.content), ("PNG image", Content::Bytes(png[..50].to_vec())));
    assert_eq!(directory.read("latin.txt").unwrap().content, Content::Bytes(b"caf\xe9".to_vec()));
    assert_eq!(directory.read("table.db").unwrap().kind, "SQLite database");
}

#[test]
fn listings_leave_out_what_rules_name_and_say_so() {
    let directory = Directory::new();
    for path in ["src/a.py", "src/b.log", "node_modules/x/index.js", "build/out.o", "src/__pycache__/a.pyc", "keep.log"]
    {
        directory.write(path, "x").unwrap();
    }
    directory.write(".gitignore", "*.log\n!keep.log\n/build/\n").unwrap();
    let listing = directory.list("", 3).unwrap();
    let names: Vec<_> = listing.entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(names, [".gitignore", "keep.log", "src", "src/a.py"]);
    assert_eq!(listing.ignored, 4);
    assert!(listing.notes.iter().any(|note| note.contains("4 were left out by ignore rules")), "{listing:?}");
    assert_eq!(directory.names("", 1), [".gitignore", "keep.log", "src"]);
    // Named itself, it is listed.
    assert_eq!(directory.names("node_modules", 3), ["node_modules/x", "node_modules/x/index.js"]);
    assert_eq!(directory.names("node_modules/x", 3), ["node_modules/x/index.js"]);
    assert_eq!(directory.names("build", 3), ["build/out.o"]);
    assert_eq!(directory.names("src/__pycache__", 3), ["src/__pycache__/a.pyc"]);
    assert_eq!(directory.names("src/a.py", 3), ["src/a.py"]);
    // The rules of a parent hold for what is listed below it.
    assert_eq!(directory.names("src", 3), ["src/a.py"]);
    assert_eq!(
        listing.tree().lines().take(5).collect::<Vec<_>>(),
        ["./", "  .gitignore  24", "  keep.log  1", "  src/", "    a.py  1"]
    );
}

#[test]
fn listings_are_bounded_and_names_cannot_pretend() {
    let directory = Directory::new();
    fs::create_dir(directory.path("many")).unwrap();
    for number in 0..10_000 {
        fs::File::create(directory.path(format!("many/{number:05}"))).unwrap();
    }
    let listing = directory.list("many", 1).unwrap();
    assert_eq!((listing.entries.len(), listing.entries[1999].path.as_str()), (2000, "many/01999"));
    assert!(listing.notes.iter().any(|note| note.starts_with("only 2000 entries are listed")), "{:?}", listing.notes);
    fs::create_dir_all(directory.path(format!("deep/{}", "d/".repeat(100)))).unwrap();
    let deep = directory.list("deep", usize::MAX).unwrap();
    assert_eq!(deep.entries.len(), 32);
    assert!(deep.notes.iter().any(|note| note.contains("depth 32 were not entered")), "{:?}", deep.notes);
    fs::create_dir(directory.path("names")).unwrap();
    fs::write(directory.path("names/line\nbreak"), "x").unwrap();
    fs::write(directory.path(Path::new("names").join(OsStr::from_bytes(b"\xff\xfe"))), "x").unwrap();
    let names = directory.list("names", 1).unwrap();
    assert_eq!(
        names.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(),
        ["names/line\nbreak", "names/\u{fffd}\u{fffd}"]
    );
    assert_eq!(names.tree().lines().nth(1), Some("  line\\nbreak  1"));
    assert!(names.notes[0].contains("1 names are not UTF-8"), "{:?}", names.notes);
    assert_eq!(directory.read("names/line\nbreak").as_ref().map(text), Ok("x"));
}

#[test]
fn a_workspace_that_is_gone_is_said_to_be() {
    let directory = Directory::new();
    fs::remove_dir(&directory.workspace.path).unwrap();
    assert_eq!(directory.read("file").map(drop), error("workspace_gone"));
    assert_eq!(directory.write("file", "x"), error("workspace_gone"));
    assert_eq!(directory.list("", 1).map(drop), error("workspace_gone"));
    fs::write(&directory.workspace.path, "a file now").unwrap();
    assert_eq!(directory.write("file", "x"), error("workspace_gone"));
}

#[test]
fn the_tools_read_and_write_in_the_default_session() {
    let home = Home::new();
    let mut client = Client::start(home.command(&["mcp", "--tools", "run,files"]));
    client.initialize();
    // Nothing is opened only to look.
    for (tool, arguments) in
        [("list_files", json!({})), ("read_file", json!({"path": "a.txt"})), ("delete_file", json!({"path": "a.txt"}))]
    {
        let failure = client.failure(tool, &arguments);
        assert_eq!(failure["kind"], "no_session", "{tool}: {failure}");
    }
    let written = client.data("write_file", &json!({"path": "data/a.txt", "content": "one\ntwo\n"}));
    let notes = ["this is a new session"];
    assert_eq!(written, json!({"session": "it-1", "path": "data/a.txt", "bytes": 8, "created": true, "notes": notes}));
    assert_eq!(client.execute("open('data/a.txt').read()")["result"], r"'one\ntwo\n'");
    let result = client.call("read_file", &json!({"path": "data/a.txt", "max_bytes": 4}));
    assert_eq!(result.get("structuredContent"), None);
    let blocks: Vec<_> = result["content"].as_array().unwrap().iter().map(|block| block["text"].clone()).collect();
    assert_eq!(blocks, ["one\n", "[data/a.txt: bytes: 8, from byte 0; next_offset: 4]"]);
    let bytes = client.data("write_file", &json!({"path": "b.bin", "content": "AP8=", "base64": true}));
    assert_eq!(bytes["bytes"], 2);
    assert_eq!(text_of(&client.call("read_file", &json!({"path": "b.bin"}))), "AP8=");
    let listed = client.data("list_files", &json!({"recursive": true}));
    let names: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|entry| entry["path"].clone()).collect();
    assert_eq!(names, ["b.bin", "data", "data/a.txt"]);
    assert_eq!(client.data("list_files", &json!({"tree": true}))["tree"], "./\n  b.bin  2\n  data/\n    a.txt  8\n");
    for (tool, arguments, kind) in [
        ("write_file", json!({"path": "c", "content": "A", "base64": true}), "bad_argument"),
        ("write_file", json!({"path": "../c", "content": "A"}), "outside_workspace"),
        ("read_file", json!({"path": "c"}), "not_found"),
        ("read_file", json!({"path": "data/a.txt", "max_bytes": 0}), "bad_argument"),
        ("delete_file", json!({"path": "data"}), "not_empty"),
        ("list_files", json!({"target": "nowhere"}), "unknown_session"),
    ] {
        let failure = client.failure(tool, &arguments);
        assert_eq!(failure["kind"], kind, "{tool} {arguments}: {failure}");
        assert!(failure["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{failure}");
    }
    assert_eq!(client.data("delete_file", &json!({"path": "b.bin"})), json!({"path": "b.bin", "deleted": "file"}));
    client.execute("open('a b.txt', 'w').write('text'); open('big', 'w').write('x' * 2_000_000)");
    let mut read = |uri: &str| {
        let id = client.request("resources/read", &json!({"uri": uri}));
        client.answer(id)
    };
    assert_eq!(read("pylair://file/it-1/a%20b.txt")["result"]["contents"][0]["text"], "text");
    let refused = read("pylair://file/it-1/big")["error"]["message"].clone();
    assert!(refused.as_str().is_some_and(|text| text.contains("GET /files/download/big?target=it-1")), "{refused}");
    let refused = read("pylair://file/it-1/..%2F..%2Fetc%2Fpasswd")["error"]["message"].clone();
    assert!(refused.as_str().is_some_and(|text| text.contains("leads out")), "{refused}");
}

#[test]
fn files_are_not_served_on_stdio_unless_asked_for() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let id = client.begin("list_files", &json!({}));
    assert_eq!(client.answer(id)["error"]["code"], -32602);
}

fn json_of(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {body}"))
}

#[test]
fn uploads_and_downloads_go_to_the_workspace() {
    let home = Home::new();
    let server = home.serve();
    let open = json!({"name": "lab", "sandbox": "open", "from": {"cwd": home.work()}}).to_string();
    assert_eq!(server.request("POST", "/api/sessions", open).send().status, 200);
    let post = |query: &str, body: &[u8]| server.request("POST", &format!("/files/upload?target=lab{query}"), body);
    let answer = post("&path=data/one.txt", b"0123456789").send();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        json_of(&answer.body),
        json!({"session": "lab", "files": [
        {"path": "data/one.txt", "bytes": 10, "created": true}]})
    );
    assert_eq!(fs::read_to_string(home.work().join("data/one.txt")).unwrap(), "0123456789");
    let unnamed = json_of(&post("", b"x").send().body)["files"][0]["path"].clone();
    assert!(unnamed.as_str().is_some_and(|path| path.starts_with("uploads/upload-")), "{unnamed}");
    let form = b"--B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"../a.txt\"\r\n\r\nA\r\n\
        --B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"\"\r\n\r\n\r\n\
        --B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"b.html\"\r\n\r\n<script>\r\n--B--\r\n";
    let as_form =
        |query: &str, body: &[u8]| post(query, body).header("Content-Type", "multipart/form-data; boundary=B");
    let answer = as_form("", form).send();
    assert_eq!(
        json_of(&answer.body)["files"],
        json!([
        {"path": "uploads/a.txt", "bytes": 1, "created": true},
        {"path": "uploads/b.html", "bytes": 8, "created": true}])
    );
    // All or nothing.
    let cut = as_form("&path=cut", &form[..form.len() - 8]).send();
    assert_eq!((cut.status, home.work().join("cut").exists()), (400, false), "{cut:?}");
    let large = post("&path=large", b"").header("Content-Length", &(257_u64 << 20).to_string()).send();
    assert_eq!((large.status, &json_of(&large.body)["kind"]), (413, &json!("too_large")), "{large:?}");

    let get = |path: &str| server.request("GET", &format!("/files/download/{path}?target=lab"), "");
    let page = get("uploads/b.html").send();
    assert_eq!((page.status, page.body.as_str()), (200, "<script>"));
    for (name, value) in [
        ("content-length", "8"),
        ("content-type", "application/octet-stream"),
        ("content-disposition", "attachment; filename=\"b.html\"; filename*=UTF-8''b.html"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox; default-src 'none'; frame-ancestors 'none'; form-action 'none'"),
    ] {
        assert_eq!(page.header(name), Some(value), "{page:?}");
    }
    let part = get("data/one.txt").header("Range", "bytes=2-4").send();
    assert_eq!((part.status, part.body.as_str(), part.header("content-range")), (206, "234", Some("bytes 2-4/10")));
    assert_eq!(get("data/one.txt").header("Range", "bytes=10-").send().status, 416);
    for (request, status) in [
        (get("data/one.txt").without("Authorization"), 401),
        (post("", b"x").without("Authorization"), 401),
        (post("", b"x").header("Origin", "http://evil.example"), 403),
        (get("../../etc/passwd"), 403),
        (get("%2Fetc%2Fpasswd"), 403),
        (get("nothing"), 404),
        (get("data"), 422),
        (server.request("GET", "/files/download/x?target=nowhere", ""), 404),
        // The default session is not opened only to look.
        (server.request("GET", "/files/download/x", ""), 404),
        (as_form("", b"no form at all"), 400),
    ] {
        let response = request.send();
        assert_eq!(response.status, status, "{response:?}");
    }
    assert_eq!(server.request("GET", "/api/sessions", "").send().body.matches("\"handle\"").count(), 1);
}

#[test]
fn the_fields_of_a_form_say_where_its_files_go() {
    let home = Home::new();
    let server = home.serve();
    let open = json!({"name": "lab", "sandbox": "open", "from": {"cwd": home.work()}}).to_string();
    assert_eq!(server.request("POST", "/api/sessions", open).send().status, 200);
    let field =
        |name: &str, value: &str| format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    let file = "--B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a.txt\"\r\n\r\nA\r\n";
    let send = |query: &str, parts: &[&str]| {
        let body = format!("{}--B--\r\n", parts.concat());
        let request = server.request("POST", &format!("/files/upload{query}"), body);
        request.header("Content-Type", "multipart/form-data; boundary=B").send()
    };
    let (target, path) = (field("target", "lab"), field("path", "data/in"));
    let answer = send("", &[&target, &path, file]);
    let written = json!({"session": "lab", "files": [{"path": "data/in/a.txt", "bytes": 1, "created": true}]});
    assert_eq!((answer.status, json_of(&answer.body)), (200, written));
    assert_eq!(send("?target=lab", &[&target, &field("path", ""), file]).status, 200, "the same twice, and nothing");
    for (query, parts, part) in [
        ("", vec![file, &target], "the field `target` comes after a file"),
        ("?target=lab", vec![file, &path], "the field `path` comes after a file"),
        ("?target=lab", vec![&field("sesion", "lab"), file], "there is no field `sesion`"),
        ("?target=other", vec![&target, file], "`target` is said twice"),
        ("", vec![&field("target", &"x".repeat(10_000)), file], "over the limit of 8192 bytes"),
        ("", vec![&target], "the form has no file"),
    ] {
        let refused = send(query, &parts);
        assert_eq!(refused.status, 400, "{refused:?}");
        assert!(refused.body.contains(part), "{refused:?}");
    }
    assert_eq!(send("", &[&field("target", "nowhere"), file]).status, 404);
    assert!(home.work().join("data/in/a.txt").exists());
}

#[test]
fn an_upload_without_a_target_reaches_the_session_that_the_tokens_agent_works_in() {
    let home = Home::new();
    let server = home.serve();
    let visitor = |name: &str| crate::doors::Visitor::new(&home, &server, name, "run", "alice");
    let (agent, stranger) = (visitor("agent"), visitor("stranger"));
    let upload = |who: &crate::doors::Visitor, path: &str| who.upload(&format!("/files/upload?path={path}"), "data");
    // There is no agent yet, and an upload makes none.
    let early = upload(&agent, "early.txt");
    if early.status == 200 {
        assert_eq!(early.json()["session"], "main", "{early:?}");
    }
    let Some(worked) = agent.session_of("x = 1") else { return };
    let uploaded = upload(&agent, "a.txt");
    assert_eq!((uploaded.status, &uploaded.json()["session"]), (200, &json!(worked)), "{uploaded:?}");
    let read = agent.call("execute", &json!({"code": "open('a.txt').read()", "output": "json"}));
    assert_eq!(read["result"], "'data'");
    let downloaded = agent.get("/files/download/a.txt").send();
    assert_eq!((downloaded.status, downloaded.body.as_str()), (200, "data"), "{downloaded:?}");
    // The same owner with another token works elsewhere.
    let other = upload(&stranger, "b.txt").json();
    assert_eq!(other["session"], "main", "{other}");
    agent.call("open_session", &json!({"name": "lab"}));
    agent.call("execute", &json!({"code": "1", "target": "lab"}));
    let refused = upload(&agent, "c.txt");
    assert_eq!((refused.status, refused.json()["kind"].as_str()), (409, Some("ambiguous_session")), "{refused:?}");
    let told = refused.json()["message"].as_str().expect("words").to_owned();
    assert!(told.contains(&worked) && told.contains("lab") && !told.contains("main"), "{told}");
    let documented = server.request("GET", "/openapi.json", "").send().json();
    for path in ["/files/upload", "/files/download/{path}"] {
        assert!(documented["paths"][path].is_object(), "{path}");
    }
}

#[test]
fn a_readonly_server_takes_no_upload() {
    let home = Home::new();
    let server = crate::support::Server::start(home.command(&["serve", "--port", "0", "--readonly"]), &home.places());
    let answer = server.request("POST", "/files/upload?path=x", "x").send();
    assert_eq!((answer.status, &json_of(&answer.body)["kind"]), (403, &json!("not_allowed")));
}

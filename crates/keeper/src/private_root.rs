//! The file system a confined session sees: what it may read, bound read-only below a private tmpfs, and its own `/tmp`.
//!
//! Runs in the keeper-to-be, in its new mount namespace, in two steps with the change of user between them: as root the sources may
//! lie below a home that only root may search, so they are opened first. The same list then makes the Landlock ruleset.

use super::nursery::View;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
    path_beneath_rules,
};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// What every Python needs of the system. Those that do not exist are left out, symlinks stay symlinks.
pub const SYSTEM: &[&str] = &[
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/opt",
    "/sbin",
    // How many processors there are, and which: OpenBLAS looks here.
    "/sys/devices/system",
    "/usr",
];

/// The harmless part of `/etc`. The rest holds what administrators forget to protect.
const ETC: &[&str] = &[
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/machine-info",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
];

const DEVICES: &[&str] = &["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];

/// Written and executed freely, out of one budget.
pub(super) const SCRATCH: &[&str] = &["/dev/shm", "/tmp"];

/// Where the new root is put together. Nothing is looked up by path below it any more, so it may hide a source.
const WORKBENCHES: &[&str] = &["/tmp", "/mnt", "/run", "/usr"];

/// Enough for as many small files as fit, but not for filling the kernel's memory with empty ones.
const INODES_PER_MB: u64 = 512;

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("path {}: it has to be absolute and something below /", path.display())]
    Unfit { path: PathBuf },
    #[error("open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("bind {}: {source}", path.display())]
    Bind { path: PathBuf, source: io::Error },
    #[error("let the session write {}: {source} (its file system has no mounts with other owners, which a daemon under root needs)", path.display())]
    Owners { path: PathBuf, source: io::Error },
    #[error("make {}: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("mount {what}: {source}")]
    Mount { what: &'static str, source: io::Error },
    #[error(
        "mount /proc: {source} (a container hides parts of /proc; with Docker, run it with --security-opt systempaths=unconfined)"
    )]
    Proc { source: io::Error },
    #[error("landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Writable,
    Device,
    ReadOnly,
}

impl Use {
    fn attributes(self) -> u64 {
        libc::MOUNT_ATTR_NOSUID
            | match self {
                Self::ReadOnly => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NODEV,
                Self::Writable => libc::MOUNT_ATTR_NODEV,
                Self::Device => libc::MOUNT_ATTR_NOEXEC,
            }
    }
}

enum Content {
    /// A tree that is mounted nowhere yet, with its flags and its owners set.
    Tree(OwnedFd),
    Directory(OwnedFd),
    File(OwnedFd),
    Symlink(PathBuf),
}

struct Source {
    path: PathBuf,
    content: Content,
    used: Use,
}

/// Everything that is going to be visible, opened, parents before children.
pub(super) struct Sources(Vec<Source>);

impl Sources {
    /// A path of `read_only` that does not exist, or that leads out of `within`, is left out. The workspace is seen under another name than its own, and so are views.
    pub fn open(
        (read_only, within): (&[PathBuf], &[PathBuf]),
        granted: Vec<Granted>,
        views: &[View],
        workspace: Option<&Path>,
    ) -> Result<Self, Error> {
        let mut sources: Vec<_> = SYSTEM.iter().chain(ETC).filter_map(|path| open_as_is(Path::new(path))).collect();
        for path in DEVICES {
            sources.extend(open_at(Path::new(path), Path::new(path), Use::Device).ok());
        }
        for path in read_only {
            match open_everywhere(path, within) {
                Ok(found) => sources.extend(found),
                Err(Error::Open { source, .. }) if is_missing(&source) => {}
                Err(error) => return Err(error),
            }
        }
        for granted in granted {
            sources.push(granted.open()?);
        }
        for View { directory, seen_as } in views {
            check_fit(seen_as)?;
            let content = content_of(open_without_symlinks(directory)?, directory)?;
            sources.push(Source { path: seen_as.components().collect(), content, used: Use::Writable });
        }
        if let Some(path) = workspace {
            sources.push(open_at(path, Path::new(super::nursery::WORKSPACE), Use::Writable)?);
        }
        // Children on top of their parents, so that a read-only directory can lie in a writable one; of two uses of one path the
        // writable comes first and stays.
        sources.sort_by(|a, b| (&a.path, a.used).cmp(&(&b.path, b.used)));
        sources.dedup_by(|later, earlier| later.path == earlier.path);
        Ok(Self(sources))
    }

    /// Makes the new root and moves into it. The sources are closed.
    pub fn build(self, tmp_mb: u32) -> Result<(), Error> {
        detach_from_host().map_err(|source| Error::Mount { what: "/", source })?;
        let workbench = WORKBENCHES.iter().find(|path| Path::new(path).is_dir()).unwrap_or(&"/tmp");
        let options = format!("size={tmp_mb}m,nr_inodes={},mode=755", u64::from(tmp_mb) * INODES_PER_MB + 1024);
        mount(Some("tmpfs"), workbench, Some("tmpfs"), libc::MS_NOSUID | libc::MS_NODEV, Some(&options))
            .map_err(|source| Error::Mount { what: "tmpfs", source })?;
        let root = Root::open(workbench)?;

        for path in SCRATCH {
            let directory = root.make_directory(Path::new(path), Mode::from_raw_mode(0o1777))?;
            root.bind(&directory, Path::new(path), Use::Writable)?;
        }
        let mut bound: Vec<(PathBuf, Use)> = Vec::new();
        for Source { path, content, used } in self.0 {
            let covered =
                bound.iter().rev().find(|(parent, _)| path.starts_with(parent)).is_some_and(|(_, same)| *same == used);
            // A symlink counts by itself: what it points to may be bound later.
            if covered && root.has(&path) {
                continue;
            }
            match content {
                Content::Symlink(target) => {
                    root.make_symlink(&target, &path)?;
                    continue;
                }
                Content::Tree(tree) => root.attach(&tree, &path)?,
                Content::Directory(source) => {
                    root.make_directory(&path, Mode::from_raw_mode(0o755))?;
                    root.bind(&source, &path, used)?;
                }
                Content::File(source) => {
                    root.make_file(&path)?;
                    root.bind(&source, &path, used)?;
                }
            }
            bound.push((path, used));
        }
        for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
            root.make_symlink(Path::new(&format!("/proc/self/fd{target}")), &Path::new("/dev").join(name))?;
        }
        root.make_directory(Path::new("/proc"), Mode::from_raw_mode(0o755))?;
        mount(
            Some("proc"),
            &format!("{workbench}/proc"),
            Some("proc"),
            libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
            None,
        )
        .map_err(|source| Error::Proc { source })?;
        root.enter()
    }
}

/// The rules for what [`Sources::build`] made, or for the same without it, or `None` where the kernel has no Landlock.
pub fn landlock_ruleset(
    read_only: &[PathBuf],
    writable: &[PathBuf],
    scratch: &[&str],
    network: bool,
    proxy: Option<u16>,
) -> Result<Option<OwnedFd>, Error> {
    // The crate leaves out what the running kernel does not know.
    let abi = ABI::V9;
    let everything = AccessFs::from_all(abi);
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    let device: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut ruleset = Ruleset::default().handle_access(everything)?;
    if !network {
        ruleset = ruleset.handle_access(AccessNet::from_all(abi))?;
    }
    let proxy = proxy.map(|port| Ok::<_, landlock::RulesetError>(NetPort::new(port, AccessNet::ConnectTcp)));
    let ruleset = ruleset
        .scope(Scope::from_all(abi))?
        .create()?
        // Without it not even the path to somewhere can be listed.
        .add_rules(path_beneath_rules(["/"], AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(["/proc", "/dev"], reading))?
        .add_rules(path_beneath_rules(SYSTEM.iter().chain(ETC), reading | AccessFs::Execute))?
        .add_rules(path_beneath_rules(read_only, reading | AccessFs::Execute))?
        .add_rules(path_beneath_rules(DEVICES, device))?
        .add_rules(path_beneath_rules(scratch, everything))?
        .add_rules(path_beneath_rules(writable, everything))?
        .add_rules(proxy)?;
    Ok(ruleset.into())
}

/// Keeps what is mounted here from showing up anywhere else, and the other way round.
pub(super) fn detach_from_host() -> io::Result<()> {
    mount(None, "/", None, libc::MS_REC | libc::MS_PRIVATE, None)
}

/// A part of the system, or nothing when this system has no such thing.
fn open_as_is(path: &Path) -> Option<Source> {
    match std::fs::read_link(path) {
        // The files in /etc point anywhere, even to /run, so what they point to is bound in their place.
        Ok(target) if path.parent() == Some(Path::new("/")) => {
            Some(Source { path: path.to_owned(), content: Content::Symlink(target), used: Use::ReadOnly })
        }
        _ => open_at(path, path, Use::ReadOnly).ok(),
    }
}

/// Whether this path, which has no symlinks in it, may be shown to a session that sees no more than this besides the system.
pub fn may_be_shown(real: &Path, within: &[PathBuf]) -> bool {
    within.is_empty()
        || SYSTEM.iter().map(Path::new).chain(within.iter().map(|path| &**path)).any(|of| real.starts_with(of))
}

/// A path somebody asked for: visible where it really is, and under the name it was asked for by.
fn open_everywhere(path: &Path, within: &[PathBuf]) -> Result<Vec<Source>, Error> {
    check_fit(path)?;
    let real = path.canonicalize().map_err(|source| Error::Open { path: path.to_owned(), source })?;
    check_fit(&real)?;
    if !may_be_shown(&real, within) {
        return Ok(Vec::new());
    }
    // If there is a symlink in it now, somebody has put it there after it was looked at.
    let show = |name: &Path| {
        let content = content_of(open_without_symlinks(&real)?, &real)?;
        Ok::<_, Error>(Source { path: name.components().collect(), content, used: Use::ReadOnly })
    };
    let mut sources = vec![show(&real)?];
    let mut name = path.to_owned();
    // The links on the way too: where the first of them is visible in its directory, it points to the next.
    for _ in 0..MAX_LINKS {
        if name == real {
            break;
        }
        sources.push(show(&name)?);
        let Ok(target) = std::fs::read_link(&name) else { break };
        let Some(next) = name.parent().map(|parent| without_dots(&parent.join(target))) else { break };
        name = next;
    }
    Ok(sources)
}

/// The path without `.` and `..`, as far as that can be said by its text.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

fn check_fit(path: &Path) -> Result<(), Error> {
    let is_fit = path.is_absolute()
        && path.parent().is_some()
        && !path.starts_with("/proc")
        && path.components().all(|part| part != Component::ParentDir);
    if is_fit { Ok(()) } else { Err(Error::Unfit { path: path.to_owned() }) }
}

/// A path that somebody gave the session, without symlinks when it was looked at: if there is one now, somebody put it there.
pub(super) struct Granted {
    path: PathBuf,
    used: Use,
    tree: Option<OwnedFd>,
}

impl Granted {
    /// An error when there is no such thing.
    pub fn new(path: &Path, writable: bool) -> Result<Self, Error> {
        check_fit(path)?;
        open_without_symlinks(path)?;
        Ok(Self { path: path.to_owned(), used: if writable { Use::Writable } else { Use::ReadOnly }, tree: None })
    }

    /// Opened by root, outside: what belongs to the owner of the path is, inside, the session's. `owners` makes the user namespace that
    /// says so of an owner's user and group.
    pub fn give_to_session(
        mut self,
        session: u32,
        owners: impl FnOnce(u32, u32) -> io::Result<OwnedFd>,
    ) -> Result<Self, Error> {
        let source = open_without_symlinks(&self.path)?;
        if rustix::fs::fstat(&source).is_ok_and(|owner| owner.st_uid == session) {
            return Ok(self);
        }
        let given = || {
            let owner = rustix::fs::fstat(&source)?;
            let tree = clone_tree(source.as_fd())?;
            set_attributes(tree.as_fd(), self.used.attributes(), libc::AT_RECURSIVE)?;
            set_owners(tree.as_fd(), owners(owner.st_uid, owner.st_gid)?.as_fd())?;
            Ok(tree)
        };
        match given() {
            Ok(tree) => self.tree = Some(tree),
            // What everybody may read can be read as it is.
            Err(_) if self.used == Use::ReadOnly => {}
            Err(source) => return Err(Error::Owners { path: self.path, source }),
        }
        Ok(self)
    }

    pub fn descriptor(&self) -> Option<i32> {
        self.tree.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn open(self) -> Result<Source, Error> {
        let content = match self.tree {
            Some(tree) => Content::Tree(tree),
            None => content_of(open_without_symlinks(&self.path)?, &self.path)?,
        };
        Ok(Source { path: self.path, content, used: self.used })
    }
}

fn open_without_symlinks(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .map_err(|error| Error::Open { path: path.to_owned(), source: error.into() })
}

fn open_at(source: &Path, path: &Path, used: Use) -> Result<Source, Error> {
    let failed = |error: rustix::io::Errno| Error::Open { path: source.to_owned(), source: error.into() };
    let fd = rustix::fs::open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    Ok(Source { path: path.components().collect(), content: content_of(fd, source)?, used })
}

fn content_of(fd: OwnedFd, path: &Path) -> Result<Content, Error> {
    Ok(if is_directory(&fd, path)? { Content::Directory(fd) } else { Content::File(fd) })
}

fn is_directory(fd: &OwnedFd, path: &Path) -> Result<bool, Error> {
    let stat = rustix::fs::fstat(fd).map_err(|error| Error::Open { path: path.to_owned(), source: error.into() })?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// The root to be. Paths are looked up as if it were the root already: a symlink in it must not lead to the old one.
struct Root(OwnedFd);

impl Root {
    fn open(path: &str) -> Result<Self, Error> {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map(Self)
            .map_err(|error| Error::Open { path: path.into(), source: error.into() })
    }

    fn find(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.0, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    }

    fn has(&self, path: &Path) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.0, path, flags, Mode::empty(), resolve).is_ok()
    }

    fn make_directory(&self, path: &Path, mode: Mode) -> Result<OwnedFd, Error> {
        let made = || {
            match self.find(path) {
                Err(rustix::io::Errno::NOENT) => {}
                found => return found,
            }
            let parent = self.make_parent(path)?;
            rustix::fs::mkdirat(&parent, name_of(path), mode)?;
            // The umask took some of it away.
            rustix::fs::chmodat(&parent, name_of(path), mode, AtFlags::empty())?;
            self.find(path)
        };
        made().map_err(|error| Error::Make { path: path.to_owned(), source: error.into() })
    }

    fn make_parent(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let parent = path.parent().unwrap_or(path);
        self.make_directory(parent, Mode::from_raw_mode(0o755)).map_err(|error| match error {
            Error::Make { source, .. } => rustix::io::Errno::from_io_error(&source).unwrap_or(rustix::io::Errno::IO),
            _ => rustix::io::Errno::IO,
        })
    }

    fn make_file(&self, path: &Path) -> Result<(), Error> {
        let made = || {
            if self.find(path).is_ok() {
                return Ok(());
            }
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(self.make_parent(path)?, name_of(path), flags, Mode::from_raw_mode(0o644)).map(drop)
        };
        made().map_err(|error| Error::Make { path: path.to_owned(), source: error.into() })
    }

    fn make_symlink(&self, target: &Path, path: &Path) -> Result<(), Error> {
        self.make_parent(path)
            .and_then(|parent| rustix::fs::symlinkat(target, parent, name_of(path)))
            .map_err(|error| Error::Make { path: path.to_owned(), source: error.into() })
    }

    /// Lets `source`, with all that is mounted below it, appear at a path that exists.
    fn bind(&self, source: &OwnedFd, path: &Path, used: Use) -> Result<(), Error> {
        let bound = || {
            let tree = clone_tree(source.as_fd())?;
            set_attributes(tree.as_fd(), used.attributes(), libc::AT_RECURSIVE)?;
            move_mount(tree.as_fd(), self.find(path)?.as_fd())
        };
        bound().map_err(|source| Error::Bind { path: path.to_owned(), source })
    }

    /// Lets a tree that has its flags already appear at a path that may not exist.
    fn attach(&self, tree: &OwnedFd, path: &Path) -> Result<(), Error> {
        if is_directory(tree, path)? {
            self.make_directory(path, Mode::from_raw_mode(0o755))?;
        } else {
            self.make_file(path)?;
        }
        let attached = || move_mount(tree.as_fd(), self.find(path)?.as_fd());
        attached().map_err(|source| Error::Bind { path: path.to_owned(), source })
    }

    fn enter(self) -> Result<(), Error> {
        let entered = || {
            rustix::process::fchdir(&self.0)?;
            // The old root ends up on top of the new one, from where it is taken off.
            rustix::process::pivot_root(".", ".")?;
            detach(".")?;
            rustix::process::chdir("/")?;
            // Only this mount: those on it have flags of their own.
            let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            set_attributes(root.as_fd(), libc::MOUNT_ATTR_RDONLY, 0)
        };
        entered().map_err(|source| Error::Mount { what: "the new root", source })
    }
}

fn is_missing(error: &io::Error) -> bool {
    // `sys.path` has entries in zip files, too.
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn name_of(path: &Path) -> &Path {
    path.file_name().map_or(path, Path::new)
}

fn c_string(text: &[u8]) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn mount(
    source: Option<&str>,
    target: &str,
    kind: Option<&str>,
    flags: libc::c_ulong,
    options: Option<&str>,
) -> io::Result<()> {
    let text = |text: Option<&str>| text.map(|text| c_string(text.as_bytes())).transpose();
    let (source, kind, options) = (text(source)?, text(kind)?, text(options)?);
    let target = c_string(target.as_bytes())?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: the strings live until the call returns.
    check(unsafe {
        libc::mount(pointer(&source), target.as_ptr(), pointer(&kind), flags, pointer(&options).cast()).into()
    })
    .map(drop)
}

fn detach(path: &str) -> io::Result<()> {
    let path = c_string(path.as_bytes())?;
    // SAFETY: the string lives until the call returns.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH).into() }).map(drop)
}

fn clone_tree(source: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags =
        libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as u32 | libc::AT_EMPTY_PATH as u32;
    // SAFETY: the descriptor that comes back is nobody else's.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_open_tree, source.as_raw_fd(), c"".as_ptr(), flags))?;
        Ok(OwnedFd::from_raw_fd(i32::try_from(fd).map_err(io::Error::other)?))
    }
}

fn set_attributes(tree: BorrowedFd<'_>, attributes: u64, flags: libc::c_int) -> io::Result<()> {
    change_mount(tree, &libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 }, flags)
}

/// Who files belong to is, through this tree, as the user namespace maps it.
fn set_owners(tree: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    let userns_fd = u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?;
    let change = libc::mount_attr { attr_set: libc::MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd };
    change_mount(tree, &change, libc::AT_RECURSIVE)
}

fn change_mount(tree: BorrowedFd<'_>, change: &libc::mount_attr, flags: libc::c_int) -> io::Result<()> {
    let flags = flags | libc::AT_EMPTY_PATH;
    // SAFETY: the structure is read during the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(change),
            size_of_val(change),
        )
    })
    .map(drop)
}

fn move_mount(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: no memory but the empty paths is involved.
    check(unsafe {
        let empty = c"".as_ptr();
        libc::syscall(libc::SYS_move_mount, tree.as_raw_fd(), empty, target.as_raw_fd(), empty, flags)
    })
    .map(drop)
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

//! What git knows of a project's past, read with nothing of the repository's own run or believed: whoever ran sandboxed tests there may
//! have written its configuration. Called by `explain`.
//!
//! Git reads the repository's objects by way of a directory of ours, which has the configuration: none.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

/// A diff that takes longer is done without.
const LIMIT: Duration = Duration::from_secs(2);
/// The file `.git` of a worktree, and `commondir`, hold a path.
const MAX_LINK_BYTES: u64 = 4096;
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Where git is found, and where it may have a directory of ours for a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Git {
    /// Directories with programs, as `PATH` has them.
    pub path: Option<OsString>,
    pub scratch: PathBuf,
}

impl Default for Git {
    fn default() -> Self {
        Self { path: None, scratch: "/tmp".into() }
    }
}

impl Git {
    /// What `git diff` says of a directory between two commits, or between one and the files as they are.
    pub(crate) async fn diff(&self, root: &Path, options: &[&str], commits: &[&str], files: &[&str]) -> Option<String> {
        let is_commit =
            |text: &&str| (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !commits.iter().all(is_commit) {
            return None;
        }
        let (from, git) = (root.to_owned(), self.clone());
        let mirror = tokio::task::spawn_blocking(move || Mirror::of(&from, git)).await.ok()??;
        let asked = async {
            if let [commit] = commits {
                mirror.ask(root, &["read-tree", commit]).await?;
            }
            let mut words = vec!["diff", "--no-ext-diff", "--no-textconv", "--relative"];
            words.extend(options);
            words.extend(commits);
            words.push("--");
            words.extend(files);
            mirror.ask(root, &words).await
        };
        tokio::time::timeout(LIMIT, asked).await.ok()?
    }
}

/// A git directory of ours over the objects of a repository. It goes when this does.
struct Mirror {
    git: Git,
    directory: PathBuf,
    objects: PathBuf,
    /// Where the repository's files are.
    top: PathBuf,
}

impl Mirror {
    /// None where there is no repository. Blocks.
    fn of(root: &Path, git: Git) -> Option<Self> {
        let (top, common) = common(root)?;
        let objects = common.join("objects").canonicalize().ok()?;
        let directory = git.scratch.join(format!("pylair-git-{}", pylair_os::random::try_digits(8).ok()?));
        let mirror = Self { git, directory, objects, top };
        mirror.make().ok()?;
        Some(mirror)
    }

    fn make(&self) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(&self.directory)?;
        fs::create_dir(self.directory.join("refs"))?;
        fs::write(self.directory.join("HEAD"), "ref: refs/heads/none\n")
    }

    async fn ask(&self, root: &Path, words: &[&str]) -> Option<String> {
        let mut command = tokio::process::Command::new("git");
        command
            .arg("-C")
            .arg(root)
            .args(["--no-optional-locks", "--literal-pathspecs", "-c", "core.quotePath=false"])
            .args(words)
            .env_clear()
            .envs(self.git.path.as_ref().map(|path| ("PATH", path)))
            .env("GIT_DIR", &self.directory)
            .env("GIT_OBJECT_DIRECTORY", &self.objects)
            .env("GIT_WORK_TREE", &self.top)
            .envs([
                ("GIT_CONFIG_NOSYSTEM", "1"),
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
                ("GIT_ATTR_NOSYSTEM", "1"),
                ("GIT_NO_LAZY_FETCH", "1"),
                ("GIT_NO_REPLACE_OBJECTS", "1"),
                ("LC_ALL", "C"),
            ])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let output = command.output().await.ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // A handful of small files.
        let _gone = fs::remove_dir_all(&self.directory);
    }
}

/// The top of the repository that a directory is in, and the directory with its objects and configuration. Blocks.
fn common(root: &Path) -> Option<(PathBuf, PathBuf)> {
    let (top, found) = root.ancestors().find_map(|top| Some((top, fs::symlink_metadata(top.join(".git")).ok()?)))?;
    let mut own = top.join(".git");
    if found.is_file() {
        own = top.join(link(&own)?.strip_prefix("gitdir: ")?);
    }
    let common = link(&own.join("commondir")).map_or_else(|| own.clone(), |common| own.join(common));
    Some((top.to_owned(), common))
}

/// The top of the repository that a directory is in, and its address without credentials, as the plugin reports it. Blocks.
pub fn repository(directory: &Path) -> Option<(PathBuf, Option<String>)> {
    let (top, common) = common(directory)?;
    let config = pylair_os::regular::read(&common.join("config"), MAX_CONFIG_BYTES).unwrap_or_default();
    Some((top, remote(&config)))
}

fn remote(config: &str) -> Option<String> {
    let mut is_origin = false;
    for line in config.lines().map(str::trim) {
        if line.starts_with('[') {
            is_origin = line.replace(' ', "") == "[remote\"origin\"]";
        } else if let Some((name, url)) = line.split_once('=').filter(|_| is_origin)
            && name.trim().eq_ignore_ascii_case("url")
        {
            let url = url.trim().trim_matches('"');
            let Some((scheme, rest)) = url.split_once("://") else { return Some(url.to_owned()) };
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            return Some(format!("{scheme}://{host}{path}")).filter(|url| !url.is_empty());
        }
    }
    None
}

/// The path that a small file holds.
fn link(path: &Path) -> Option<String> {
    pylair_os::regular::read(path, MAX_LINK_BYTES).ok().map(|text| text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(root: &Path, words: &[&str]) -> String {
        let said = std::process::Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b"])
            .args(words)
            .current_dir(root)
            .output()
            .unwrap();
        assert!(said.status.success(), "{words:?}: {said:?}");
        String::from_utf8(said.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn the_address_of_a_repository_has_no_credentials() {
        let config = "[core]\n\turl = x\n[remote \"origin\"]\n\turl = https://ann:secret@git.example/shop.git\n";
        assert_eq!(remote(config).as_deref(), Some("https://git.example/shop.git"));
        let ssh = "[remote \"other\"]\nurl = y\n[remote \"origin\"]\nfetch = z\nURL = git@git.example:shop.git\n";
        assert_eq!(remote(ssh).as_deref(), Some("git@git.example:shop.git"));
        assert_eq!(remote("[remote \"other\"]\nurl = y\n"), None);
    }

    #[tokio::test]
    async fn nothing_of_a_repository_is_run() {
        let base = std::env::temp_dir().join(format!("pylair-git-test-{}", std::process::id()));
        let root = base.join("repository/inner");
        fs::create_dir_all(&root).unwrap();
        git(&root, &["init", "-q", ".."]);
        fs::write(root.join("a.py"), "x = 1\n").unwrap();
        git(&root, &["add", "-A"]);
        git(&root, &["commit", "-qm", "one"]);
        let one = git(&root, &["rev-parse", "HEAD"]);
        fs::write(root.join("a.py"), "x = 1\ny = 2\n").unwrap();
        git(&root, &["commit", "-qam", "two"]);
        let two = git(&root, &["rev-parse", "HEAD"]);
        fs::write(root.join("a.py"), "x = 3\ny = 2\n").unwrap();
        let ran = base.join("ran");
        let evil = format!(
            "[filter \"e\"]\nclean = touch {0}; cat\nprocess = touch {0}\n[diff \"e\"]\ncommand = touch {0}\ntextconv = touch {0}\n\
             [core]\nfsmonitor = touch {0}\nworktree = /etc\n",
            ran.display()
        );
        let config = root.join("../.git/config");
        fs::write(&config, fs::read_to_string(&config).unwrap() + &evil).unwrap();
        fs::create_dir_all(root.join("../.git/info")).unwrap();
        fs::write(root.join("../.git/info/attributes"), "*.py filter=e diff=e\n").unwrap();
        fs::write(root.join(".gitattributes"), "*.py filter=e diff=e\n").unwrap();
        let git = Git { path: std::env::var_os("PATH"), scratch: std::env::temp_dir() };
        let names = git.diff(&root, &["--name-only", "-z"], &[&one, &two], &[]).await;
        assert_eq!(names.as_deref(), Some("a.py\0"));
        let dirty = git.diff(&root, &["--unified=0"], &[&two], &["a.py"]).await.unwrap();
        assert!(dirty.contains("-x = 1\n+x = 3"), "{dirty}");
        assert!(!ran.exists());
        assert_eq!(git.diff(&root, &[], &["--output=/etc/x"], &[]).await, None);
        assert_eq!(git.diff(Path::new("/proc"), &[], &[&one, &two], &[]).await, None);
        fs::remove_dir_all(base).unwrap();
    }
}

//! A PostgreSQL of the tests' own.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

/// On a Unix socket. It ends when this process does, however that ends.
pub struct Cluster {
    directory: PathBuf,
    /// Its end of file is what the cluster's shell waits for.
    _keeper: Child,
}

/// Runs as `nobody` where the tests run as root, which PostgreSQL refuses.
const CLUSTER: &str = r#"
set -e
initdb -D "$1/data" -U pylair -A trust -N >"$1/initdb.log" 2>&1
postgres -D "$1/data" -k "$1" -c listen_addresses= -c max_connections=200 >"$1/postgres.log" 2>&1 &
server=$!
until psql -q -h "$1" -U pylair -d postgres -c 'SELECT 1' >/dev/null 2>&1; do kill -0 $server || exit 1; sleep 0.05; done
echo ready
cat >/dev/null
kill -QUIT $server
wait $server || true
rm -rf "$1"
"#;

/// The one that all tests share, each in a database of its own; or why there is none.
pub static POSTGRES: LazyLock<Result<Cluster, String>> = LazyLock::new(Cluster::start);

impl Cluster {
    fn start() -> Result<Self, String> {
        let mut path = std::env::var("PATH").unwrap_or_default();
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        for version in versions {
            path = format!("{path}:{}", version.path().join("bin").display());
        }
        // A socket's path has to be short.
        let directory = PathBuf::from(format!("/tmp/pylair-pg-{}", std::process::id()));
        std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let is_root = rustix::process::getuid().is_root();
        let mut command = if is_root { Command::new("setpriv") } else { Command::new("sh") };
        if is_root {
            let owner = Command::new("chown").arg("nobody").arg(&directory).status();
            owner.ok().filter(std::process::ExitStatus::success).ok_or("there is no user `nobody`")?;
            command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "sh"]);
        }
        command
            .args(["-c", CLUSTER, "sh"])
            .arg(&directory)
            .env("PATH", path)
            .env("LC_ALL", "C")
            .current_dir(&directory);
        let mut keeper =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .map_err(|error| error.to_string())?;
        if line.trim() != "ready" {
            let said = std::fs::read_to_string(directory.join("initdb.log")).unwrap_or_default();
            return Err(format!("PostgreSQL does not start: {said}"));
        }
        Ok(Self { directory, _keeper: keeper })
    }

    /// The address of a new database.
    pub async fn database(&self) -> String {
        use sqlx::Connection;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("db_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut connection = sqlx::PgConnection::connect(&self.address("postgres")).await.expect("it runs");
        let sql = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(sql).execute(&mut connection).await.expect("it can be made");
        self.address(&name)
    }

    pub fn address(&self, database: &str) -> String {
        format!("postgres://pylair@localhost/{database}?host={}", self.directory.display())
    }
}

//! `pylair failures import`: reads files here and sends their records to the daemon, as a run would.

use std::{
    io::{BufReader, Read},
    path::Path,
};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::super::{Exit, Failure, Surroundings, client::Client, complain, say};
use crate::cli::failures::ImportArgs;
use pylair_failures::{
    import::{self, Imported, Origin},
    record::{Project, Taken},
};
use pylair_os::regular;
use pylair_text::{escape::url_value, hash, plain::with_causes};

/// Records are sent in batches of about this size.
const BATCH_BYTES: usize = 1 << 20;
/// Larger files are not read.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// One file that cannot be taken does not keep the others from being.
pub(super) fn import(args: &ImportArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let cwd = surroundings.cwd.clone().unwrap_or_default();
    let root = args.root.as_ref().map_or_else(|| cwd.clone(), |root| cwd.join(root));
    let root = root.canonicalize().unwrap_or(root);
    let directory = root.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = args.project.clone().or(directory).unwrap_or_else(|| "imported".to_owned());
    let project = Project { root: root.display().to_string(), name, remote: None };
    let mut client = Client::start(surroundings)?;
    let mut exit = Exit::Ok;
    let mut told = Vec::new();
    for path in &args.files {
        match import_file(path, &project, &mut client) {
            Ok((run, imported)) if args.json.json => {
                told.push(json!({"file": path, "run": run, "tests": imported.tests, "failures": imported.failures, "cut_at_line": imported.cut_at}));
            }
            Ok((run, imported)) => {
                let path = pylair_text::plain::shown(&path.display().to_string());
                say(&format!("{path}: {} tests, {} failed, as run {run}", imported.tests, imported.failures))?;
                if let Some(line) = imported.cut_at {
                    say(&format!("{path} ends in the middle of line {line}: what came after is not there"))?;
                }
            }
            Err(failure) => {
                told.push(json!({"file": path, "error": failure.message}));
                complain(&failure);
                exit = Exit::Failed;
            }
        }
    }
    if args.json.json {
        say(&json!({ "files": told }).to_string())?;
    }
    Ok(exit)
}

fn import_file(path: &Path, project: &Project, client: &mut Client) -> Result<(String, Imported), Failure> {
    let unreadable = |error: std::io::Error| {
        Failure::new(
            format!("cannot read `{}`: {error}", path.display()),
            "pass a file of JUnit XML or pytest-reportlog",
        )
    };
    let file = regular::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.len() > MAX_FILE_BYTES {
        let (size, most) = (metadata.len() >> 20, MAX_FILE_BYTES >> 20);
        return Err(Failure::new(
            format!("`{}` has {size} MB; {most} MB are read at most", path.display()),
            "write the results of fewer tests into one file",
        ));
    }
    let modified = metadata.modified().map_err(unreadable)?;
    let at = Timestamp::try_from(modified).unwrap_or_else(|_| Timestamp::now());
    let origin = Origin { run: run_of(path, project).map_err(unreadable)?, project: project.clone(), at };
    let address = format!("/api/runs/{}/records", url_value(&origin.run));
    let mut lines = Vec::new();
    let send = |lines: &mut Vec<u8>, client: &mut Client| {
        let body = Bytes::from(std::mem::take(lines));
        client.post_bytes::<Taken>(&address, body).map(|_| ())
    };
    let mut refused = None;
    let read = import::read(BufReader::new(file.take(MAX_FILE_BYTES)), &origin, &mut |record| {
        serde_json::to_writer(&mut lines, &record)?;
        lines.push(b'\n');
        if lines.len() >= BATCH_BYTES {
            send(&mut lines, client).map_err(|failure| {
                let message = failure.message.clone();
                refused = Some(failure);
                message
            })?;
        }
        Ok(())
    });
    if let Some(failure) = refused {
        return Err(failure);
    }
    // What stands before something broken is taken.
    if !lines.is_empty() {
        send(&mut lines, client)?;
    }
    let imported =
        read.map_err(|error| Failure::new(format!("`{}`: {}", path.display(), with_causes(&error)), error.hint()))?;
    Ok((origin.run, imported))
}

/// The same for the same content of the same project, so that results are known again.
fn run_of(path: &Path, project: &Project) -> std::io::Result<String> {
    let mut digest = Sha256::new();
    digest.update(project.name.as_bytes());
    digest.update(project.root.as_bytes());
    let mut file = regular::open(path)?.take(MAX_FILE_BYTES);
    let mut chunk = vec![0; 64 << 10];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        digest.update(&chunk[..read]);
    }
    Ok(format!("import-{}", hash::hex(&digest.finalize()[..8])))
}

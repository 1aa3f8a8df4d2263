//! What was reported while no daemon answered: `RUN.jsonl` files of lines in the spool directory, which runs append to. A file goes away when
//! all of it is kept. Lines that are no records are kept beside it, in `RUN.rejected`, for whoever wants to know.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::{Failures, error::Error, record::Record};

/// Records that are taken in at once.
const RECORDS: usize = 500;
/// A line that is longer is no record.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Files that are looked at in one go.
const MAX_FILES: usize = 1000;

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spooled {
    pub files: usize,
    pub records: usize,
    pub rejected: usize,
}

impl Failures {
    /// Takes in every file of the spool directory. A file that a run is writing to now is left for later.
    pub async fn take_spool(&self) -> Result<Spooled, Error> {
        let directory = self.spool.clone();
        let files = blocking(move || list(&directory)).await?;
        let mut spooled = Spooled::default();
        for path in files {
            self.take_file(path, &mut spooled).await?;
        }
        Ok(spooled)
    }

    async fn take_file(&self, path: PathBuf, spooled: &mut Spooled) -> Result<(), Error> {
        let opened = path.clone();
        let Some(mut lines) = blocking(move || Lines::open(opened)).await? else { return Ok(()) };
        loop {
            let (read, chunk) = blocking(move || {
                let chunk = lines.next_chunk();
                chunk.map(|chunk| (lines, chunk))
            })
            .await?;
            lines = read;
            if chunk.is_empty() {
                break;
            }
            let count = chunk.len();
            match self.ingest(chunk.clone()).await {
                Ok(_) => spooled.records += count,
                Err(error) if error.is_temporary() => return Err(error),
                // One record is wrong: the others are taken without it.
                Err(_) => {
                    for record in chunk {
                        let line = serde_json::to_string(&record).unwrap_or_default();
                        match self.ingest(vec![record]).await {
                            Ok(_) => spooled.records += 1,
                            Err(error) if error.is_temporary() => return Err(error),
                            Err(error) => lines.rejected.push(format!("{}\t{line}", error.message())),
                        }
                    }
                }
            }
        }
        spooled.files += 1;
        spooled.rejected += lines.rejected.len();
        blocking(move || lines.finish()).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Closed)?
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Error::Io { action: "read", path: directory.to_owned(), source }),
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .take(MAX_FILES)
        .collect();
    // Older runs first, as far as their names tell.
    files.sort();
    Ok(files)
}

struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    rejected: Vec<String>,
    /// How much of the file was read.
    bytes: u64,
}

impl Lines {
    /// None when it is no file of our own, or somebody else takes it in.
    fn open(path: PathBuf) -> Result<Option<Self>, Error> {
        let options = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path);
        let file = match options {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { action: "read", path, source }),
        };
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_file || file.try_lock().is_err() {
            return Ok(None);
        }
        Ok(Some(Self { path, reader: BufReader::new(file), rejected: Vec::new(), bytes: 0 }))
    }

    fn next_chunk(&mut self) -> Result<Vec<Record>, Error> {
        let mut records = Vec::new();
        while records.len() < RECORDS {
            let mut line = Vec::new();
            let read = std::io::Read::take(&mut self.reader, MAX_LINE_BYTES).read_until(b'\n', &mut line);
            let read = read.map_err(|source| Error::Io { action: "read", path: self.path.clone(), source })?;
            if read == 0 {
                break;
            }
            self.bytes += read as u64;
            match serde_json::from_slice(&line) {
                Ok(record) => records.push(record),
                Err(_) if line.trim_ascii().is_empty() => {}
                // The run was killed while it wrote.
                Err(_) if !line.ends_with(b"\n") && (read as u64) < MAX_LINE_BYTES => {}
                Err(why) => self
                    .rejected
                    .push(format!("{why}\t{}", String::from_utf8_lossy(&line[..line.len().min(2000)]).trim_end())),
            }
        }
        Ok(records)
    }

    /// Removes the file if nothing was appended meanwhile, and keeps what is no record.
    fn finish(self) -> Result<(), Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| Error::Io { action: "finish", path, source }
        };
        if !self.rejected.is_empty() {
            let path = self.path.with_extension("rejected");
            let mut file =
                OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(failed(&path))?;
            file.write_all((self.rejected.join("\n") + "\n").as_bytes()).map_err(failed(&path))?;
        }
        let length = fs::metadata(&self.path).map(|metadata| metadata.len());
        if length.is_ok_and(|length| length > self.bytes) {
            // The run goes on; what was taken is known when it is taken again.
            return Ok(());
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(&self.path)(error)),
            _ => Ok(()),
        }
    }
}

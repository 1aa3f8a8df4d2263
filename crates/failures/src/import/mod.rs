//! Results of test runs that were written to files by others, as records: `JUnit` XML and pytest-reportlog.
//!
//! Files are read as they come, and records handed on one by one, so that a large file needs no more memory than its largest
//! element. What is wrong in a file is said with its line; what came before has been handed on. Called by `pylair failures import`.

mod encoding;
pub mod junit;
pub mod reportlog;
pub mod traceback;

pub(crate) use traceback::crash_frames;

use std::io::{self, BufRead, BufReader, Read};

use jiff::Timestamp;

use super::record::{Began, Ended, Project, Record, Source};
use encoding::{Decoded, Encoding};

/// One element or line may be this large.
const MAX_PIECE_BYTES: usize = 64 << 20;
const MAX_TEXT_CHARS: usize = 64 << 10;
const MAX_OUTPUT_CHARS: usize = 32 << 10;
const MAX_NAME_CHARS: usize = 2000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("line {line}: {what}")]
    Broken { line: u64, what: String },
    #[error("this is neither JUnit XML nor a pytest-reportlog file")]
    UnknownFormat,
    #[error("line {line}: cannot be read")]
    Read { line: u64, source: io::Error },
    /// The one who takes the records would not go on.
    #[error("the records could not be taken")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Broken { .. } => {
                "what stands before that line was taken; write the file again and import it once more, known results are not taken twice"
            }
            Self::UnknownFormat => {
                "write it with `pytest --junitxml=FILE` or, with the package pytest-reportlog, `pytest --report-log=FILE`"
            }
            Self::Read { .. } => "see whether the file can be read to its end",
            Self::Refused(_) => "see the cause",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Junit,
    Reportlog,
}

/// What a file is, by its beginning.
pub fn format(beginning: &[u8]) -> Option<Format> {
    let text = beginning.strip_prefix(b"\xef\xbb\xbf").unwrap_or(beginning);
    match text.iter().find(|byte| !byte.is_ascii_whitespace())? {
        b'<' => Some(Format::Junit),
        b'{' => Some(Format::Reportlog),
        _ => None,
    }
}

/// What a file does not say itself.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The id of the run, the same whenever the same file is imported.
    pub run: String,
    pub project: Project,
    /// When it was written, for files that do not say when tests ran.
    pub at: Timestamp,
}

/// How much was taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Imported {
    pub tests: usize,
    pub failures: usize,
    /// The line in the middle of which the file ends, if it does.
    pub cut_at: Option<u64>,
}

/// Takes the records of a file, in the order of the contract: a run, its tests, its end.
pub type Take<'t> = &'t mut dyn FnMut(Record) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Reads a file of either format.
pub fn read(mut reader: impl BufRead, origin: &Origin, take: Take) -> Result<Imported, Error> {
    let beginning = reader.fill_buf().map_err(|source| Error::Read { line: 1, source })?;
    let encoding = encoding::of(beginning)?;
    if encoding != Encoding::Utf8 {
        return read_text(BufReader::new(Decoded::new(reader, encoding)), origin, take);
    }
    read_text(reader, origin, take)
}

fn read_text(mut reader: impl BufRead, origin: &Origin, take: Take) -> Result<Imported, Error> {
    let beginning = reader.fill_buf().map_err(|source| Error::Read { line: 1, source })?;
    match format(beginning) {
        Some(Format::Junit) => junit::read(reader, origin, take),
        Some(Format::Reportlog) => reportlog::read(reader, origin, take),
        None => Err(Error::UnknownFormat),
    }
}

/// Hands records on and counts them; a run is begun with the first.
struct Taking<'t> {
    take: Take<'t>,
    origin: &'t Origin,
    source: Source,
    began: Option<Timestamp>,
    imported: Imported,
    bad: bool,
}

impl<'t> Taking<'t> {
    fn new(origin: &'t Origin, source: Source, take: Take<'t>) -> Self {
        Self { take, origin, source, began: None, imported: Imported::default(), bad: false }
    }

    fn begin(&mut self, at: Option<Timestamp>, change: impl FnOnce(&mut Began)) -> Result<(), Error> {
        if self.began.is_some() {
            return Ok(());
        }
        let at = at.unwrap_or(self.origin.at);
        self.began = Some(at);
        let mut began = Began::new(self.origin.run.clone(), at, self.source, self.origin.project.clone());
        change(&mut began);
        (self.take)(Record::Run(Box::new(began))).map_err(Error::Refused)
    }

    fn test(&mut self, test: super::record::Tested) -> Result<(), Error> {
        use super::record::Outcome;
        self.begin(test.at, |_| {})?;
        self.imported.tests += 1;
        if matches!(test.outcome, Outcome::Failed | Outcome::Error) {
            self.imported.failures += 1;
            self.bad = true;
        }
        (self.take)(Record::Test(Box::new(test))).map_err(Error::Refused)
    }

    fn end(mut self, exit_code: Option<i32>, seconds: f64, note: Option<String>) -> Result<Imported, Error> {
        self.begin(None, |_| {})?;
        let began = self.began.unwrap_or(self.origin.at);
        let length = jiff::SignedDuration::try_from_secs_f64(seconds).unwrap_or_default();
        let end = Ended {
            run: self.origin.run.clone(),
            at: began.checked_add(length).unwrap_or(began),
            exit_code: exit_code.unwrap_or(i32::from(self.bad)),
            seconds,
            not_run: 0,
            note: Some(note.map_or_else(|| "imported".to_owned(), |note| format!("imported; {note}"))),
        };
        (self.take)(Record::End(end)).map_err(Error::Refused)?;
        Ok(self.imported)
    }
}

/// Counts lines as they are read, and refuses a piece that is too large.
struct Counted<R> {
    reader: R,
    line: u64,
    /// Bytes since the last piece began.
    piece: usize,
}

impl<R: BufRead> Counted<R> {
    fn new(reader: R) -> Self {
        Self { reader, line: 1, piece: 0 }
    }
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(into.len());
        into[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.piece > MAX_PIECE_BYTES {
            return Err(io::Error::other(format!("a piece of it is larger than {} MB", MAX_PIECE_BYTES >> 20)));
        }
        self.reader.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        if let Ok(buffer) = self.reader.fill_buf() {
            self.line += buffer[..count.min(buffer.len())].split(|byte| *byte == b'\n').count() as u64 - 1;
        }
        self.piece += count;
        self.reader.consume(count);
    }
}

/// The beginning and the end of a text; whether something is missing between.
fn cut(text: &str, most: usize) -> (String, bool) {
    if text.len() <= most || text.chars().count() <= most {
        return (text.to_owned(), false);
    }
    let half = most / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().rev().take(half).collect::<Vec<_>>().into_iter().rev().collect();
    let left_out = text.chars().count() - 2 * half;
    (format!("{head}\n… {left_out} characters left out …\n{tail}"), true)
}

#[cfg(test)]
mod tests;

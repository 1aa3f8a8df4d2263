//! What happened in a session, told from the journal: cells with what they printed and gave, and what befell the session
//! between them. Works for open and closed sessions, also of an earlier daemon.
//!
//! `record` makes cells of events, `page` is what `get_history` shows, `export` hands a session over as a notebook, a
//! script or a page. The doors call these functions; nothing here changes anything.

mod export;
mod html;
mod notebook;
mod page;
mod record;
mod script;

use std::{ops::ControlFlow, sync::Arc};

use tokio::sync::Semaphore;

pub use export::{Export, Format, export};
pub use page::{HistoryPage, page_text};
pub use record::{Cell, Entry, Happening, Piece};

use crate::{
    caller::{Caller, Scope},
    session::{self, Sessions, State},
};
use pylair_journal::{self as journal, EventKind, Journal};
use pylair_os::event_loop;
use pylair_text::mask;
use record::{Backwards, Rest};

/// Cells of one page, unless the caller says how many.
pub const DEFAULT_LIMIT: usize = 20;
pub const MAX_LIMIT: usize = 100;
/// Events per read of the journal: few at first, because most pages are the newest.
const FIRST_EVENTS: usize = 200;
const MORE_EVENTS: usize = 2000;
/// What one export takes from the journal, newest first.
const MAX_EXPORT_BYTES: usize = 64 << 20;
const MAX_EXPORT_CELLS: usize = 20_000;
/// Histories that are read at once, since each may have so many bytes; others wait.
static TURNS: Semaphore = Semaphore::const_new(3);
/// Branches of branches that are followed back.
const MAX_GENERATIONS: usize = 50;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Session(#[from] session::Error),
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error(
        "there is no session `{target}` and no history of it. {events} events of your history were removed to make room, and those of \
         `{target}` may have been among them ({why})"
    )]
    Removed { target: String, events: u64, why: String },
    #[error("{0}")]
    BadArgument(String),
}

impl Error {
    /// A word for programs.
    pub fn kind(&self) -> &str {
        match self {
            Self::Session(error) => error.kind(),
            Self::Journal(_) => "history_unavailable",
            Self::Removed { .. } => "unknown_session",
            Self::BadArgument(_) => "bad_argument",
        }
    }

    pub fn message(&self) -> String {
        match self {
            Self::Session(error) => error.message(),
            _ => self.to_string(),
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Session(error) => error.hint(),
            Self::Journal(error) => error.hint().unwrap_or("see the daemon's log").to_owned(),
            Self::Removed { .. } => "list_targets shows the sessions".to_owned(),
            Self::BadArgument(_) => "see the tool's schema".to_owned(),
        }
    }
}

/// The session a history is about.
#[derive(Debug, Clone)]
pub struct Subject {
    pub owner: Arc<str>,
    pub handle: Arc<str>,
    pub name: String,
    /// What the session was opened with, where it is still known.
    pub opened: Option<Opened>,
    pub is_open: bool,
    /// The cell that runs now.
    pub running: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct Opened {
    pub python: String,
    pub cwd: String,
    pub startup: Option<String>,
}

impl Subject {
    /// What the session is called in an address: closed ones may share their name with others.
    pub fn reference(&self) -> &str {
        if self.is_open { &self.name } else { &self.handle }
    }
}

/// The session a caller names, by name or handle: an open one, else the newest that the journal knows. Without a name the caller's own,
/// or the last one that was.
pub async fn find(
    sessions: &Sessions,
    journal: &Journal,
    caller: &Caller,
    target: Option<&str>,
) -> Result<Subject, Error> {
    if !caller.may(Scope::Read) {
        return Err(session::Error::NotAllowed("read histories").into());
    }
    let target = &match target.or(caller.settings.session.as_deref()) {
        Some(target) => target.to_owned(),
        None => sessions.last_own(caller).await?,
    };
    let unknown = match sessions.find(caller, target) {
        Ok(session) => {
            let status = session.status();
            let info = &session.info;
            return Ok(Subject {
                owner: info.owner.clone(),
                handle: info.handle.clone(),
                name: info.name.to_string(),
                opened: Some(Opened {
                    python: info.interpreter.version.clone(),
                    cwd: info.cwd.display().to_string(),
                    startup: info
                        .startup
                        .as_deref()
                        .map(|code| mask::masked(code, mask::Reading::Code).unwrap_or_else(|| code.to_owned())),
                }),
                is_open: true,
                running: (status.state == State::Busy).then_some(status.cell),
            });
        }
        Err(unknown) => unknown,
    };
    let wanted = target.strip_prefix("session:").unwrap_or(target);
    let Some(event) = journal.opened(&caller.owner, wanted).await? else {
        let trimmed = journal.trimmed(&caller.owner);
        return Err(match trimmed {
            Some(trimmed) => Error::Removed { target: target.to_owned(), events: trimmed.events, why: trimmed.why },
            None => unknown.into(),
        });
    };
    let EventKind::SessionOpened { name, python, cwd, startup, .. } = &event.kind else { return Err(unknown.into()) };
    Ok(Subject {
        owner: event.owner.clone(),
        handle: event.target.clone(),
        name: name.clone(),
        opened: Some(Opened { python: python.clone(), cwd: cwd.clone(), startup: startup.clone() }),
        is_open: false,
        running: None,
    })
}

/// The newest `limit` cells before cell `before`, oldest first, in about `max_chars` characters.
pub async fn page(
    journal: &Journal,
    subject: &Subject,
    limit: usize,
    before: Option<u64>,
    max_chars: usize,
) -> Result<HistoryPage, Error> {
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Error::BadArgument(format!("limit is {limit}, not between 1 and {MAX_LIMIT}")));
    }
    // Hundreds of events are read for a page, each up to as long as it may be.
    event_loop::carry(usize::MAX).await;
    let _turn = TURNS.acquire().await;
    let mut backwards = Backwards::new(limit, before, MAX_EXPORT_BYTES);
    read(journal, &subject.owner, &subject.handle, None, &mut backwards).await?;
    let removed = removed(journal, subject, &backwards);
    let (entries, next_before) = backwards.finish(subject.running);
    Ok(page::page(subject, &entries, (next_before, removed), max_chars))
}

/// Why the beginning of a session is not there, if it is not.
fn removed(journal: &Journal, subject: &Subject, backwards: &Backwards) -> Option<String> {
    if backwards.rest != Rest::Unknown {
        return None;
    }
    journal.trimmed(&subject.owner).map(|trimmed| trimmed.why)
}

/// Every cell that made the session what it is, with those of the sessions it was branched off; the second is the
/// oldest of them if there were too many, the third why the first ones are not there any more.
async fn everything(journal: &Journal, subject: &Subject) -> Result<(Vec<Entry>, Option<u64>, Option<String>), Error> {
    event_loop::carry(usize::MAX).await;
    let owner = &*subject.owner;
    let mut backwards = Backwards::new(MAX_EXPORT_CELLS, None, MAX_EXPORT_BYTES);
    read(journal, owner, &subject.handle, None, &mut backwards).await?;
    let mut generations = vec![];
    while let Some(branch) =
        backwards.branch.take().filter(|_| backwards.rest != Rest::More && generations.len() < MAX_GENERATIONS)
    {
        let mut older = backwards.ancestor(branch.cell);
        // What befell the ancestor afterwards is not this session's story.
        read(journal, owner, &branch.handle, Some(branch.seq), &mut older).await?;
        generations.push(std::mem::replace(&mut backwards, older));
    }
    let removed = removed(journal, subject, &backwards);
    let (mut entries, oldest) = backwards.finish(subject.running);
    for generation in generations.into_iter().rev() {
        entries.extend(generation.finish(subject.running).0);
    }
    Ok((entries, oldest, removed))
}

/// Feeds a session's events before `before`, newest first.
async fn read(
    journal: &Journal,
    owner: &str,
    handle: &str,
    mut before: Option<u64>,
    backwards: &mut Backwards,
) -> Result<(), Error> {
    let mut count = FIRST_EVENTS;
    loop {
        let events = journal.history(owner, handle, before, count).await?;
        count = MORE_EVENTS;
        let Some(first) = events.first() else { return Ok(()) };
        before = Some(first.seq);
        for event in events.iter().rev() {
            if let ControlFlow::Break(()) = backwards.take(event) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pylair_journal::Limits;
    use pylair_os::clock::Clock;

    fn subject(owner: &str) -> Subject {
        Subject {
            owner: owner.into(),
            handle: "abc".into(),
            name: "main".to_owned(),
            opened: None,
            is_open: true,
            running: None,
        }
    }

    #[tokio::test]
    async fn a_history_whose_beginning_was_removed_says_so() {
        let directory = std::env::temp_dir().join(format!("pylair-history-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        let open = async || {
            let limits = Limits { max_events: 30, ..Limits::default() };
            Journal::open_with(directory.join("journal.db"), limits, Arc::new(Clock::trusted())).await.unwrap().journal
        };
        let journal = open().await;
        let (target, opened) = ("abc".into(), |name: &str| EventKind::SessionOpened {
            name: name.to_owned(),
            python: String::new(),
            profile: String::new(),
            cwd: String::new(),
            startup: None,
            branch: None,
            restored: false,
            default_of: None,
        });
        for (owner, cells) in [("quiet", 5), ("busy", 100)] {
            journal.record(&owner.into(), &target, opened("main"));
            for cell in 1..=cells {
                let kind = record::tests::started(cell, "x");
                journal.record(&owner.into(), &target, kind);
            }
        }
        journal.shutdown().await.unwrap();
        // It is looked at the limits at the start.
        let journal = open().await;
        journal.flush().await.unwrap();
        let text = async |owner: &str| page_text(&page(&journal, &subject(owner), 100, None, 25_000).await.unwrap());
        let (quiet, busy) = (text("quiet").await, text("busy").await);
        assert!(quiet.contains("In [1]") && !quiet.contains("removed"), "{quiet}");
        assert!(
            busy.starts_with("[what came before was removed to make room: ") && busy.contains("30 events"),
            "{busy}"
        );
        assert!(busy.contains("In [100]"), "{busy}");
        journal.shutdown().await.unwrap();
        _ = std::fs::remove_dir_all(directory);
    }
}

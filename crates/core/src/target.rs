//! Targets as callers write them: `main`, `session:main`, `app:web`, `app:web@4711`, `pid:4711`, `failure:ID`, `failure:ID#2`.
//!
//! Only reads the text. What a reference means is found out by `Daemon::target`, because it depends on who asks and what is running.

use std::{fmt, str::FromStr};

/// What a caller wrote.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reference {
    /// Without a kind: a session of the caller's, else an app.
    Name(String),
    /// By name or handle.
    Session(String),
    /// `pid` is one of several instances.
    App { id: String, pid: Option<i32> },
    /// The app that a process is.
    Process(i32),
    /// `frame` counts from 1, the innermost, outwards.
    Failure { id: String, frame: Option<usize> },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the target is empty")]
    Empty,
    #[error("`{text}` names no {kind}")]
    NoName { text: String, kind: &'static str },
    #[error("there is no kind of target called `{kind}`")]
    UnknownKind { kind: String },
    #[error("`{text}` is not a process id")]
    BadPid { text: String },
    #[error("`{text}` is not the number of a frame")]
    BadFrame { text: String },
}

impl Error {
    /// The way out.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::BadFrame { .. } => "frames are counted from 1, the innermost: failure:ID#2",
            _ => "write session:NAME, app:ID, app:ID@PID, pid:PID or failure:ID; list_targets shows what is running",
        }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let Some((kind, rest)) = text.split_once(':') else {
            return if text.is_empty() { Err(Error::Empty) } else { Ok(Self::Name(text.to_owned())) };
        };
        let named = |name: &str, kind| match name {
            "" => Err(Error::NoName { text: text.to_owned(), kind }),
            name => Ok(name.to_owned()),
        };
        match kind {
            "session" => Ok(Self::Session(named(rest, "session")?)),
            "app" => match rest.rsplit_once('@') {
                Some((id, digits)) => Ok(Self::App { id: named(id, "app")?, pid: Some(pid(digits)?) }),
                None => Ok(Self::App { id: named(rest, "app")?, pid: None }),
            },
            "pid" => Ok(Self::Process(pid(rest)?)),
            "failure" => match rest.split_once('#') {
                Some((id, number)) => {
                    let frame = number.parse().ok().filter(|frame| *frame > 0);
                    let frame = frame.ok_or_else(|| Error::BadFrame { text: number.to_owned() })?;
                    Ok(Self::Failure { id: named(id, "failure")?, frame: Some(frame) })
                }
                None => Ok(Self::Failure { id: named(rest, "failure")?, frame: None }),
            },
            kind => Err(Error::UnknownKind { kind: kind.to_owned() }),
        }
    }
}

fn pid(digits: &str) -> Result<i32, Error> {
    digits.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| Error::BadPid { text: digits.to_owned() })
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Session(name) => write!(formatter, "session:{name}"),
            Self::App { id, pid: None } => write!(formatter, "app:{id}"),
            Self::App { id, pid: Some(pid) } => write!(formatter, "app:{id}@{pid}"),
            Self::Process(pid) => write!(formatter, "pid:{pid}"),
            Self::Failure { id, frame: None } => write!(formatter, "failure:{id}"),
            Self::Failure { id, frame: Some(frame) } => write!(formatter, "failure:{id}#{frame}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_written_again() {
        let name = |text: &str| text.to_owned();
        let cases = [
            ("main", Reference::Name(name("main"))),
            ("web/worker-2", Reference::Name(name("web/worker-2"))),
            ("session:main", Reference::Session(name("main"))),
            ("app:web", Reference::App { id: name("web"), pid: None }),
            ("app:web@4711", Reference::App { id: name("web"), pid: Some(4711) }),
            ("app:me@home@4711", Reference::App { id: name("me@home"), pid: Some(4711) }),
            ("app:a:b", Reference::App { id: name("a:b"), pid: None }),
            ("pid:4711", Reference::Process(4711)),
            ("failure:k3n7", Reference::Failure { id: name("k3n7"), frame: None }),
            ("failure:k3n7#2", Reference::Failure { id: name("k3n7"), frame: Some(2) }),
        ];
        for (text, reference) in cases {
            assert_eq!(text.parse::<Reference>().as_ref(), Ok(&reference), "{text}");
            assert_eq!(reference.to_string(), text);
        }
        assert_eq!(" main\n".parse(), Ok(Reference::Name(name("main"))));
    }

    #[test]
    fn what_is_no_target_is_told_why() {
        let check = |text: &str| text.parse::<Reference>().unwrap_err().to_string();
        assert_eq!(check(" "), "the target is empty");
        assert_eq!(check("app:"), "`app:` names no app");
        assert_eq!(check("app:@7"), "`app:@7` names no app");
        assert_eq!(check("app:web@x"), "`x` is not a process id");
        assert_eq!(check("pid:-1"), "`-1` is not a process id");
        assert_eq!(check("pid:99999999999"), "`99999999999` is not a process id");
        assert_eq!(check("failure:k#0"), "`0` is not the number of a frame");
        assert_eq!(check("sesion:main"), "there is no kind of target called `sesion`");
    }
}

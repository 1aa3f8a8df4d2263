//! What is run in the process: one statement for `PyRun_SimpleString`, and beside it in memory the probe's modules for it to read.

use std::fmt::Write;

use serde::Serialize;

use super::process::Process;
use crate::registry::By;

/// What the entry module gets.
#[derive(Debug, Clone, Serialize)]
pub struct Config {
    /// The runtime directory as the process sees it.
    pub runtime: String,
    pub app_id: Option<String>,
    pub readonly: bool,
    pub by: By,
    /// Who the process is out here, which can differ from what it knows of itself.
    pub pid: i32,
    pub start: u64,
}

/// What the thread of the probe's runs, a zero, and the probe with its entry as JSON.
pub fn payload(process: &Process, entry: &str, config: &Config) -> Vec<u8> {
    let arrive =
        include_str!("../../../probe/pylair/bootstrap/arrive.py").replace("\"@TELL@\"", &tell(process, config));
    [arrive.as_bytes(), b"\0", &pylair_probe::visiting_payload(entry, config)].concat()
}

/// Source that says why it did not work, as a literal: it is compiled only where it is needed.
fn tell(process: &Process, config: &Config) -> String {
    let errors = format!("{}/apps/{}-{}.error", config.runtime, process.inner_pid, process.start);
    literal(&include_str!("../../../probe/pylair/bootstrap/tell.py").replace("\"@ERRORS@\"", &literal(&errors)))
}

/// Where the payload is, for the statement to read.
#[derive(Debug)]
pub struct Source {
    path: String,
    length: usize,
    /// Whoever removes the file first has it.
    is_claimed: bool,
}

impl Source {
    /// At an address of the process itself, which is filled in later.
    pub fn memory(length: usize) -> Self {
        Self { path: "/proc/self/mem".to_owned(), length, is_claimed: false }
    }

    /// In a file, by a path as the process sees it.
    pub fn file(path: String, length: usize) -> Self {
        Self { path, length, is_claimed: true }
    }
}

/// Stands where an address will be: as many digits as the longest has.
const NO_ADDRESS: &str = "00000000000000000000";

/// Says where the payload is, when that is known. Takes no time to speak of: the process waits meanwhile.
pub fn fill_in(statement: &mut [u8], address: u64) {
    let place = statement.windows(NO_ADDRESS.len()).position(|window| window == NO_ADDRESS.as_bytes());
    if let Some(at) = place {
        statement[at..at + NO_ADDRESS.len()].copy_from_slice(format!("{address:020}").as_bytes());
    }
}

/// The statement.
pub fn statement(process: &Process, config: &Config, source: &Source) -> String {
    let inside = include_str!("../../../probe/pylair/bootstrap/inside.py")
        .replace("\"@PATH@\"", &literal(&source.path))
        .replace("@OFFSET@", NO_ADDRESS)
        .replace("@LENGTH@", &source.length.to_string())
        .replace("@CLAIM@", if source.is_claimed { "yes" } else { "" })
        .replace("\"@TELL@\"", &tell(process, config));
    let code: Vec<&str> = inside.lines().filter(|line| !line.starts_with('#')).collect();
    // In `__main__` a program may have given another meaning to any name but `__builtins__`; a script has a namespace of its own.
    let exec = if source.is_claimed { "exec" } else { "__builtins__.exec" };
    // Nothing may come out of it, whatever it is.
    format!("try:\n {exec}({},{{}})\nexcept:pass\n", literal(&code.join("\n")))
}

/// Text as a literal of Python: JSON's, in ASCII, is one.
fn literal(text: &str) -> String {
    let quoted = serde_json::to_string(text).expect("text is JSON");
    quoted.chars().fold(String::with_capacity(quoted.len()), |mut literal, c| {
        match u32::from(c) {
            code @ 0x7f..=0xffff => write!(literal, "\\u{code:04x}"),
            code @ 0x1_0000.. => write!(literal, "\\U{code:08x}"),
            _ => literal.write_char(c),
        }
        .expect("a String cannot refuse text");
        literal
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_is_plain_and_says_the_same_in_python() {
        assert_eq!(literal("a\"b\\\n\u{1}é😀"), r#""a\"b\\\n\u0001\u00e9\U0001f600""#);
    }

    #[test]
    fn the_statement_holds_no_placeholder() {
        let process = Process::examine(std::process::id().cast_signed()).unwrap();
        let config = Config {
            runtime: "/run/me".to_owned(),
            app_id: None,
            readonly: false,
            by: By::Mcp,
            pid: process.pid,
            start: process.start,
        };
        let mut statement = statement(&process, &config, &Source::memory(17)).into_bytes();
        fill_in(&mut statement, u64::MAX);
        let statement = String::from_utf8(statement).unwrap();
        assert!(!statement.contains('@') && statement.is_ascii(), "{statement}");
        assert!(statement.contains("/run/me/apps/") && statement.contains("18446744073709551615"), "{statement}");
    }
}

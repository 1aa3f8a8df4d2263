//! What is run in the process: one statement for `PyRun_SimpleString`, and beside it in memory the probe's modules for it to read.

use serde::Serialize;

use super::process::Process;
use crate::probe;

/// What the entry module gets.
#[derive(Debug, Clone, Serialize)]
pub struct Config {
    /// The runtime directory as the process sees it.
    pub runtime: String,
    pub app_id: Option<String>,
    pub readonly: bool,
    /// Who the process is out here, which can differ from what it knows of itself.
    pub pid: i32,
    pub start: u64,
}

/// The probe and its entry, as JSON.
pub fn payload(entry: &str, config: &Config) -> Vec<u8> {
    probe::payload(entry, config)
}

/// Where the payload is, for the statement to read.
#[derive(Debug)]
pub struct Source {
    path: String,
    offset: u64,
    length: usize,
    /// Whoever removes the file first has it.
    is_claimed: bool,
}

impl Source {
    /// At an address of the process itself.
    pub fn memory(address: u64, length: usize) -> Self {
        Self { path: "/proc/self/mem".to_owned(), offset: address, length, is_claimed: false }
    }

    /// In a file, by a path as the process sees it.
    pub fn file(path: String, length: usize) -> Self {
        Self { path, offset: 0, length, is_claimed: true }
    }
}

/// The statement.
pub fn statement(process: &Process, config: &Config, source: &Source) -> String {
    let errors = format!("{}/apps/{}-{}.error", config.runtime, process.inner_pid, process.start);
    let inside = include_str!("../../probe/pylair/bootstrap/inside.py")
        .replace("\"@PATH@\"", &literal(&source.path))
        .replace("@OFFSET@", &source.offset.to_string())
        .replace("@LENGTH@", &source.length.to_string())
        .replace("@CLAIM@", if source.is_claimed { "yes" } else { "" })
        .replace("\"@ERRORS@\"", &literal(&errors));
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
            code @ 0x7f..=0xffff => literal.push_str(&format!("\\u{code:04x}")),
            code @ 0x1_0000.. => literal.push_str(&format!("\\U{code:08x}")),
            _ => literal.push(c),
        }
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
            pid: process.pid,
            start: process.start,
        };
        let statement = statement(&process, &config, &Source::memory(4096, 17));
        assert!(!statement.contains('@') && statement.is_ascii(), "{statement}");
        assert!(statement.contains("/run/me/apps/") && statement.contains("4096"), "{statement}");
    }
}

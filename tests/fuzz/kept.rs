//! Files that the doors keep: the list of tokens, and the audit record, in which every change has to show.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use pylair_core::{
    audit::{Line, What, file},
    settings::AuditSettings,
};
use pylair_web::token;

use crate::{
    Target,
    mutate::{self, Random},
};

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).expect("a directory");
    path
}

fn write(path: &Path, bytes: &[u8]) {
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).truncate(true).write(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(bytes)).expect("a file");
}

pub struct Tokens(PathBuf);

impl Tokens {
    pub fn new() -> Self {
        Self(directory("tokens"))
    }
}

const TOKEN_WORDS: &[&str] = &[
    "version",
    "tokens",
    "name",
    "owner",
    "scopes",
    "read",
    "run",
    "tests",
    "admin",
    "sha256",
    "created",
    "expires",
    "2026-01-01T00:00:00Z",
    "-009999-01-02T01:59:59Z",
    "uid-0",
    "null",
    "\\u0000",
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
];

impl Target for Tokens {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let one = serde_json::json!({"name": "ci", "owner": "team", "scopes": ["run", "read"], "sha256": "0".repeat(64),
            "created": "2026-01-01T00:00:00Z", "expires": "2030-01-01T00:00:00Z"});
        [serde_json::json!({"version": 1, "tokens": []}), serde_json::json!({"version": 1, "tokens": [one]})]
            .map(|list| list.to_string().into_bytes())
            .to_vec()
    }

    fn words(&self) -> &'static [&'static str] {
        TOKEN_WORDS
    }

    fn mutate(&self, input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
        mutate::json(input, TOKEN_WORDS, random)
    }

    fn run(&mut self, input: &[u8]) -> Result<String, String> {
        let path = self.0.join("tokens.json");
        write(&path, input);
        match token::load(&path) {
            Ok(tokens) => {
                Ok(format!("{} tokens, {} over", tokens.len(), tokens.iter().filter(|one| one.is_over()).count()))
            }
            Err(error) => Ok(words_of(&error.to_string())),
        }
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        let _absent = fs::remove_dir_all(&self.0);
    }
}

/// A record of a few lines, and where its chain ends.
pub struct Audit {
    directory: PathBuf,
    record: Vec<u8>,
    head: file::Head,
}

const AUDIT_WORDS: &[&str] = &[
    "seq",
    "prev",
    "dropped",
    "18446744073709551615",
    "-1",
    "at",
    "what",
    "code",
    "reason",
    "\n",
    "\n\n",
    "{}",
    "null",
    "\"",
    "{",
    "}",
    ":",
    ",",
];

impl Audit {
    pub fn new() -> Self {
        let directory = directory("audit");
        let path = directory.join("written.jsonl");
        let mut file = file::File::open(path.clone(), AuditSettings::default()).expect("a record");
        for number in 0..6_u64 {
            let line = Line { call: Some(number), dropped: (number == 3).then_some(2), ..Line::new(What::Called) };
            file.append(&line).expect("a line");
        }
        let (record, head) = (fs::read(&path).expect("the record"), file.head());
        Self { directory, record, head }
    }
}

impl Target for Audit {
    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![self.record.clone()]
    }

    fn words(&self) -> &'static [&'static str] {
        AUDIT_WORDS
    }

    /// Changes one line as JSON.
    fn mutate(&self, input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
        let mut lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
        let at = random.below(lines.len());
        let changed = mutate::json(lines[at], AUDIT_WORDS, random)?;
        lines[at] = &changed;
        Some(lines.join(&b'\n'))
    }

    fn run(&mut self, input: &[u8]) -> Result<String, String> {
        let path = self.directory.join("audit.jsonl");
        write(&path, input);
        let verdict = file::verify(&path, Some(&self.head)).map_err(|error| error.to_string())?;
        let is_same = input.trim_ascii_end() == self.record.trim_ascii_end();
        if is_same == verdict.faults.is_empty() {
            let fault = verdict.faults.first().map_or_else(String::new, |fault| words_of(fault));
            return Ok(format!("{} torn, {fault}", verdict.torn));
        }
        Err(format!("a record that is {} has {:?}", if is_same { "whole" } else { "changed" }, verdict.faults))
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        let _absent = fs::remove_dir_all(&self.directory);
    }
}

/// A message without what is the input's own.
fn words_of(message: &str) -> String {
    message.split_whitespace().filter(|word| word.bytes().all(|byte| byte.is_ascii_alphabetic())).take(12).collect()
}

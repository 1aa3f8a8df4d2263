//! Commands whose short flags take a secret, in a shell and in lists of arguments.

use super::{scan::Scanner, value::is_placeholder};

/// Maximum length of a command up to its last flag.
const MAX_COMMAND_BYTES: usize = 4096;
/// Flags that are followed by a secret in the arguments of an unknown program.
pub(super) const SHORT_FLAGS: &[&str] = &["-p", "-P"];

/// A flag of a command, and whether its value may follow in the next word (`-p X`) or only in the same (`-pX`).
pub(super) struct Flag {
    pub name: &'static [u8],
    pub is_apart: bool,
    pub is_attached: bool,
    /// `user:password`: only what comes after the colon.
    pub is_pair: bool,
}

const fn apart(flag: &'static str) -> Flag {
    Flag { name: flag.as_bytes(), is_apart: true, is_attached: false, is_pair: false }
}

const fn attached(flag: &'static str) -> Flag {
    Flag { name: flag.as_bytes(), is_apart: false, is_attached: true, is_pair: false }
}

const fn pair(flag: &'static str) -> Flag {
    Flag { name: flag.as_bytes(), is_apart: true, is_attached: true, is_pair: true }
}

const MYSQL: &[Flag] = &[attached("-p")];
const CURL: &[Flag] = &[pair("-u"), pair("--user"), pair("-U"), pair("--proxy-user")];

const COMMANDS: &[(&str, &[Flag])] = &[
    ("curl", CURL),
    ("docker", &[apart("-p")]),
    ("ldapsearch", &[apart("-w")]),
    ("mariadb", MYSQL),
    ("mysql", MYSQL),
    ("mysqladmin", MYSQL),
    ("mysqldump", MYSQL),
    ("podman", &[apart("-p")]),
    ("redis-cli", &[apart("-a")]),
    ("sshpass", &[Flag { name: b"-p", is_apart: true, is_attached: true, is_pair: false }]),
    ("unzip", &[apart("-P")]),
    ("zip", &[apart("-P")]),
];

/// The flags of this command, if it is a known one. `docker run -p 80:80` has ports, `docker login -p` a password.
pub(super) fn flags(command: &[u8], rest: &[u8]) -> &'static [Flag] {
    let Some((name, flags)) = COMMANDS.iter().find(|(name, _)| name.as_bytes() == command) else { return &[] };
    let is_login = || rest.iter().take(200).copied().collect::<Vec<_>>().windows(5).any(|part| part == b"login");
    if matches!(*name, "docker" | "podman") && !is_login() { &[] } else { flags }
}

impl Scanner<'_> {
    /// The arguments of a known command that are literals of a list.
    pub(super) fn take_arguments(&mut self, from: usize, to: usize, flags: &[Flag]) {
        let to = to.min(from + MAX_COMMAND_BYTES);
        let (mut at, mut waiting) = (from, None);
        loop {
            at = self.skip_blank(at, to, true);
            if at >= to || self.text[at] != b',' {
                return;
            }
            let Some((quote, _)) = self.quote_after(at + 1, to) else { return };
            let Some(word) = self.literal(quote, to) else { return };
            waiting = self.take_argument(word.start, word.end, waiting, flags);
            at = word.next;
        }
    }

    /// The arguments of a known command in a line of a shell.
    pub(super) fn take_shell_arguments(&mut self, from: usize, to: usize, flags: &[Flag]) {
        let to = to.min(from + MAX_COMMAND_BYTES);
        let (mut at, mut waiting) = (from, None);
        while at < to {
            at = self.skip_blank(at, to, false);
            if at >= to || b"\n;|&#".contains(&self.text[at]) {
                break;
            }
            let quote = self.text[at];
            let word = b"\"'".contains(&quote).then(|| self.literal(at, to)).flatten();
            let (start, end, next) = if let Some(word) = word {
                (word.start, word.end, word.next)
            } else {
                let length = self.run(at, to, |byte| !byte.is_ascii_whitespace() && !b";|&\"'".contains(&byte));
                (at, at + length, at + length.max(1))
            };
            waiting = self.take_argument(start, end, waiting, flags);
            at = next;
        }
        self.commanded.set(at);
    }

    /// Masks one argument. Returns whether the next one is the value of a flag, and of which kind.
    pub(super) fn take_argument(
        &mut self,
        start: usize,
        end: usize,
        waiting: Option<bool>,
        flags: &[Flag],
    ) -> Option<bool> {
        let word = &self.text[start..end];
        if let Some(is_pair) = waiting {
            self.take_secret_argument(start, end, is_pair);
            return None;
        }
        for flag in flags {
            if word == flag.name {
                return flag.is_apart.then_some(flag.is_pair);
            }
            if flag.is_attached && word.starts_with(flag.name) && !flag.name.starts_with(b"--") {
                self.take_secret_argument(start + flag.name.len(), end, flag.is_pair);
                return None;
            }
        }
        None
    }

    pub(super) fn take_secret_argument(&mut self, mut start: usize, end: usize, is_pair: bool) {
        if is_pair {
            let Some(colon) = self.text[start..end].iter().position(|byte| *byte == b':') else { return };
            start += colon + 1;
        }
        if start < end && !is_placeholder(&self.text[start..end]) {
            self.spans.push((start, end));
        }
    }
}

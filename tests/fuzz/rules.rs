//! What callers ask of a sandbox: whoever has not the right gets nothing that the settings do not give, and no number of anybody's
//! becomes another one.

use pylair_sandbox::{Limits, Profile, Settings, Terms, Wish, paths::Protected, rules::Asker};

use crate::{
    Target,
    mutate::{self, Random},
};

pub struct Rules;

const WORDS: &[&str] = &[
    "profile",
    "open",
    "workspace",
    "sealed",
    "allow_read",
    "allow_write",
    "allow_net",
    "env",
    "memory_mb",
    "cpu_s",
    "processes",
    "open_files",
    "file_size_mb",
    "tmp_mb",
    "disk_mb",
    "wall_s",
    "/tmp",
    "/",
    "/proc/self/root",
    "/usr",
    "example.org:443",
    "[::1]:80",
    "127.0.0.1:1",
    ":0",
    "PATH",
    "PYLAIR_HOME",
    "LD_PRELOAD",
    "A=B",
    "null",
    "18446744073709551615",
    "\"",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
];

impl Target for Rules {
    fn seeds(&self) -> Vec<Vec<u8>> {
        [
            r#""sealed""#,
            r#"{"profile": "workspace", "memory_mb": 100, "processes": 10, "cpu_s": 5}"#,
            r#"{"allow_read": ["/usr/share"], "allow_write": ["/tmp"], "allow_net": ["example.org:443"], "env": ["LANG"]}"#,
            r#"{"profile": "sealed", "open_files": 64, "file_size_mb": 1, "tmp_mb": 1, "disk_mb": 1, "wall_s": 1}"#,
        ]
        .map(|seed| seed.as_bytes().to_vec())
        .to_vec()
    }

    fn words(&self) -> &'static [&'static str] {
        WORDS
    }

    fn mutate(&self, input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
        mutate::json(input, WORDS, random)
    }

    fn run(&mut self, input: &[u8]) -> Result<String, String> {
        let Ok(value) = serde_json::from_slice(input) else { return Ok("no JSON".to_owned()) };
        let wish = match Wish::from_json(value) {
            Ok(wish) => wish,
            Err(error) => return Ok(letters(&error.to_string())),
        };
        let guest = self::settle(wish.clone(), false);
        let admin = self::settle(wish, true);
        if let Ok(terms) = &guest
            && terms.profile.is_confined()
        {
            let usual = self::settle(terms.profile.name().into(), false).map_err(|error| error.to_string())?;
            if !is_within(&terms.limits, &usual.limits) {
                return Err(format!("more than the profile has: {:?}", terms.limits));
            }
            if !(terms.allow_read.is_empty() && terms.allow_write.is_empty() && terms.allow_net.is_empty()) {
                return Err(format!("what only an administrator may give: {terms:?}"));
            }
        }
        for terms in [&guest, &admin].into_iter().flatten().filter(|terms| terms.profile.is_confined()) {
            let memory = terms.limits.memory_mb;
            if terms.limits.address_space_bytes() >> 20 < memory || (memory << 20) >> 20 != memory {
                return Err(format!("{memory} MB are not what was asked for"));
            }
            if terms.env.iter().any(|name| name.starts_with("PYLAIR_")) {
                return Err(format!("variables of our own: {:?}", terms.env));
            }
            let again =
                self::settle(terms.wish.clone(), true).map_err(|error| format!("it is not taken again: {error}"))?;
            if (&again.limits, &again.allow_net, again.profile) != (&terms.limits, &terms.allow_net, terms.profile) {
                return Err(format!("{terms:?} asked for again is {again:?}"));
            }
        }
        let told = |settled: Result<Terms, pylair_sandbox::Error>| match settled {
            Ok(terms) => format!("{:?} {} {}", terms.profile, terms.allow_read.len(), terms.allow_net.len()),
            Err(error) => letters(&error.to_string()),
        };
        Ok(format!("{} {}", told(guest), told(admin)))
    }
}

fn settle(wish: Wish, is_admin: bool) -> Result<Terms, pylair_sandbox::Error> {
    let asker = Asker { is_admin, chosen: None, default: Profile::Workspace };
    Terms::settle(Some(wish), asker, &Settings::default(), &Protected::default())
}

fn is_within(asked: &Limits, usual: &Limits) -> bool {
    let less =
        |asked: Option<u64>, usual: Option<u64>| usual.is_none_or(|usual| asked.is_some_and(|asked| asked <= usual));
    asked.memory_mb <= usual.memory_mb
        && asked.processes <= usual.processes
        && asked.open_files <= usual.open_files
        && asked.file_size_mb <= usual.file_size_mb
        && asked.tmp_mb <= usual.tmp_mb
        && asked.disk_mb <= usual.disk_mb
        && less(asked.cpu_s, usual.cpu_s)
        && less(asked.wall_s, usual.wall_s)
}

fn letters(message: &str) -> String {
    message.split_whitespace().filter(|word| word.bytes().all(|byte| byte.is_ascii_alphabetic())).take(10).collect()
}

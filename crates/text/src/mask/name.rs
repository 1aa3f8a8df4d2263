//! Names of secrets, and how reliably each name means a secret.

/// How closely a value must look like a secret to be masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strength {
    /// Only values that look generated: long, with several digits.
    Random,
    /// Neither a plain word nor punctuation: `token = ","` stays.
    Weak,
    /// Any value: a name like `password` always means a secret.
    Strong,
}

impl Strength {
    pub(super) fn takes(self, value: &[u8]) -> bool {
        let digits = value.iter().filter(|byte| byte.is_ascii_digit()).count();
        let has_letter = value.iter().any(u8::is_ascii_alphabetic);
        let has_space = value.iter().any(u8::is_ascii_whitespace);
        match self {
            Self::Strong => !value.is_empty(),
            Self::Weak => value.len() >= 8 && (has_scheme(value) || ((digits > 0 || value.len() >= 20) && !has_space)),
            Self::Random => value.len() >= 12 && digits >= 4 && has_letter && (!has_space || has_scheme(value)),
        }
    }
}

/// `Bearer …` and the like, the one kind of secret with a space in it.
fn has_scheme(value: &[u8]) -> bool {
    let first = value.split(|byte| *byte == b' ').next().unwrap_or_default();
    value.split(|byte| *byte == b' ').count() == 2
        && [&b"Bearer"[..], b"Basic", b"Token", b"token", b"bearer"].contains(&first)
}

/// Words before `key` that make it a secret.
const KEYS: &[&str] = &[
    "access",
    "account",
    "api",
    "auth",
    "client",
    "deploy",
    "encryption",
    "master",
    "private",
    "secret",
    "service",
    "session",
    "shared",
    "signing",
    "ssh",
    "storage",
    "subscription",
];

/// Whether a name may mean a secret, judged by its end. A fast check, since most words of a program do not.
pub(super) fn could_be(name: &[u8]) -> bool {
    let end = name.iter().rposition(|byte| !byte.is_ascii_digit() && *byte != b'_').map_or(0, |last| last + 1);
    let [.., a, b, c] = name[..end] else { return false };
    matches!(
        &[a | 0x20, b | 0x20, c | 0x20],
        b"ord"
            | b"ass"
            | b"ode"
            | b"swd"
            | b"pwd"
            | b"ase"
            | b"kie"
            | b"ret"
            | b"ken"
            | b"ion"
            | b"key"
            | b"ial"
            | b"als"
            | b"ies"
    )
}

/// Returns how reliably this name means a secret.
pub(super) fn strength(name: &str) -> Option<Strength> {
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
    let last = name.bytes().last()?.to_ascii_lowercase();
    let ends = |end: &str| {
        let at = name.len().checked_sub(end.len())?;
        (name.is_char_boundary(at) && name[at..].eq_ignore_ascii_case(end)).then_some(at)
    };
    // As a separate word: `access_token`, `accessToken`, `ACCESS-TOKEN`, but not `broken`.
    let is_own_word = |at: usize| {
        let (before, own) = (name[..at].bytes().last(), name.as_bytes()[at]);
        before.is_none_or(|byte| {
            byte == b'_'
                || byte == b'-'
                || byte.is_ascii_digit()
                || (byte.is_ascii_lowercase() && own.is_ascii_uppercase())
        })
    };
    let word = |end: &str, strength| ends(end).filter(|at| is_own_word(*at)).map(|_| strength);
    match last {
        b'd' => ends("password")
            .or_else(|| ends("passwd"))
            .map(|_| Strength::Strong)
            .or_else(|| word("pwd", Strength::Strong)),
        b'e' => ends("passphrase")
            .or_else(|| ends("passcode"))
            .map(|_| Strength::Strong)
            .or_else(|| word("cookie", Strength::Weak)),
        b't' => word("secret", Strength::Strong),
        b'n' => word("token", Strength::Weak)
            .or_else(|| ends("authtoken").map(|_| Strength::Weak))
            .or_else(|| word("authorization", Strength::Weak)),
        b'y' => ends("apikey").map(|_| Strength::Strong).or_else(|| {
            let at = ends("key").filter(|at| is_own_word(*at))?;
            let before = name[..at].trim_end_matches(['_', '-']);
            let is_one = |kind: &&str| {
                let start = before.len().checked_sub(kind.len());
                start.is_some_and(|start| before.is_char_boundary(start) && before[start..].eq_ignore_ascii_case(kind))
            };
            KEYS.iter().any(is_one).then_some(Strength::Strong)
        }),
        b'l' => word("credential", Strength::Weak),
        // `pass` alone is Python.
        b's' if name.len() > 4 && ends("pass").is_some() => word("pass", Strength::Weak),
        b's' => word("credentials", Strength::Weak).or_else(|| word("cookies", Strength::Weak)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_like_secrets_are_known_in_every_spelling() {
        for name in [
            "password",
            "PASSWORD",
            "db_password",
            "dbpassword",
            "DB-PASSWORD",
            "password2",
            "userPassword",
            "passwd",
            "passphrase",
            "pwd",
            "DB_PWD",
            "secret",
            "client_secret",
            "clientSecret",
            "token",
            "ACCESS_TOKEN",
            "accessToken",
            "authtoken",
            "GITHUB_TOKEN",
            "api_key",
            "apikey",
            "API_KEY",
            "apiKey",
            "X-Api-Key",
            "private_key",
            "AWS_SECRET_ACCESS_KEY",
            "SECRET_KEY",
            "credential",
            "credentials",
            "authorization",
            "Authorization",
            "cookie",
            "Cookie",
            "session_key",
        ] {
            assert!(strength(name).is_some() && could_be(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn ordinary_names_are_not() {
        for name in [
            "token_count",
            "tokenize",
            "tokens",
            "tokenizer",
            "broken",
            "key",
            "keys",
            "primary_key",
            "sort_key",
            "public_key",
            "password_hash",
            "password_field",
            "secret_name",
            "is_secretary",
            "secretary",
            "access_key_id",
            "monkey",
            "cookiecutter",
            "authorize",
            "author",
            "passwords_seen",
            "credentialed",
            "keyword",
            "hockey",
            "",
            "é",
            "x",
        ] {
            assert!(strength(name).is_none(), "{name}");
        }
    }
}

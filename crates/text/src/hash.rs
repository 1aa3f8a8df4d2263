//! SHA-256 and its digits, for tokens and the audit record.

use std::{
    fmt::Write,
    io::{self, Read},
};

use sha2::{Digest, Sha256};

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Of everything that can be read.
pub fn sha256_of(mut from: impl Read) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            length => hash.update(&buffer[..length]),
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// The 32 bytes that 64 hexadecimal digits are.
pub fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_back() {
        let hash = sha256(b"x");
        assert_eq!(sha256_of(&b"x"[..]).unwrap(), hash);
        assert_eq!(unhex(&hex(&hash)), Some(hash));
        assert_eq!(unhex("abc"), None);
        assert_eq!(unhex(&"zz".repeat(32)), None);
    }
}

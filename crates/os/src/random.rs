//! Random names from the kernel's random bytes.

use std::io;

use pylair_text::hash::hex;

/// Returns two hexadecimal digits for each of `bytes` random bytes.
pub fn digits(bytes: usize) -> String {
    try_digits(bytes).expect("the kernel has random bytes")
}

/// Like [`digits`], for callers that can report an error.
pub fn try_digits(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(hex(&random))
}

/// Returns eight random letters of an alphabet.
pub fn letters(alphabet: &[u8; 32]) -> String {
    let mut random = [0; 8];
    getrandom::fill(&mut random).expect("the kernel has random bytes");
    random.iter().map(|byte| char::from(alphabet[usize::from(byte % 32)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_length_and_differ() {
        assert_eq!(digits(4).len(), 8);
        assert!(digits(8).bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(digits(8), digits(8));
        let alphabet = b"abcdefghijklmnopqrstuvwxyz234567";
        let name = letters(alphabet);
        assert!(name.len() == 8 && name.bytes().all(|byte| alphabet.contains(&byte)), "{name}");
    }
}

//! The token of the HTTP door: a file of mode 0600 in the data directory.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use subtle::ConstantTimeEq;

/// The token, made if there is none. A file that others can read is not trusted and replaced.
pub fn load_or_create(path: &Path) -> io::Result<String> {
    use std::fmt::Write as _;
    if let Ok(metadata) = fs::symlink_metadata(path) {
        let private = metadata.mode().trailing_zeros() >= 6 && metadata.uid() == rustix::process::getuid().as_raw();
        let token = fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        if metadata.is_file() && private && token.len() >= 32 {
            return Ok(token);
        }
        fs::remove_file(path)?;
    }
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let token = random.iter().fold(String::new(), |mut token, byte| {
        let _infallible = write!(token, "{byte:02x}");
        token
    });
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    Ok(token)
}

/// Compares without telling by the time it takes how much was right.
pub fn matches(given: &str, token: &str) -> bool {
    given.as_bytes().ct_eq(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_stays_until_somebody_else_could_read_it() {
        let path = std::env::temp_dir().join(format!("pylair-token-{}", std::process::id()));
        let _absent = fs::remove_file(&path);
        let first = load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(load_or_create(&path).unwrap(), first);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let second = load_or_create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_ne!(second, first);
        assert!(matches(&second, &second) && !matches(&first, &second) && !matches("", &second));
    }
}

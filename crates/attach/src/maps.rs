//! The mappings of a process, as `/proc/PID/maps` tells them. Pure.

use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub executable: bool,
    pub readable: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// The file, as its process sees it, or a name such as `[vdso]`. Empty for memory that has none.
    pub path: String,
}

impl Mapping {
    /// The last part of the path.
    pub fn name(&self) -> &str {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(&self.path);
        path.rsplit('/').next().unwrap_or_default()
    }
}

/// Lines that are not understood are left out: what is not there cannot be used.
pub fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mapping> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let mut fields = rest.splitn(5, ' ');
    let permissions = fields.next()?;
    let offset = fields.next()?;
    let path = fields.nth(2).unwrap_or_default().trim_start();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        executable: permissions.contains('x'),
        readable: permissions.contains('r'),
        offset: hex(offset)?,
        path: path.to_owned(),
    })
}

/// The files that are mapped, each with where its first byte is, in the order of their addresses.
pub fn files(mappings: &[Mapping]) -> Vec<&Mapping> {
    let mut first: BTreeMap<&str, &Mapping> = BTreeMap::new();
    for mapping in mappings.iter().filter(|mapping| mapping.path.starts_with('/') && mapping.offset == 0) {
        first.entry(&mapping.path).or_insert(mapping);
    }
    let mut files: Vec<_> = first.into_values().collect();
    files.sort_by_key(|mapping| mapping.start);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0a0000000-55d0a0060000 r--p 00000000 fe:00 1234                       /opt/my python/bin/python3.11
55d0a0060000-55d0a0300000 r-xp 00060000 fe:00 1234                       /opt/my python/bin/python3.11
7f00c0000000-7f00c0001000 rw-p 00000000 00:00 0 
7f00c1000000-7f00c1028000 r--p 00000000 fe:00 99                         /usr/lib/libc.so.6 (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
garbage
";

    #[test]
    fn paths_with_blanks_and_mappings_without_a_path_are_read() {
        let mappings = parse(TEXT);
        assert_eq!(mappings.len(), 5);
        assert_eq!(mappings[1].path, "/opt/my python/bin/python3.11");
        assert!(mappings[1].executable && mappings[1].readable && mappings[1].start == 0x55d0_a006_0000);
        assert_eq!((mappings[1].offset, mappings[2].path.as_str()), (0x60000, ""));
        assert_eq!(mappings[3].name(), "libc.so.6");
    }

    #[test]
    fn each_file_is_named_once() {
        let mappings = parse(TEXT);
        let names: Vec<_> = files(&mappings).iter().map(|mapping| mapping.name()).collect();
        assert_eq!(names, ["python3.11", "libc.so.6"]);
    }
}

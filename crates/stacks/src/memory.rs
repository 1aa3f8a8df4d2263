//! Another process's memory and what is mapped in it, read while it runs: nothing in it can be trusted, and nothing stays as it is.
//! Every read is bounded, a failed one is an error and never a wait.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// Of anything that is read at once.
const MAX_READ_BYTES: usize = 64 * 1024;
/// Of a program or library: the table of its sections and their names.
const MAX_SECTIONS: usize = 512;
const MAX_SECTION_NAMES_BYTES: usize = 64 * 1024;
const SECTION_HEADER_BYTES: usize = 64;

#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pub pid: i32,
}

impl Memory {
    pub fn read(self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let address = usize::try_from(address).map_err(io::Error::other)?;
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: buffer.len() };
        // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`, and only reads from the other process.
        let read = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(read) {
            Ok(read) if read == buffer.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    pub fn bytes(self, address: u64, count: usize) -> io::Result<Vec<u8>> {
        if count > MAX_READ_BYTES {
            return Err(io::Error::other("it is too large to be what it should be"));
        }
        let mut bytes = vec![0; count];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    pub fn array<const N: usize>(self, address: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    pub fn word(self, address: u64) -> io::Result<u64> {
        Ok(u64::from_ne_bytes(self.array(address)?))
    }

    pub fn byte(self, address: u64) -> io::Result<u8> {
        Ok(self.array::<1>(address)?[0])
    }

    /// A C string, up to its end or so many bytes.
    pub fn text(self, address: u64, max_bytes: usize) -> io::Result<String> {
        // It may end right before memory that is not there.
        let bytes = self.bytes(address, max_bytes).or_else(|_| {
            let mut bytes = Vec::new();
            while bytes.len() < max_bytes {
                match self.byte(address + bytes.len() as u64)? {
                    0 => break,
                    byte => bytes.push(byte),
                }
            }
            io::Result::Ok(bytes)
        })?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

/// A file that is mapped from its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    pub path: String,
    pub start: u64,
}

/// The programs and libraries in a process.
pub fn mapped(pid: i32) -> io::Result<Vec<Mapped>> {
    Ok(parse_maps(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/maps"))?)))
}

fn parse_maps(maps: &str) -> Vec<Mapped> {
    let mapped = maps.lines().filter_map(|line| {
        // Addresses, permissions, offset, device, inode, and a path that may hold spaces.
        let path = line.get(line.find('/')?..)?;
        let mut fields = line.split_ascii_whitespace();
        let (start, _) = fields.next()?.split_once('-')?;
        let offset = fields.nth(1)?;
        let start = u64::from_str_radix(start, 16).ok()?;
        (u64::from_str_radix(offset, 16) == Ok(0)).then(|| Mapped { path: path.to_owned(), start })
    });
    let mut found: Vec<Mapped> = Vec::new();
    for one in mapped {
        if !found.iter().any(|other| other.path == one.path) {
            found.push(one);
        }
    }
    found
}

/// Opens a file as the process sees it. No link in its root leads out of that root, and what is no regular file is refused.
pub fn open_in_root(pid: i32, path: &Path) -> io::Result<File> {
    let root = rustix::fs::open(format!("/proc/{pid}/root"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file: File = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)?.into();
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Where a section of a mapped program or library is in memory.
pub fn find_section(pid: i32, mapped: &Mapped, name: &str) -> io::Result<Option<u64>> {
    // The program itself may have been replaced or deleted since it was started.
    let program = format!("/proc/{pid}/exe");
    let is_program = fs::read_link(&program).is_ok_and(|path| path == Path::new(&mapped.path));
    let file: File = if is_program {
        rustix::fs::openat(CWD, program, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into()
    } else {
        open_in_root(pid, Path::new(&mapped.path))?
    };
    Ok(section_address(&file, name)?.map(|address| address.wrapping_add(mapped.start)))
}

/// The address of a section, counted from where the file's beginning is mapped.
fn section_address(file: &impl FileExt, name: &str) -> io::Result<Option<u64>> {
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0)?;
    if &header[..5] != b"\x7fELF\x02" {
        return Ok(None);
    }
    let half = |bytes: &[u8], at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
    let (segments, segment_count) = (word_at(&header, 32), half(&header, 56).min(MAX_SECTIONS));
    let (sections, section_count) = (word_at(&header, 40), half(&header, 60).min(MAX_SECTIONS));
    let mut table = vec![0; section_count * SECTION_HEADER_BYTES];
    file.read_exact_at(&mut table, sections)?;
    let table: Vec<_> = table.chunks_exact(SECTION_HEADER_BYTES).collect();
    let Some(strings) = table.get(half(&header, 62)) else { return Ok(None) };
    let size = usize::try_from(word_at(strings, 32)).map_or(0, |size| size.min(MAX_SECTION_NAMES_BYTES));
    let mut names = vec![0; size];
    file.read_exact_at(&mut names, word_at(strings, 24))?;
    let named = |section: &&&[u8]| {
        let at = u32::from_ne_bytes([section[0], section[1], section[2], section[3]]) as usize;
        names.get(at..).is_some_and(|rest| rest.starts_with(name.as_bytes()) && rest.get(name.len()) == Some(&0))
    };
    let Some(section) = table.iter().find(named) else { return Ok(None) };
    // A program that is not made to be moved names absolute addresses: those of its first segment are where it is mapped.
    let mut lowest = None;
    for index in 0..segment_count {
        const LOAD: u8 = 1;
        let mut segment = [0; 56];
        file.read_exact_at(&mut segment, segments.wrapping_add(index as u64 * 56))?;
        if segment[..4] == [LOAD, 0, 0, 0] {
            let address = word_at(&segment, 16).wrapping_sub(word_at(&segment, 8));
            lowest = Some(lowest.map_or(address, |other: u64| other.min(address)));
        }
    }
    Ok(Some(word_at(section, 16).wrapping_sub(lowest.unwrap_or(0))))
}

/// Eight bytes as a number; they are there, or this is a bug.
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes are eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_where_they_begin_in_memory() {
        let maps = "55d0-55d4 r--p 00000000 08:01 7 /usr/bin/my python\n55d4-55e0 r-xp 00004000 08:01 7 /usr/bin/my python\n\
                    7f00-7f01 rw-p 00000000 00:00 0\n7f10-7f20 r--p 00000000 08:01 9 /lib/libpython3.14.so.1.0\n\
                    7ff0-7ff1 rw-p 00000000 00:00 0 [stack]\n";
        let wanted = [("/usr/bin/my python", 0x55d0), ("/lib/libpython3.14.so.1.0", 0x7f10)];
        assert_eq!(parse_maps(maps), wanted.map(|(path, start)| Mapped { path: path.to_owned(), start }));
    }

    #[test]
    fn our_own_memory_is_read_and_memory_that_is_not_there_is_an_error() {
        let memory = Memory { pid: std::process::id().cast_signed() };
        let text = c"text".to_owned();
        assert_eq!(memory.text(text.as_ptr().addr() as u64, 5).unwrap(), "text");
        assert!(memory.word(8).is_err());
        assert!(memory.bytes(0, MAX_READ_BYTES + 1).is_err());
    }

    #[test]
    fn a_section_of_our_own_program_is_where_its_bytes_are() {
        let pid = std::process::id().cast_signed();
        let program = fs::read_link("/proc/self/exe").unwrap();
        let all = mapped(pid).unwrap();
        let ours = all.iter().find(|mapped| Path::new(&mapped.path) == program).unwrap();
        let address = find_section(pid, ours, ".rodata").unwrap().expect("every program has one");
        assert!(Memory { pid }.word(address).is_ok());
        assert_eq!(find_section(pid, ours, ".no-such-section").unwrap(), None);
    }
}

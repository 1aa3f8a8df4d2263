//! The exported symbols of a program or library, read from the memory it is loaded in.
//!
//! The dynamic symbol table is part of what is loaded, so no file has to be opened: it does not matter if the file was replaced, or
//! lies in another mount namespace. It takes a few reads of some ten kilobytes, less than asking a cache whether the file has changed.

use std::{collections::BTreeMap, io, ops::Range};

/// Whatever can be read from at addresses of a process.
pub trait Memory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()>;
}

const MAX_SEGMENTS: u64 = 64;
const MAX_DYNAMIC: u64 = 256;
const MAX_SYMBOLS: u64 = 1 << 20;
const MAX_NAMES: u64 = 64 << 20;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const SYMBOL_BYTES: u64 = 24;

/// What kind of program a mapped file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Bits32,
    Bits64,
}

/// Whether an ELF file is mapped here, and for which width of machine.
pub fn class(memory: &dyn Memory, base: u64) -> Option<Class> {
    let mut identity = [0; 16];
    memory.read(base, &mut identity).ok()?;
    match (&identity[..4], identity[4]) {
        (b"\x7fELF", 1) => Some(Class::Bits32),
        (b"\x7fELF", 2) => Some(Class::Bits64),
        _ => None,
    }
}

/// Where those of `names` are in this process that the file mapped at `base` exports. Nothing for what is no ELF file of 64 bits.
pub fn symbols<'n>(memory: &dyn Memory, base: u64, names: &[&'n str]) -> io::Result<BTreeMap<&'n str, Range<u64>>> {
    if class(memory, base) != Some(Class::Bits64) {
        return Ok(BTreeMap::new());
    }
    let header = bytes(memory, base, 64)?;
    let (table, size, count) = (word(&header, 32), u64::from(half(&header, 54)), u64::from(half(&header, 56)));
    if size != 56 || count > MAX_SEGMENTS {
        return Ok(BTreeMap::new());
    }
    let table = bytes(memory, base.wrapping_add(table), size * count)?;
    let segments = || table.chunks_exact(56).map(|entry| (quarter(entry, 0), word(entry, 8), word(entry, 16), entry));
    // What is mapped at `base` is the segment that begins the file; the rest is as far from it as the file says.
    let Some((.., first_address, _)) = segments().find(|(kind, offset, ..)| *kind == PT_LOAD && *offset == 0) else {
        return Ok(BTreeMap::new());
    };
    let bias = base.wrapping_sub(first_address);
    let Some((.., dynamic, entry)) = segments().find(|(kind, ..)| *kind == PT_DYNAMIC) else {
        return Ok(BTreeMap::new());
    };
    let length = word(entry, 40).min(MAX_DYNAMIC * 16);
    let dynamic = bytes(memory, dynamic.wrapping_add(bias), length)?;
    let entries: BTreeMap<u64, u64> = dynamic
        .chunks_exact(16)
        .map(|entry| (word(entry, 0), word(entry, 8)))
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    // glibc's loader has made these addresses, musl's leaves them as they are in the file.
    let address = |tag| entries.get(&tag).map(|value| if *value >= base { *value } else { value.wrapping_add(bias) });
    let (Some(table), Some(strings), Some(strings_size)) =
        (address(DT_SYMTAB), address(DT_STRTAB), entries.get(&DT_STRSZ))
    else {
        return Ok(BTreeMap::new());
    };
    let count = match (address(DT_GNU_HASH), address(DT_HASH)) {
        (Some(hash), _) => count_by_gnu_hash(memory, hash)?,
        (None, Some(hash)) => u64::from(quarter(&bytes(memory, hash, 8)?, 4)),
        (None, None) => 0,
    };
    let table = bytes(memory, table, count.min(MAX_SYMBOLS) * SYMBOL_BYTES)?;
    let strings = bytes(memory, strings, (*strings_size).min(MAX_NAMES))?;
    let mut found = BTreeMap::new();
    for symbol in table.chunks_exact(24) {
        let (section, value, size) = (half(symbol, 6), word(symbol, 8), word(symbol, 16));
        if section == 0 || value == 0 {
            continue;
        }
        let name = strings.get(quarter(symbol, 0) as usize..).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if let Some(wanted) = names.iter().find(|wanted| wanted.as_bytes() == name) {
            let address = value.wrapping_add(bias);
            found.insert(*wanted, address..address.saturating_add(size));
        }
    }
    Ok(found)
}

/// A GNU hash table does not say how many symbols there are: the last chain's end does.
fn count_by_gnu_hash(memory: &dyn Memory, address: u64) -> io::Result<u64> {
    let header = bytes(memory, address, 16)?;
    let [buckets, first, bloom] = [0, 4, 8].map(|at| u64::from(quarter(&header, at)));
    if buckets > MAX_SYMBOLS || bloom > MAX_SYMBOLS {
        return Ok(0);
    }
    let buckets_at = address + 16 + bloom * 8;
    let table = bytes(memory, buckets_at, buckets * 4)?;
    let last = table.chunks_exact(4).map(|bucket| u64::from(quarter(bucket, 0))).max().unwrap_or(0);
    if last < first || last > MAX_SYMBOLS {
        return Ok(0);
    }
    let mut at = last;
    while at < MAX_SYMBOLS {
        let hash = bytes(memory, buckets_at + buckets * 4 + (at - first) * 4, 4)?;
        at += 1;
        if hash[0] & 1 == 1 {
            break;
        }
    }
    Ok(at)
}

fn bytes(memory: &dyn Memory, address: u64, length: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut buffer = vec![0; length];
    memory.read(address, &mut buffer)?;
    Ok(buffer)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn quarter(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{maps, memory::ProcessMemory};

    #[test]
    fn symbols_of_a_library_in_this_process_are_where_they_are() {
        let mappings = maps::parse(&std::fs::read_to_string("/proc/self/maps").unwrap());
        let libc = maps::files(&mappings).into_iter().find(|file| file.name().starts_with("libc.so")).unwrap();
        let memory = ProcessMemory::open(std::process::id().cast_signed()).unwrap();
        let found = symbols(&memory, libc.start, &["getpid", "no_such_function"]).unwrap();
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), ["getpid"]);
        let here: unsafe extern "C" fn() -> libc::pid_t = libc::getpid;
        assert_eq!(found["getpid"].start, here as *const () as u64);
    }

    #[test]
    fn what_is_no_elf_file_has_no_symbols() {
        struct Text;
        impl Memory for Text {
            fn read(&self, _: u64, buffer: &mut [u8]) -> io::Result<()> {
                buffer.fill(b'x');
                Ok(())
            }
        }
        assert!(symbols(&Text, 4096, &["getpid"]).unwrap().is_empty());
    }
}

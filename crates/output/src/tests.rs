//! Captures, excerpts and the outputs directory through their public API, on real files.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::{Capture, Cursor, Error, Excerpt, Limits, Outputs, Read, Stream, Which};
use pylair_os::clock::Clock;

const URI: &str = "pylair://output/cell";
const OWNER: &str = "me";

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pylair-output-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        // Of an earlier process with the same id.
        _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn outputs(&self, limits: Limits) -> Outputs {
        Outputs::open(&self.0, limits).unwrap()
    }

    /// Where the files of the one owner are.
    fn owned(&self) -> PathBuf {
        self.0.join(OWNER)
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.owned())
            .into_iter()
            .flatten()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

fn read_all(capture: &Capture) -> Vec<(Stream, String)> {
    let mut all = Vec::new();
    let mut cursor = Cursor::default();
    loop {
        let Read { parts, cursor: next, skipped_bytes } = capture.read_from(cursor);
        assert_eq!(skipped_bytes, 0);
        if parts.is_empty() {
            return all;
        }
        all.extend(parts);
        cursor = next;
    }
}

fn text_of(parts: &[(Stream, String)], which: Which) -> String {
    parts.iter().filter(|(stream, _)| which.takes(*stream)).map(|(_, text)| text.as_str()).collect()
}

fn pages(outputs: &Outputs, id: &str, which: Which, limit: usize) -> String {
    let mut text = String::new();
    let mut offset = Some(0);
    while let Some(from) = offset {
        let page = outputs.read(id, which, from, limit).unwrap();
        let length: usize = page.parts.iter().map(|(_, part)| part.len()).sum();
        assert!(length <= limit.max(4), "{length} bytes in a page of {limit}");
        text.push_str(&text_of(&page.parts, which));
        offset = page.next;
    }
    text
}

#[test]
fn bytes_become_text_however_they_are_cut() {
    fn check(bytes: &[u8], expect: &str) {
        let scratch = Scratch::new();
        let outputs = scratch.outputs(Limits::default());
        for size in 1..=bytes.len().min(9) {
            let capture = outputs.capture(OWNER, "cell").unwrap();
            for chunk in bytes.chunks(size) {
                capture.push(Stream::Stdout, chunk);
            }
            capture.finish();
            assert_eq!(text_of(&read_all(&capture), Which::Merged), expect, "in chunks of {size}");
        }
    }
    check(b"plain\n", "plain\n");
    check("zażółć 日本語 🦀🦀 é".as_bytes(), "zażółć 日本語 🦀🦀 é");
    check(b"a\0b\0", "a\0b\0");
    check(b"\xff\xfe\x80", "\\xff\\xfe\\x80");
    check(b"ok \xe2\x28 \xf0\x9f\xa6 end", "ok \\xe2( \\xf0\\x9f\\xa6 end");
    check(b"cut \xf0\x9f\xa6", "cut \\xf0\\x9f\\xa6");
    check(b"cut \xc3", "cut \\xc3");
    // A lone surrogate, as `surrogatepass` would write it, and an overlong slash.
    check(b"\xed\xa0\x80 \xc0\xaf", "\\xed\\xa0\\x80 \\xc0\\xaf");
    check(b"\xf0\xf0\xf0\x9f\xa6\x80", "\\xf0\\xf0🦀");
}

#[test]
fn a_character_cut_on_one_stream_waits_while_the_other_prints() {
    let scratch = Scratch::new();
    let capture = scratch.outputs(Limits::default()).capture(OWNER, "cell").unwrap();
    capture.push(Stream::Stdout, b"\xc3");
    capture.push(Stream::Stderr, b"\xe2\x82");
    capture.push(Stream::Stdout, b"\xa9 out");
    capture.push(Stream::Stderr, b"\xac err");
    let expect = [(Stream::Stdout, "é out".to_owned()), (Stream::Stderr, "€ err".to_owned())];
    assert_eq!(read_all(&capture), expect);
}

#[test]
fn random_bytes_give_the_same_text_in_any_chunks() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    let mut numbers = Numbers(7);
    let alphabet = ["a", "\n", "é", "日", "🦀", "\u{0}"];
    let mut bytes = Vec::new();
    while bytes.len() < 200_000 {
        if numbers.below(4) == 0 {
            bytes.push(u8::try_from(numbers.below(256)).unwrap());
        } else {
            bytes.extend_from_slice(alphabet[numbers.below(alphabet.len())].as_bytes());
        }
    }
    let whole = outputs.capture(OWNER, "whole").unwrap();
    whole.push(Stream::Stdout, &bytes);
    whole.finish();
    let expect = text_of(&read_all(&whole), Which::Merged);
    let chunks = outputs.capture(OWNER, "chunks").unwrap();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at((numbers.below(50) + 1).min(rest.len()));
        chunks.push(Stream::Stdout, chunk);
        rest = after;
    }
    let finished = chunks.finish();
    assert!(text_of(&read_all(&chunks), Which::Merged) == expect);
    assert_eq!(finished.total_bytes, expect.len() as u64);
    assert_eq!(finished.total_chars, expect.chars().count() as u64);
    assert_eq!(finished.total_lines, expect.lines().count() as u64);
}

#[test]
fn short_output_makes_no_file_and_long_output_a_private_one() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    let short = outputs.capture(OWNER, "short").unwrap();
    short.push(Stream::Stdout, "x".repeat(60_000).as_bytes());
    assert_eq!(short.finish().path, None);
    let long = outputs.capture(OWNER, "long").unwrap();
    long.push(Stream::Stdout, "x".repeat(70_000).as_bytes());
    let path = long.finish().path.unwrap();
    assert_eq!(scratch.files(), ["long.out"]);
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&scratch.0).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn what_an_excerpt_leaves_out_can_be_read_afterwards() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    let text = "a line\n".repeat(1000);
    for finish_first in [true, false] {
        let capture = outputs.capture(OWNER, "cell").unwrap();
        capture.push(Stream::Stdout, text.as_bytes());
        if finish_first {
            capture.finish();
        }
        assert!(capture.snapshot(500, Some(URI)).truncated);
        capture.push(Stream::Stdout, if finish_first { b"" } else { b"more\n" });
        capture.finish();
        drop(capture);
        let expect = if finish_first { text.clone() } else { format!("{text}more\n") };
        assert_eq!(pages(&outputs, "cell", Which::Merged, 1000), expect);
        let info = outputs.info("cell").unwrap();
        assert_eq!((info.finished, info.truncated, info.total_chars), (true, false, expect.len() as u64));
    }
}

#[test]
fn memory_is_bounded_and_the_end_survives_the_limit() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits { max_output_bytes: 200_000, ..Limits::default() });
    let capture = outputs.capture(OWNER, "cell").unwrap();
    let line = "é".repeat(49) + "\n";
    for number in 0..20_000 {
        capture.push(Stream::Stdout, line.as_bytes());
        if number == 1000 {
            assert!(!outputs.info("cell").unwrap().truncated);
        }
    }
    capture.push(Stream::Stderr, b"the end\n");
    assert!(capture.memory() <= 260 * 1024);
    let finished = capture.finish();
    assert!(finished.truncated);
    assert_eq!(finished.total_lines, 20_001);
    assert_eq!(finished.total_bytes, 20_000 * 99 + 8);
    let length = fs::metadata(finished.path.unwrap()).unwrap().len();
    assert!((199_000..201_000).contains(&length), "{length}");

    let excerpt = capture.snapshot(2000, Some(URI));
    assert!(excerpt.merged.text.ends_with("é\nthe end\n"));
    assert!(excerpt.merged.text.contains("; its first "), "{}", excerpt.merged.text);
    assert_eq!(excerpt.stderr.text, "the end\n");
    assert!(capture.memory() <= 70 * 1024);
    drop(capture);
    assert!(outputs.info("cell").unwrap().truncated);
    let stored = pages(&outputs, "cell", Which::Merged, 10_000);
    assert!(stored.starts_with(&line) && stored.len() > 199_000);
}

#[test]
fn a_little_over_the_limit_is_over_the_limit() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits { max_output_bytes: 100_000, ..Limits::default() });
    let capture = outputs.capture(OWNER, "cell").unwrap();
    capture.push(Stream::Stdout, "line\n".repeat(30_000).as_bytes());
    // Memory still has all of it.
    assert_eq!(pages(&outputs, "cell", Which::Merged, 10_000).len(), 150_000);
    assert!(outputs.info("cell").unwrap().truncated);
    let text = capture.snapshot(500, Some(URI)).merged.text;
    assert!(text.contains("; its first 100,000 bytes: pylair://output/cell"), "{text}");
}

#[test]
fn output_goes_on_where_no_file_can_be_made() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    let capture = outputs.capture(OWNER, "cell").unwrap();
    fs::remove_dir_all(&scratch.0).unwrap();
    for number in 0..100_000 {
        capture.push(Stream::Stdout, format!("line {number}\n").as_bytes());
    }
    let finished = capture.finish();
    assert_eq!(finished.path, None);
    assert!(finished.truncated && finished.spool_error.is_some());
    let text = capture.snapshot(1000, Some(URI)).merged.text;
    assert!(text.starts_with("line 0\nline 1\n") && text.ends_with("line 99999\n"), "{text}");
}

fn excerpt_of(parts: &[(Stream, &str)], max_chars: usize) -> Excerpt {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    let capture = outputs.capture(OWNER, "cell").unwrap();
    for (stream, text) in parts {
        capture.push(*stream, text.as_bytes());
    }
    capture.snapshot(max_chars, Some(URI))
}

#[test]
fn excerpts_show_head_and_tail() {
    fn check(text: &str, max_chars: usize, expect: &str) {
        let excerpt = excerpt_of(&[(Stream::Stdout, text)], max_chars);
        assert_eq!(excerpt.merged.text, expect);
        assert_eq!(excerpt.stdout, excerpt.merged);
        assert_eq!(excerpt.stderr.text, "");
        assert_eq!(excerpt.truncated, text != expect);
        assert_eq!(excerpt.total_chars, text.chars().count() as u64);
        assert_eq!(excerpt.total_lines, text.lines().count() as u64);
    }
    check("", 100, "");
    check("short\n", 100, "short\n");
    check("exact", 5, "exact");
    check("no room for a note", 7, "no room");
    check("nothing at all", 0, "");
    let letters: String = ('a'..='z').chain('A'..='Z').flat_map(|c| [c, c, c, c, c, c, c, '\n']).collect();
    check(
        &letters,
        200,
        "aaaaaaa\nbbbbbbb\nccccccc\nddddddd\neeeeeee\nfffffff\nggggggg\n\
         [… 38 lines, 304 characters left out; the whole output: pylair://output/cell …]\n\
         TTTTTTT\nUUUUUUU\nVVVVVVV\nWWWWWWW\nXXXXXXX\nYYYYYYY\nZZZZZZZ\n",
    );
    check(
        &"é".repeat(1000),
        200,
        &format!(
            "{}\n[… 873 characters left out; the whole output: pylair://output/cell …]\n{}",
            "é".repeat(63),
            "é".repeat(64)
        ),
    );
}

#[test]
fn streams_share_an_excerpt() {
    let lines = "0123456789\n".repeat(1000);
    let excerpt = excerpt_of(&[(Stream::Stdout, &lines), (Stream::Stderr, "Traceback\n")], 1000);
    assert_eq!(excerpt.stderr.text, "Traceback\n");
    assert!(excerpt.stdout.text.len() > 800);
    assert!(excerpt.merged.text.ends_with("\nTraceback\n"));
    let excerpt = excerpt_of(&[(Stream::Stdout, &lines), (Stream::Stderr, &lines)], 1000);
    assert!(excerpt.stderr.text.chars().count() <= 250);
    assert!(excerpt.stderr.text.contains("left out"));
}

#[test]
fn an_excerpt_is_never_longer_than_asked_and_counts_exactly() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits { max_output_bytes: 300_000, ..Limits::default() });
    let mut numbers = Numbers(3);
    let alphabet = ["a", "7", " ", "\n", "é", "日", "🦀"];
    for round in 0..8 {
        let capture = outputs.capture(OWNER, "cell").unwrap();
        let size = [10, 5_000, 70_000, 400_000][round / 2];
        let mut printed = String::new();
        while printed.len() < size {
            let length = numbers.below(2000);
            let mut text = String::new();
            while text.len() < length {
                text.push_str(alphabet[numbers.below(alphabet.len() - round % 2)]);
            }
            let stream = if numbers.below(3) == 0 { Stream::Stderr } else { Stream::Stdout };
            capture.push(stream, text.as_bytes());
            printed.push_str(&text);
        }
        for max_chars in [0, 1, 50, 130, 200, 333, 1000, 25_000, 500_000] {
            let excerpt = capture.snapshot(max_chars, Some(URI));
            assert!(excerpt.merged.text.chars().count() <= max_chars);
            let apart = excerpt.stdout.text.chars().count() + excerpt.stderr.text.chars().count();
            assert!(apart <= max_chars);
            for text in [&excerpt.merged, &excerpt.stdout, &excerpt.stderr] {
                let shown = match text.text.split_once("[… ") {
                    None => text.text.chars().count(),
                    Some((head, rest)) => {
                        // The line end before the note is ours when the head was cut inside a line.
                        let ours = usize::from(!printed.starts_with(head) && !head.is_empty());
                        let (_, tail) = rest.split_once("…]\n").unwrap();
                        let tail =
                            if tail.starts_with("[repeated: ") { tail.split_once("]\n").unwrap().1 } else { tail };
                        if text == &excerpt.merged {
                            assert!(printed.ends_with(tail));
                            head.chars().count() - ours + tail.chars().count()
                        } else {
                            continue;
                        }
                    }
                };
                assert_eq!(shown as u64 + text.left_out_chars, text.total_chars);
            }
        }
    }
}

#[test]
fn a_huge_line_is_cut_like_anything_else() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    let capture = outputs.capture(OWNER, "cell").unwrap();
    for _ in 0..100 {
        capture.push(Stream::Stdout, "x".repeat(100_000).as_bytes());
    }
    let excerpt = capture.snapshot(1000, Some(URI));
    assert_eq!((excerpt.total_chars, excerpt.total_lines), (10_000_000, 1));
    assert_eq!(excerpt.merged.left_out_lines, 0);
    assert!(excerpt.merged.text.contains("\n[… 9,999,0"), "{}", excerpt.merged.text);
    assert!(capture.memory() <= 260 * 1024);
}

#[test]
fn repeated_lines_are_summed_up() {
    fn check(lines: usize, expect: &str) {
        let scratch = Scratch::new();
        let outputs = scratch.outputs(Limits::default());
        let capture = outputs.capture(OWNER, "cell").unwrap();
        for number in 0..lines {
            capture.push(Stream::Stdout, format!("step {number} loss {}.5\n", number * 7).as_bytes());
            if number % 10 == 0 {
                capture.push(Stream::Stderr, b"warning: slow\n");
            }
        }
        let text = capture.snapshot(2000, None).merged.text;
        let line = text.lines().find(|line| line.starts_with("[repeated: "));
        assert_eq!(line, Some(expect));
    }
    check(1000, "[repeated: 1,000 × step # loss #; 100 × warning: slow]");
    check(10_000, "[repeated: 10,000 × step # loss #; 1,000 × warning: slow]");
    check(200_000, "[repeated: about 200,000 × step # loss #; about 20,000 × warning: slow]");
}

#[test]
fn readers_get_exactly_what_was_pushed_while_it_is_pushed() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    let capture = outputs.capture(OWNER, "cell").unwrap();
    let mut numbers = Numbers(11);
    let chunks: Vec<(Stream, String)> = (0..20_000)
        .map(|number| {
            let stream = if numbers.below(2) == 0 { Stream::Stdout } else { Stream::Stderr };
            (stream, format!("{number} {}\n", "é日🦀".repeat(numbers.below(30))))
        })
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    std::thread::scope(|scope| {
        let readers: Vec<_> = [0, 3, 50]
            .into_iter()
            .map(|pause| {
                let (capture, runtime) = (&capture, runtime.handle());
                scope.spawn(move || {
                    let mut all = Vec::new();
                    let mut cursor = Cursor::default();
                    loop {
                        runtime.block_on(capture.readable(cursor));
                        let read = capture.read_from(cursor);
                        if read.parts.is_empty() {
                            return all;
                        }
                        assert_eq!(read.skipped_bytes, 0);
                        all.extend(read.parts);
                        cursor = read.cursor;
                        // Some fall behind what memory holds.
                        std::thread::sleep(Duration::from_millis(pause));
                    }
                })
            })
            .collect();
        for (stream, text) in &chunks {
            let (first, second) = text.as_bytes().split_at(text.len() / 2);
            capture.push(*stream, first);
            capture.push(*stream, second);
        }
        capture.finish();
        for reader in readers {
            let all = reader.join().unwrap();
            for which in [Which::Merged, Which::Only(Stream::Stdout), Which::Only(Stream::Stderr)] {
                assert!(text_of(&all, which) == text_of(&chunks, which));
            }
        }
    });
}

#[test]
fn a_reader_that_falls_behind_the_limit_is_told() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits { max_output_bytes: 100_000, ..Limits::default() });
    let capture = outputs.capture(OWNER, "cell").unwrap();
    for _ in 0..1000 {
        capture.push(Stream::Stderr, &[b'x'; 1000]);
    }
    let mut cursor = Cursor::default();
    let (mut read, mut skipped) = (0, 0);
    loop {
        let found = capture.read_from(cursor);
        if found.parts.is_empty() {
            break;
        }
        assert!(found.parts.iter().all(|(stream, _)| *stream == Stream::Stderr));
        read += found.parts.iter().map(|(_, text)| text.len() as u64).sum::<u64>();
        skipped += found.skipped_bytes;
        cursor = found.cursor;
    }
    assert!(skipped > 700_000);
    // Skipped bytes include the markers between.
    assert!((1_000_000..1_000_100).contains(&(read + skipped)), "{read} + {skipped}");
}

#[test]
fn ten_megabytes_are_read_in_pages_also_after_a_restart() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    let capture = outputs.capture(OWNER, "cell").unwrap();
    let mut chunks = Vec::new();
    for number in 0..100_000 {
        let stream = if number % 7 == 0 { Stream::Stderr } else { Stream::Stdout };
        let text = format!("line {number} {}\n", "é".repeat(45));
        capture.push(stream, text.as_bytes());
        chunks.push((stream, text));
    }
    let check = |outputs: &Outputs| {
        for (which, limit) in [
            (Which::Merged, 64 * 1024),
            (Which::Merged, 999_983),
            (Which::Only(Stream::Stdout), 100_000),
            (Which::Only(Stream::Stderr), 100_000),
        ] {
            assert!(pages(outputs, "cell", which, limit) == text_of(&chunks, which), "{which:?} {limit}");
        }
        let parts = outputs.read("cell", Which::Merged, 0, 300).unwrap().parts;
        assert_eq!(parts[0], chunks[0]);
        assert_eq!(parts[1].0, Stream::Stdout);
    };
    check(&outputs);
    assert!(!outputs.info("cell").unwrap().finished);
    capture.finish();
    drop((capture, outputs));
    let outputs = scratch.outputs(Limits::default());
    check(&outputs);
    let info = outputs.info("cell").unwrap();
    assert_eq!((info.finished, info.total_lines), (true, 100_000));
    // Anything is a place to begin, also the middle of a character.
    for offset in 5_000_000..5_000_100 {
        let page = outputs.read("cell", Which::Merged, offset, 100).unwrap();
        assert!(!page.parts.is_empty() && !text_of(&page.parts, Which::Merged).contains('\u{fffd}'));
    }
    assert_eq!(outputs.read("cell", Which::Merged, u64::MAX, 100).unwrap().parts, []);
}

#[test]
fn the_file_of_a_killed_daemon_is_readable() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    let capture = outputs.capture(OWNER, "cell").unwrap();
    capture.push(Stream::Stdout, "é\n".repeat(50_000).as_bytes());
    capture.push(Stream::Stderr, "é\n".repeat(50_000).as_bytes());
    // As a kill leaves it: no totals, and the last block may have been cut anywhere.
    let path = scratch.owned().join("cell.out");
    let bytes = fs::read(&path).unwrap();
    fs::write(scratch.owned().join("killed.out"), &bytes[..bytes.len() - 2]).unwrap();
    let info = outputs.info("killed").unwrap();
    assert!(!info.finished);
    let text = pages(&outputs, "killed", Which::Merged, 50_000);
    assert!(text.len() > 130_000 && text.replace("é\n", "").len() <= 2);
    assert_eq!(info.total_bytes, text.len() as u64);
}

#[test]
fn ids_stay_inside_the_directory() {
    fn check(id: &str) {
        let scratch = Scratch::new();
        let outputs = scratch.outputs(Limits::default());
        assert!(matches!(outputs.capture(OWNER, id), Err(Error::BadId { .. })), "{id:?}");
        assert!(matches!(outputs.read(id, Which::Merged, 0, 100), Err(Error::BadId { .. })), "{id:?}");
    }
    check("");
    check("..");
    check("../cell");
    check("a/b");
    check("cell.out");
    check("Cell");
    check("a b");
    check("a\0");
    check("é");
    check(&"a".repeat(65));
}

#[test]
fn strange_files_are_refused() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits::default());
    fs::create_dir(scratch.owned()).unwrap();
    let read = |id| outputs.read(id, Which::Merged, 0, 100);
    assert!(matches!(read("missing"), Err(Error::Unknown { .. })));
    fs::write(scratch.owned().join("short.out"), "x").unwrap();
    assert!(matches!(read("short"), Err(Error::BadFile { .. })));
    fs::write(scratch.owned().join("other.out"), "x".repeat(5000)).unwrap();
    assert!(matches!(read("other"), Err(Error::BadFile { .. })));
    symlink("/etc/passwd", scratch.owned().join("link.out")).unwrap();
    assert!(matches!(read("link"), Err(Error::Io { .. })));
    // A capture replaces what is there instead of writing through it.
    let capture = outputs.capture(OWNER, "link").unwrap();
    capture.push(Stream::Stdout, "x".repeat(100_000).as_bytes());
    assert!(!capture.finish().path.unwrap().is_symlink());
    assert!(matches!(outputs.capture(OWNER, "link"), Err(Error::Taken { .. })));
}

#[test]
fn the_oldest_files_make_room() {
    fn make(outputs: &Outputs, scratch: &Path, id: &str, age_s: u64) {
        let capture = outputs.capture(OWNER, id).unwrap();
        capture.push(Stream::Stdout, "x".repeat(100_000).as_bytes());
        capture.finish();
        let file = fs::File::options().write(true).open(scratch.join(id).with_extension("out")).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age_s)).unwrap();
    }
    fn check(limits: Limits, expect: &[&str]) {
        let scratch = Scratch::new();
        let outputs = scratch.outputs(Limits::default());
        for (id, age_s) in [("d", 10), ("b", 200), ("c", 100), ("a", 5000)] {
            make(&outputs, &scratch.owned(), id, age_s);
        }
        fs::write(scratch.owned().join("notes.txt"), "not ours").unwrap();
        let removed = scratch.outputs(limits).sweep(&Clock::trusted());
        assert_eq!(removed, 4 - expect.len());
        let mut names: Vec<String> = expect.iter().map(|id| format!("{id}.out")).collect();
        names.push("notes.txt".to_owned());
        assert_eq!(scratch.files(), names);
    }
    check(Limits::default(), &["a", "b", "c", "d"]);
    check(Limits { max_files: 2, ..Limits::default() }, &["c", "d"]);
    check(Limits { max_total_bytes: 350_000, ..Limits::default() }, &["b", "c", "d"]);
    check(Limits { max_age: Duration::from_secs(150), ..Limits::default() }, &["c", "d"]);
    check(Limits { max_files: 0, ..Limits::default() }, &[]);
}

#[test]
fn one_owner_makes_room_for_itself_and_is_told() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits { max_total_bytes: 1_000_000, ..Limits::default() });
    let write = |owner: &str, id: &str| {
        let capture = outputs.capture(owner, id).unwrap();
        capture.push(Stream::Stdout, "x".repeat(150_000).as_bytes());
        assert_eq!(capture.finish().spool_error, None);
        capture
    };
    // Held as jobs that have ended hold theirs.
    let mut held = vec![write("quiet", "q")];
    held.extend((0..20).map(|number| write("busy", &format!("b{number}"))));
    let on_disk: u64 = ["quiet", "busy"]
        .iter()
        .flat_map(|owner| fs::read_dir(scratch.0.join(owner)).unwrap())
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(on_disk <= 1_000_000, "{on_disk}");
    assert_eq!(pages(&outputs, "q", Which::Merged, 50_000).len(), 150_000);
    let error = outputs.read("b0", Which::Merged, 0, 100).unwrap_err();
    assert!(matches!(&error, Error::Removed { why, .. } if why.contains("made room")), "{error}");
    assert_eq!(pages(&outputs, "b19", Which::Merged, 50_000).len(), 150_000);
    // Another daemon counts the same.
    drop(held);
    let counted = scratch.outputs(Limits::default());
    assert_eq!(counted.usage("busy")[1].yours, outputs.usage("busy")[1].yours);
}

#[test]
fn outputs_that_are_being_written_stay_within_the_bound() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits { max_total_bytes: 1_000_000, ..Limits::default() });
    let open: Vec<_> = (0..8).map(|number| outputs.capture("busy", &format!("b{number}")).unwrap()).collect();
    for capture in &open {
        capture.push(Stream::Stdout, "x".repeat(400_000).as_bytes());
    }
    let quiet = outputs.capture("quiet", "q").unwrap();
    quiet.push(Stream::Stdout, "x".repeat(200_000).as_bytes());
    assert_eq!(quiet.finish().spool_error, None);
    let told = open.iter().filter_map(|capture| capture.finish().spool_error).collect::<Vec<_>>();
    assert!(!told.is_empty() && told.iter().all(|error| error.contains("no room")), "{told:?}");
    let sizes = ["quiet", "busy"].map(|owner| outputs.usage(owner)[0].yours);
    assert_eq!(sizes, [0, 0], "less than a MB in all");
}

#[test]
fn a_live_capture_keeps_its_file_and_survives_losing_it() {
    let scratch = Scratch::new();
    let outputs = scratch.outputs(Limits { max_files: 0, ..Limits::default() });
    let capture = outputs.capture(OWNER, "cell").unwrap();
    capture.push(Stream::Stdout, "line\n".repeat(100_000).as_bytes());
    assert_eq!(outputs.sweep(&Clock::trusted()), 0);
    capture.finish();
    fs::remove_file(scratch.owned().join("cell.out")).unwrap();
    let text = capture.snapshot(300, Some(URI)).merged.text;
    assert!(text.contains("no longer on disk …]\n") && text.ends_with("line\nline\n"), "{text}");
}

//! The one reader of `/proc/PID/stat`. It uses nothing but the standard library, because keepers, which have no runtime, use it too.

use std::{borrow::Cow, fmt::Display, fs, str::FromStr};

/// The line that the kernel writes about one process. A field is parsed when it is asked for, and is None in a line that was cut before it.
#[derive(Debug, Clone)]
pub struct Stat {
    line: Vec<u8>,
    /// The offsets of the parentheses around the name.
    name: (usize, usize),
}

impl Stat {
    /// Reads the line of a process. Returns None if the process is gone.
    pub fn read(pid: impl Display) -> Option<Self> {
        Self::parse(fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a line. Returns None if it ends inside the name.
    pub fn parse(line: impl Into<Vec<u8>>) -> Option<Self> {
        let line = line.into();
        // The process chooses its name, which may contain any byte, including spaces and parentheses.
        let open = line.iter().position(|byte| *byte == b'(')?;
        let close = line.iter().rposition(|byte| *byte == b')')?;
        (open < close).then_some(Self { line, name: (open, close) })
    }

    pub fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.line[self.name.0 + 1..self.name.1])
    }

    /// The letter for what its first thread is doing.
    pub fn state(&self) -> Option<char> {
        self.field(3)
    }

    /// Whether its first thread has ended, although its parent may not have reaped it yet.
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), Some('Z' | 'X' | 'x'))
    }

    pub fn parent(&self) -> Option<i32> {
        self.field(4)
    }

    pub fn group(&self) -> Option<i32> {
        self.field(5)
    }

    /// The pid of the leader of its process session, who may be dead.
    pub fn session(&self) -> Option<i32> {
        self.field(6)
    }

    /// The number of page faults that needed no disk.
    pub fn minor_faults(&self) -> Option<u64> {
        self.field(10)
    }

    pub fn user_ticks(&self) -> Option<u64> {
        self.field(14)
    }

    pub fn system_ticks(&self) -> Option<u64> {
        self.field(15)
    }

    pub fn threads(&self) -> Option<u64> {
        self.field(20)
    }

    /// When it began, in clock ticks since boot. With the pid it names the process for good.
    pub fn started(&self) -> Option<u64> {
        self.field(22)
    }

    pub fn resident_pages(&self) -> Option<u64> {
        self.field(24)
    }

    /// The wait status of a process that has ended and was not reaped. It is 0 for callers that may not trace the process.
    pub fn exit_status(&self) -> Option<i32> {
        self.field(52)
    }

    /// A field by its number in `proc_pid_stat(5)`, where the state, which follows the name, is number 3.
    fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        let fields = self.line.get(self.name.1 + 2..)?.trim_ascii_end();
        str::from_utf8(fields.split(|byte| *byte == b' ').nth(number - 3)?).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_may_contain_anything() {
        let line = b"7 (a) Z 1 (\xff b) S 4 5 6 0 -1 0 31 0 0 0 250 50 0 0 20 0 3 0 99 8192 12\n";
        let stat = Stat::parse(&line[..]).unwrap();
        assert_eq!((&*stat.name(), stat.state(), stat.has_ended()), ("a) Z 1 (\u{fffd} b", Some('S'), false));
        assert_eq!((stat.parent(), stat.group(), stat.session()), (Some(4), Some(5), Some(6)));
        assert_eq!((stat.minor_faults(), stat.user_ticks(), stat.system_ticks()), (Some(31), Some(250), Some(50)));
        assert_eq!((stat.threads(), stat.started(), stat.resident_pages()), (Some(3), Some(99), Some(12)));
        assert_eq!(stat.exit_status(), None);
    }

    #[test]
    fn the_last_field_is_read_and_a_cut_line_is_not_guessed_at() {
        let line = format!("7 (z) Z 1 {} 768\n", ["0"; 47].join(" "));
        let stat = Stat::parse(line).unwrap();
        assert!(stat.has_ended());
        assert_eq!(stat.exit_status(), Some(768));
        assert!(Stat::parse("7 (cut").is_none());
        assert_eq!(Stat::parse("7 (a)").unwrap().state(), None);
    }

    #[test]
    fn this_process_is_there_and_no_pid_is_that_large() {
        assert_eq!(Stat::read("self").unwrap().parent(), Some(std::os::unix::process::parent_id().cast_signed()));
        assert!(Stat::read(i32::MAX).is_none());
    }
}

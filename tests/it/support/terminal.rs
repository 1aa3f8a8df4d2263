//! A program at a terminal of its own, and a person who types and reads.

use std::{
    fs::File,
    io::{Read, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Instant,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use super::{PATIENCE, Watched};

pub const ENTER: &str = "\r";
pub const TAB: &str = "\t";
pub const UP: &str = "\x1b[A";
pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";

pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// What was shown and not read yet, without the moves of the cursor.
    unread: String,
    /// Bytes of a sequence that has not ended.
    rest: Vec<u8>,
}

impl Terminal {
    pub fn start(mut command: Command) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("there are terminals");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("it has a size");
        let name = ptsname(&master, Vec::new()).expect("it has a name").into_string().expect("a plain one");
        let open = || File::options().read(true).write(true).open(&name).expect("it can be opened");
        command.stdin(Stdio::from(open())).stdout(Stdio::from(open())).stderr(Stdio::from(open()));
        // SAFETY: between fork and exec only these two system calls are made.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().expect("the program starts");
        drop(command);
        let keyboard = File::from(master.try_clone().expect("a descriptor can be had"));
        let (sender, screen) = channel();
        std::thread::spawn(move || read(master, &sender));
        Self { child, keyboard, screen, unread: String::new(), rest: Vec::new() }
    }

    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// Types a line and waits until it is shown, as a person looks at what they type before they press Enter.
    #[track_caller]
    pub fn enter(&mut self, line: &str) {
        self.press(line);
        self.read_until(line);
        self.press(ENTER);
    }

    /// Reads until this text comes, and returns what was before it.
    #[track_caller]
    pub fn read_until(&mut self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.unread.find(text) {
                let before = self.unread[..at].to_owned();
                self.unread.drain(..at + text.len());
                return before;
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.show(&bytes),
                Err(error) => panic!("waiting for {text:?}: {error}; on the screen: {:?}", self.unread),
            }
        }
    }

    /// Colours are kept, everything else that is no text is left out.
    fn show(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let mut at = 0;
        while at < rest.len() {
            if rest[at] != 0x1b {
                let end = rest[at..].iter().position(|byte| *byte == 0x1b).map_or(rest.len(), |length| at + length);
                self.unread.push_str(&String::from_utf8_lossy(&rest[at..end]));
                at = end;
                continue;
            }
            let length = rest[at..].iter().skip(2).position(|byte| (0x40..=0x7e).contains(byte));
            let Some(length) = length else {
                self.rest = rest[at..].to_vec();
                return;
            };
            let sequence = &rest[at..at + length + 3];
            if sequence.ends_with(b"m") {
                self.unread.push_str(&String::from_utf8_lossy(sequence));
            }
            at += sequence.len();
        }
    }

    /// Waits for the end of the program.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        Watched::new(self.child.id().cast_signed()).assert_ends();
        self.child.wait().expect("it can be waited for")
    }
}

fn read(master: OwnedFd, screen: &std::sync::mpsc::Sender<Vec<u8>>) {
    let mut master = File::from(master);
    let mut buffer = [0; 4096];
    // The end of the last program at a terminal is an error to its reader.
    while let Ok(count) = master.read(&mut buffer) {
        if count == 0 || screen.send(buffer[..count].to_vec()).is_err() {
            return;
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may be gone already.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

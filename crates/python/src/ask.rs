//! Running a program to hear what it says. It may be anybody's, so it has limits: of time, of words, and none of its processes outlives
//! the question, unless it leaves its process group.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
};

use pylair_os::{descriptor, inherited};

/// Whoever says more has not understood the question.
const MAX_BYTES: u64 = 64 << 10;
/// How long pipes may stay open after their program: what it has said is read by then.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Said {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Ends the group when it goes out of scope, while the leader's pid cannot be another's yet.
struct Group(Option<Pid>);

impl Group {
    fn end(&mut self) {
        if let Some(id) = self.0.take() {
            // It may have ended this moment.
            let _gone = kill_process_group(id, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the program says until it ends, or has said too much; `None` if it takes too long.
pub(super) async fn listen(mut command: Command, limit: Duration) -> io::Result<Option<Said>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    inherited::give_back(command.as_std_mut());
    let mut child = command.spawn()?;
    let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let mut group = Group(id);
    let id = id.ok_or_else(|| io::Error::other("it has no pid"))?;
    let ended = descriptor::readable(pidfd_open(id, PidfdFlags::empty())?)?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    {
        let pipes = (child.stdout.take(), child.stderr.take());
        let mut reading = std::pin::pin!(async {
            tokio::join!(collect(pipes.0, &mut stdout), collect(pipes.1, &mut stderr));
        });
        let mut pipes_ended = false;
        let until_end = async {
            loop {
                tokio::select! {
                    // Both ended, or one is full: whoever goes on has nothing more to tell.
                    () = &mut reading, if !pipes_ended => pipes_ended = true,
                    ready = ended.readable() => return ready.map(|_| ()),
                }
            }
        };
        match tokio::time::timeout(limit, until_end).await {
            Ok(ready) => ready?,
            Err(_) => return Ok(None),
        }
        // Its background children hold the pipes.
        group.end();
        if !pipes_ended {
            // One that left the group keeps them open.
            let _open = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
        }
    }
    Ok(Some(Said { status: child.wait().await?, stdout, stderr }))
}

/// Reads until the end or the limit, and closes the pipe, so that a program which goes on ends by SIGPIPE.
async fn collect(pipe: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    let Some(pipe) = pipe else { return };
    // What came before an error is kept.
    let _broken = pipe.take(MAX_BYTES).read_to_end(into).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn endless_words_are_cut_and_their_program_ends() {
        let said = listen(shell("yes | cat & exec yes"), Duration::from_secs(30)).await.unwrap().expect("it ends");
        assert!(!said.status.success());
        assert_eq!(said.stdout.len() as u64, MAX_BYTES);
    }

    #[tokio::test]
    async fn background_children_are_neither_waited_for_nor_left() {
        let said = listen(shell("sleep 600 & echo $!"), Duration::from_secs(30)).await.unwrap().expect("it ends");
        let pid: i32 = String::from_utf8(said.stdout).unwrap().trim().parse().unwrap();
        // It may be gone so early that nobody has that pid.
        if let Ok(child) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) {
            let ended = descriptor::readable(child).unwrap();
            let _ended = tokio::time::timeout(Duration::from_secs(30), ended.readable()).await.expect("it ends");
        }
    }

    #[tokio::test]
    async fn a_silent_program_is_not_waited_for() {
        assert!(listen(shell("exec sleep 600"), Duration::from_millis(50)).await.unwrap().is_none());
    }
}

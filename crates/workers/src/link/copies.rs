//! Frozen copies of a worker: how they are made known, gone back to, and branched from.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use super::{
    Control, ControlMessage, Datagram, Error, Link, Order, Refusal, Report, Worker,
    ends::{Ends, pipe},
};
use crate::control::ANSWER_TIMEOUT;
use pylair_os::{descriptor::readable, machine::available_memory_mb, open_files};
use pylair_probe::wire::Op;

/// One who asks is waiting for each; more is a worker gone wild.
const MAX_PEEKS: usize = 64;

/// A frozen copy of the worker.
#[derive(Debug)]
pub(super) struct Frozen {
    pub(super) id: String,
    pub(super) control: Control,
    pub(super) worker: Worker,
}

/// What the worker was sent back to, and what of it could not be brought back.
#[derive(Debug)]
pub struct Restored {
    pub lost: Vec<String>,
    /// Stray processes of the lost worker that were ended.
    pub swept: usize,
}

impl Link {
    /// Asks for a frozen copy under this id. `limit_mb` is what the worker and its copies may use together, if that is limited.
    pub async fn request_checkpoint(&mut self, id: &str, limit_mb: Option<u64>) -> Result<u64, Error> {
        // A copy may come to cost as much as its worker has.
        let free = available_memory_mb().map(|mb| mb / 3);
        self.expected_checkpoint = Some(id.to_owned());
        let op = Op::Checkpoint {
            checkpoint: id.to_owned(),
            max_rss_mb: [free, limit_mb.map(|mb| mb / 2)].into_iter().flatten().min(),
        };
        self.request(op, &[]).await
    }

    /// A worker offers the way to its frozen copy, which then has to say who it is itself.
    pub(super) fn control_said(&mut self, datagram: Datagram) {
        let message: ControlMessage = serde_json::from_slice(&datagram.bytes).unwrap_or_default();
        if let Some(id) = message.peek {
            let answer = match (message.answer, message.refused) {
                (Some(answer), _) => Ok(answer),
                (None, refused) => Err(Refusal {
                    message: refused.unwrap_or_else(|| "it gave no answer".to_owned()),
                    kind: message.kind,
                    hint: message.hint,
                }),
            };
            // One who asks is waiting for each; more than that is a worker gone wild.
            if self.peeked.len() < MAX_PEEKS {
                self.peeked.push_back((id, answer));
            }
            return;
        }
        // Only what was asked for, and once: each copy costs descriptors of ours.
        let expected =
            message.checkpoint.filter(|id| self.expected_checkpoint.take_if(|expected| expected == id).is_some());
        let (Some(id), Some(socket)) = (expected, datagram.descriptors.into_iter().next()) else {
            tracing::debug!("a worker sent a control message that nobody asked for");
            return;
        };
        // Kept here until the copy has spoken, because whoever waits for that may be called away.
        self.offered = Control::new(socket).ok().map(|control| (id, control));
    }

    /// A frozen copy said something, for the first time.
    pub(super) fn copy_said(&mut self, datagram: io::Result<Datagram>) {
        let Some((id, control)) = self.offered.take() else { return };
        let frozen = datagram.and_then(|mut hello| {
            let message: ControlMessage = serde_json::from_slice(&hello.bytes).unwrap_or_default();
            if message.frozen.as_deref() != Some(&id) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it is another checkpoint"));
            }
            let worker = Worker::from_datagram(&mut hello, self.confined)?;
            Ok(Frozen { id: id.clone(), control, worker })
        });
        match frozen {
            Ok(frozen) => self.frozen.push(frozen),
            Err(error) => tracing::warn!(%error, id, "a frozen copy did not say who it is"),
        }
    }

    /// Whether the frozen copy with this id is there. The worker offers it before it answers, but on another descriptor, so
    /// the answer may be read first.
    pub async fn has_checkpoint(&mut self, id: &str) -> bool {
        let until = tokio::time::Instant::now() + ANSWER_TIMEOUT;
        while !self.frozen.iter().any(|frozen| frozen.id == id) {
            if self.offered.is_none() && self.expected_checkpoint.is_none() {
                // It was offered, and ended before it could speak.
                return false;
            }
            tokio::select! {
                datagram = first_words(self.offered.as_ref()) => self.copy_said(datagram),
                datagram = self.control.receive() => match datagram {
                    Ok(datagram) if !datagram.bytes.is_empty() => self.control_said(datagram),
                    _ => return false,
                },
                () = tokio::time::sleep_until(until) => return false,
            }
        }
        true
    }

    /// Lets go of a frozen copy.
    pub fn drop_checkpoint(&mut self, id: &str) {
        self.frozen.retain(|frozen| frozen.id != id);
    }

    /// Makes a worker of another session out of a frozen copy, which stays. Returns its link and what of the original it lacks.
    pub async fn branch(&mut self, id: &str) -> Result<(Self, Vec<String>), Error> {
        let frozen =
            self.frozen.iter().find(|frozen| frozen.id == id).ok_or_else(|| Error::NoCheckpoint(id.to_owned()))?;
        let unreachable = |error: io::Error| Error::Unreachable { message: format!("its frozen copy: {error}") };
        let (ours, theirs) = Ends::new()?;
        frozen.worker.wake();
        frozen.control.send(&serde_json::json!({"op": "branch"}), &theirs.each()).map_err(unreachable)?;
        drop(theirs);
        let (message, mut datagram) = ours.control.receive_message::<ControlMessage>().await.map_err(unreachable)?;
        if message.resumed.is_none() {
            return Err(Error::Unreachable { message: "the branch did not begin".to_owned() });
        }
        let worker = Worker::from_datagram(&mut datagram, self.confined).map_err(unreachable)?;
        // Its own ward, so that going back and ending here do not touch it.
        let (keeper, keeper_end) = Control::pair().map_err(Error::Descriptors)?;
        let order = Order::Ward { pid: worker.kept_pid }.encode();
        self.keeper.send_bytes(order.as_bytes(), &[keeper_end.as_fd()]).map_err(unreachable)?;
        drop(keeper_end);
        let mut ready = tokio::time::timeout(ANSWER_TIMEOUT, keeper.receive())
            .await
            .map_err(|_| Error::Unreachable { message: "its keeper did not answer".to_owned() })?
            .map_err(unreachable)?;
        if !matches!(Report::parse(&ready.bytes), Some(Report::Ready)) {
            let message = String::from_utf8_lossy(&ready.bytes).into_owned();
            return Err(Error::Unreachable { message: format!("its keeper: {message}") });
        }
        let keeper_pidfd = ready.sender().and_then(|(_, pidfd)| readable(pidfd)).ok();
        let link = Self::assemble(
            ours,
            keeper,
            keeper_pidfd,
            self.template.clone(),
            worker,
            (self.confined, self.family.clone()),
        )?;
        Ok((link, message.lost))
    }

    /// Ends the worker and goes on in a copy of its frozen copy, which stays.
    pub async fn roll_back(&mut self, id: &str) -> Result<Restored, Error> {
        let position =
            self.frozen.iter().position(|frozen| frozen.id == id).ok_or_else(|| Error::NoCheckpoint(id.to_owned()))?;
        if !is_running(self.frozen[position].worker.pidfd.get_ref()) {
            // Somebody killed it. The worker is still there and stays.
            self.frozen.remove(position);
            return Err(Error::NoCheckpoint(id.to_owned()));
        }
        // Younger copies hold a future that is being given up.
        self.frozen.truncate(position + 1);
        self.kill();
        self.ended(ANSWER_TIMEOUT).await;
        let swept = self.sweep().await;
        let _turn = open_files::turn_to_go_back().await;
        // New pipes, because the old ones may hold half a frame in either direction.
        let (requests_end, requests) = pipe()?;
        let (replies, replies_end) = pipe()?;
        let (control, control_end) = Control::pair().map_err(Error::Descriptors)?;
        let unreachable = |error: io::Error| Error::Unreachable { message: format!("its frozen copy: {error}") };
        let passed = [requests_end.as_fd(), replies_end.as_fd(), control_end.as_fd()];
        let frozen = self.frozen.last().ok_or_else(|| Error::NoCheckpoint(id.to_owned()))?;
        frozen.worker.wake();
        frozen.control.send(&serde_json::json!({"op": "resume"}), &passed).map_err(unreachable)?;
        drop((requests_end, replies_end, control_end));
        let (message, mut datagram) = control.receive_message::<ControlMessage>().await.map_err(unreachable)?;
        if message.resumed.is_none() {
            return Err(Error::Unreachable { message: "its frozen copy did not resume".to_owned() });
        }
        let worker = Worker::from_datagram(&mut datagram, self.confined).map_err(unreachable)?;
        if worker.pid == frozen.worker.pid {
            // No process could be made, so that the copy itself went on.
            self.frozen.pop();
        }
        rustix::io::ioctl_fionbio(&requests, true).map_err(|e| Error::Descriptors(e.into()))?;
        self.requests = requests;
        self.replies = readable(replies).map_err(Error::Descriptors)?;
        self.control = control;
        self.worker = worker;
        self.inbox.clear();
        self.offered = None;
        self.expected_checkpoint = None;
        self.dead = false;
        self.open.replies = true;
        Ok(Restored { lost: message.lost, swept })
    }

    /// Whether a frozen copy with this id is held.
    pub fn holds_checkpoint(&self, id: &str) -> bool {
        self.frozen.iter().any(|frozen| frozen.id == id)
    }

    /// Ends every process of the session but the frozen copies.
    async fn sweep(&mut self) -> usize {
        let keep = self.frozen.iter().map(|frozen| frozen.worker.kept_pid).collect();
        if self.keeper.send_bytes(Order::Sweep { keep }.encode().as_bytes(), &[]).is_err() {
            return 0;
        }
        let answer = async {
            loop {
                if let Some(count) = self.swept.pop_front() {
                    return count;
                }
                match self.keeper.receive().await {
                    Ok(mut datagram) if !datagram.bytes.is_empty() => self.keeper_said(&mut datagram),
                    _ => return 0,
                }
            }
        };
        tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or(0)
    }
}

fn is_running(pidfd: &OwnedFd) -> bool {
    let mut poll = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    matches!(rustix::event::poll(&mut poll, Some(&rustix::event::Timespec::default())), Ok(0))
}

/// What a frozen copy says first, once it is there.
pub(super) async fn first_words(offered: Option<&(String, Control)>) -> io::Result<Datagram> {
    match offered {
        Some((_, control)) => control.receive().await,
        None => std::future::pending().await,
    }
}

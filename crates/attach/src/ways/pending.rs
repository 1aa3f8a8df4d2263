//! The way in for a main thread that runs: a pending call, which the interpreter makes at its own next safe point, on the main thread.
//!
//! `Py_AddPendingCall` may be called at any time and from anywhere; it takes one lock for a few instructions and no memory.
//! A main thread that is stopped just there would wait for itself, so this is only done where it is not.

use std::time::Duration;

use super::{
    code,
    parcel::Parcel,
    ptrace::{Call, Error, Held},
};
use crate::interpreter::Interpreter;

const QUEUE_LIMIT: Duration = Duration::from_secs(1);

/// How queueing ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queued {
    Yes,
    /// The interpreter is not there; nothing was left.
    NotStarted,
    /// There is no room for more; nothing was left.
    Full,
}

/// Can the main thread take the lock where it is? It cannot be told for sure, but its own calls into that code can.
pub fn fits(held: &Held<'_>, interpreter: &Interpreter) -> bool {
    let taking = |address: &u64| interpreter.pending_lock.iter().any(|function| function.contains(address));
    !taking(&held.instruction()) && !held.stack().iter().any(taking)
}

/// Queues the parcel's statement. Its memory goes away by itself when the call has been made. Says how long the thread was held.
pub fn queue(mut held: Held<'_>, interpreter: &Interpreter, parcel: &mut Parcel) -> Result<(Queued, Duration), Error> {
    let placed = parcel.put(&mut held)?;
    let call =
        code::pending_call(interpreter.run, placed.statement(), interpreter.syscall, placed.address, placed.length);
    held.write(placed.piece(0), &call)?;
    let queue = code::queue(interpreter.is_initialized, interpreter.add_pending, placed.piece(0));
    // The memory belongs to the call that is queued, so what queues it must not take it away.
    let (mut held, returned) = match held.call(&queue, placed.piece(1), None, QUEUE_LIMIT)? {
        Call::Returned(held, returned) => (held, returned),
        Call::Left(pause) => return Ok((Queued::Yes, pause)),
    };
    let queued = match (returned.rbx, returned.rax & 0xffff_ffff) {
        (0, _) => Queued::NotStarted,
        (_, 0) => Queued::Yes,
        _ => Queued::Full,
    };
    if queued != Queued::Yes {
        held.unmap(placed.address, placed.length)?;
    }
    Ok((queued, held.give_back()?))
}

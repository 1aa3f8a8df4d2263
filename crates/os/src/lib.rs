//! What pylair asks of the machine it runs on, and how it shares what the machine has. Nothing here knows a target, a caller or a door.
//!
//! - [`process`], [`process_access`]: which process a pid means, and why one cannot be looked into
//! - [`exit`], [`foreign`], [`out_of_memory`]: how processes end, what those do that are not ours, why one is gone
//! - [`machine`]: what processes use and what is left
//! - [`inherited`], [`descriptor`], [`open_files`]: what the daemon was started with, descriptors the runtime waits on, how many there are
//! - [`regular`]: reading files that others made
//! - [`clock`]: how old things are
//! - [`random`]: random names
//! - [`event_loop`]: nobody keeps the one thread for long
//! - [`turns`], [`budget`]: one at a time for each key, and sharing what is bounded

pub mod budget;
pub mod clock;
pub mod descriptor;
pub mod event_loop;
pub mod exit;
pub mod foreign;
pub mod inherited;
pub mod machine;
pub mod open_files;
pub mod out_of_memory;
pub mod process;
pub mod process_access;
pub mod random;
pub mod regular;
pub mod turns;

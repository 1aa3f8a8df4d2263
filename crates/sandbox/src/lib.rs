//! What a session may do: the profiles, the rules on top of them, and whether they hold.
//!
//! `rules` settles what a caller asked for with what the `settings` allow; `paths` refuses directories nobody should be given.
//! `confine` says the result to the nursery and to the worker. What the kernel cannot hold by itself is held here, in the
//! daemon: connections go through `proxy`, which asks `addresses` where they lead, sums over all processes are counted in a `cgroup` or by `watch`, `share` says who
//! gets a processor first, and `crowd` how many want one at once. `truth` tells which is which. Called by `session` and `workers::link`.

pub mod addresses;
pub mod cgroup;
pub mod confine;
pub mod crowd;
pub mod disk;
pub mod paths;
pub mod processes;
pub mod proxy;
pub mod rules;
pub mod settings;
pub mod share;
pub mod truth;
pub mod watch;

pub use rules::{Destination, Error, Limits, Profile, Rules, Terms, Wish};
pub use settings::Settings;

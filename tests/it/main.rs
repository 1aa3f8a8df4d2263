//! Integration tests: the core against real Python, and the built binary from outside. One file per subject.
//!
//! Nothing sleeps and nothing depends on order: every test has a home of its own (`support`), which is also where it is checked
//! that nothing was left behind.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test that is skipped says so")]

mod support;

mod ages;
mod apps;
mod attach;
mod audit;
mod bridge;
mod budgets;
mod care;
mod checkpoint;
mod commands;
mod copies;
mod crowds;
mod daemon;
mod death;
mod dependencies;
mod descriptors;

mod displays;
mod doors;
mod english;
mod escape;
#[path = "../escape/http/mod.rs"]
mod escape_http;
mod examples;
mod exec;
mod execute;
mod failures;
mod failures_cli;
mod failures_doors;
mod failures_fixes;
mod failures_rest;
mod failures_store;
mod faults;
mod files;
mod full_disk;
mod guide;
mod history;
mod hostile;
mod http;
mod interpreters;
mod interrupt;
mod jobs;
mod layers;
mod limits;
mod look;
mod mine;
mod news;
mod order;
mod output;
mod packages;
mod planted;
mod readers;
mod readme;
mod repl;
mod sandbox;
mod saving;
mod schemas;
mod sealed;
mod settings;
mod stacks;
mod templates;
mod tools;
mod tour;
mod turns;
mod undo;
mod wrap;

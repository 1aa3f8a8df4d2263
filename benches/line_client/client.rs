//! A minimal blocking client for line protocols: starts a program, sends it one line at a time, waits for the line that
//! answers it and prints the latencies. Drives pylair's bridge and the bare loop that is its floor in the same way.
//!
//! `line_client WARMUP COUNT SETUP LINE -- PROGRAM ARGUMENTS...`
//!
//! SETUP has lines to send first; those with an id are answered. `@` in LINE becomes the number of the request.
//! `scripts/bench` compiles this with plain rustc: as a bench target it would be linked with the whole library.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Ids of setup lines are below this.
const FIRST_ID: usize = 1000;

struct Peer {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    answer: String,
}

impl Peer {
    fn ask(&mut self, line: &str, id: &str) -> Result<(), Box<dyn Error>> {
        self.input.write_all(line.as_bytes())?;
        loop {
            self.answer.clear();
            if self.output.read_line(&mut self.answer)? == 0 {
                return Err("the program ended".into());
            }
            // Notifications come between answers.
            if self.answer.contains(id) {
                return Ok(());
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [warmup, count, setup, line, separator, program, rest @ ..] = arguments.as_slice() else {
        return Err("usage: line_client WARMUP COUNT SETUP LINE -- PROGRAM ARGUMENTS...".into());
    };
    if separator != "--" {
        return Err("there is no -- before the program".into());
    }
    let (warmup, count): (usize, usize) = (warmup.parse()?, count.parse()?);

    let mut child = Command::new(program).args(rest).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let input = child.stdin.take().ok_or("no stdin")?;
    let output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
    let mut peer = Peer { input, output, answer: String::new() };

    for line in setup.lines() {
        let line = format!("{line}\n");
        match line.split_once("\"id\":") {
            Some((_, rest)) => {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                peer.ask(&line, &format!("\"id\":{digits}"))?;
                // Thousands of errors would be measured otherwise.
                if peer.answer.contains("\"isError\":true") {
                    return Err(peer.answer.into());
                }
            }
            None => peer.input.write_all(line.as_bytes())?,
        }
    }

    // Made beforehand: the floor shall not pay for formatting.
    let requests: Vec<(String, String)> = (FIRST_ID..FIRST_ID + warmup + count)
        .map(|id| (format!("{}\n", line.replace('@', &id.to_string())), format!("\"id\":{id}")))
        .collect();
    let mut microseconds = Vec::with_capacity(count);
    for (index, (line, id)) in requests.iter().enumerate() {
        let from = Instant::now();
        peer.ask(line, id)?;
        if index >= warmup {
            microseconds.push(from.elapsed().as_secs_f64() * 1e6);
        }
    }
    let last = peer.answer.trim_end().to_owned();
    drop(peer);
    child.wait()?;

    microseconds.sort_by(f64::total_cmp);
    let at = |share: f64| microseconds[((count - 1) as f64 * share) as usize];
    println!("{{\"p50\": {:.1}, \"p90\": {:.1}, \"p99\": {:.1}}}", at(0.5), at(0.9), at(0.99));
    // For whoever wonders whether the answers were answers.
    println!("{last}");
    Ok(())
}

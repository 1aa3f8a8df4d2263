//! `pylair output`: the whole output of a cell, page by page.

use std::io::{self, Write};

use super::{Exit, Failure, Surroundings, client::Client};
use crate::cli::OutputArgs;
use pylair_text::escape::url_value;

pub fn output(args: &OutputArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let mut client = Client::start(surroundings)?;
    let (mut offset, mut left) = (args.offset, args.limit.unwrap_or(u64::MAX));
    while left > 0 {
        let page: serde_json::Value =
            client.get(&format!("/api/output/{}?offset={offset}&limit={}", url_value(&args.job), left.min(1 << 20)))?;
        let text = page["text"].as_str().unwrap_or_default();
        match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::Ok),
            result => result?,
        }
        let Some(next) = page["next"].as_u64() else { break };
        left = left.saturating_sub(next - offset);
        offset = next;
    }
    Ok(Exit::Ok)
}

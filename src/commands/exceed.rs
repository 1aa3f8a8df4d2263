//! The part of `pylair doctor` that takes what a sandbox does not give: in a throwaway session of each profile, with small limits so that
//! little is taken, it really passes each of them and tells what stopped it.

use serde_json::{Value, json};

use super::{Failure, Surroundings, client::Client, doctor::Promise};
use pylair_web::api::{ExecuteBody, Origin};

/// Limits of the throwaway session. Whoever holds a small one holds a large one.
const LIMITS: [(&str, u64); 5] =
    [("memory_mb", 192), ("processes", 24), ("open_files", 128), ("tmp_mb", 8), ("disk_mb", 16)];

/// What is tried: its name, its limit in words, and Python that says `kernel`, `watched` or `no`, and what happened. A cell that is ended by the daemon has
/// been watched.
const TRIED: [(&str, &str, &str); 5] = [
    ("memory", "192 MB", MEMORY),
    ("processes", "24", PROCESSES),
    ("open_files", "128", OPEN_FILES),
    ("tmp", "8 MB", TMP),
    // Last: the session is stopped for it.
    ("disk", "16 MB", DISK),
];

/// Three processes, each within what one may have, touch more than all may.
const MEMORY: &str = r#"
import mmap, os, select, time
limit = 192 << 20
reading, writing = os.pipe()
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        block = mmap.mmap(-1, limit * 2 // 3)
        for page in range(0, len(block), 4096): block[page] = 1
        os.write(writing, b"x")
        os.close(writing)
        select.select([], [], [], 30)
        os._exit(0)
    children.append(pid)
os.close(writing)
held = b""
while len(held) < 3 and select.select([reading], [], [], 20)[0]:
    more = os.read(reading, 1)
    if not more: break
    held += more
alive, until = list(children), time.monotonic() + 6
while len(alive) == 3 and time.monotonic() < until:
    time.sleep(0.1)
    alive = [pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0] == 0]
for pid in alive:
    os.kill(pid, 9); os.waitpid(pid, 0)
os.close(reading)
"no: 384 MB were used" if len(alive) == 3 else ("kernel" if len(held) < 3 else "watched") + ": 3 processes used 384 MB and were ended"
"#;

const PROCESSES: &str = r#"
import os, signal
children, told = [], "no: 64 processes were made"
try:
    for _ in range(64):
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        children.append(pid)
except OSError as error:
    told = f"kernel: {error.strerror} after {len(children)} processes"
finally:
    for pid in children:
        os.kill(pid, 9); os.waitpid(pid, 0)
told
"#;

const OPEN_FILES: &str = r#"
import os
files, told = [], "no: 200 files were opened"
try:
    for _ in range(200): files.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    told = f"kernel: {error.strerror} after {len(files)} files"
finally:
    for fd in files: os.close(fd)
told
"#;

const TMP: &str = r#"
import os
told, written = "no: 12 MB were written to /tmp", 0
try:
    with open("/tmp/much", "wb", 0) as file:
        for _ in range(12): written += file.write(bytes(1 << 20))
except OSError as error:
    told = f"kernel: {error.strerror} after {written >> 20} MB in /tmp"
finally:
    os.path.exists("/tmp/much") and os.unlink("/tmp/much")
told
"#;

const DISK: &str = r#"
import time
told = "no: 32 MB of files were kept for 8 s"
try:
    for number in range(32): open(f"much-{number}", "wb").write(bytes(1 << 20))
    time.sleep(8)
except OSError as error:
    told = f"kernel: {error.strerror} after {number} MB"
told
"#;

/// What stopped each attempt in a session of this profile.
pub fn exceed(client: &mut Client, profile: &str, surroundings: &Surroundings) -> Result<Vec<Promise>, Failure> {
    let from = || Origin { cwd: surroundings.cwd.clone(), env: Some(surroundings.env.clone()), client: None };
    let name = format!("doctor-{}-{profile}-limits", std::process::id());
    let mut wish = json!({"profile": profile});
    for (limit, value) in LIMITS {
        wish[limit] = value.into();
    }
    let _opened: Value = client.post("/api/sessions", &json!({"name": name, "sandbox": wish, "from": from()}))?;
    let mut found = Vec::new();
    for (what, limit, code) in TRIED {
        let body = ExecuteBody {
            code: code.to_owned(),
            file: None,
            target: Some(name.clone()),
            timeout_s: Some(60.0),
            max_chars: None,
            from: from(),
        };
        found.push(stopped_by(what, limit, &client.execute(&body)?));
    }
    let _closed: Value = client.post("/api/sessions/close", &json!({"target": name}))?;
    Ok(found)
}

fn stopped_by(what: &str, limit: &str, report: &Value) -> Promise {
    let error = report["error"]["message"].as_str().unwrap_or_default();
    let said = match (report["result"].as_str(), report["outcome"].as_str()) {
        (Some(result), _) => result.trim_matches(|c| c == '\'' || c == '"').to_owned(),
        (None, Some("died")) => format!("watched: {error}"),
        _ => format!("no: {error}"),
    };
    let (how, detail) = said.split_once(": ").unwrap_or(("no", &said));
    Promise { what: what.to_owned(), how: how.to_owned(), detail: format!("tried with {limit}: {detail}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stopped_it_is_read_from_a_report() {
        let how = |report: Value| stopped_by("memory", "1 MB", &report).how;
        assert_eq!(how(json!({"outcome": "ok", "result": "'kernel: it was ended'"})), "kernel");
        assert_eq!(how(json!({"outcome": "died", "error": {"message": "its files take 30 MB"}})), "watched");
        assert_eq!(how(json!({"outcome": "raised", "error": {"message": "what?"}})), "no");
    }
}

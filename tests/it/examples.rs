//! `examples/`, run. `readme.rs` runs the failing project, and `tests/clients/test_examples.py` the agent loop.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::support::{Home, newest_python};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `shop_app.py` while it serves. Dropping it ends it.
struct Shop {
    child: Child,
    address: String,
}

impl Shop {
    fn start(home: &Home) -> Self {
        let mut command = Command::new(newest_python());
        command.arg(root().join("examples/shop_app.py")).env_clear().envs(&home.env).current_dir(home.work());
        command.env("PYTHONPATH", root().join("probe")).env("PYTHONDONTWRITEBYTECODE", "1");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("Python starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it says something");
        let url = line.trim().strip_prefix("the shop is open at http://").unwrap_or_else(|| panic!("{line}"));
        let address = url.strip_suffix("/tea").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, address }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it serves");
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}")).1.to_owned()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

#[test]
fn the_app_is_read_and_changed_while_it_serves() {
    let home = Home::new();
    let shop = Shop::start(&home);
    assert_eq!(shop.get("/tea"), "3\n");
    let asked = home.run(&["exec", "-t", "app:shop", "prices"]);
    assert_eq!(asked.stdout, "{'/tea': 3, '/coffee': 4}\n", "{asked:?}");
    let changed = home.run(&["exec", "-t", "app:shop", "prices['/tea'] = 5"]);
    assert!(changed.status.success(), "{changed:?}");
    assert_eq!(shop.get("/tea"), "5\n");
}

#[test]
fn the_app_has_three_lines_of_pylair() {
    let program = fs::read_to_string(root().join("examples/shop_app.py")).expect("it is there");
    let lines = program.lines().filter(|line| line.starts_with("import pylair") || line.starts_with("pylair."));
    assert_eq!(lines.count(), 3);
}

#[test]
fn every_example_is_described() {
    let readme = fs::read_to_string(root().join("examples/README.md")).expect("it is there");
    for entry in fs::read_dir(root().join("examples")).expect("it can be read").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !["README.md", "ruff.toml", "__pycache__", ".ruff_cache"].contains(&name.as_str()) {
            assert!(readme.contains(&format!("- `{name}")), "examples/README.md should have a line about {name}");
        }
    }
}

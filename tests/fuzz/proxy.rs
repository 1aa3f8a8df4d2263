//! What a session says to its proxy, as HTTP and as SOCKS: whatever it is, nobody is connected to but those who are allowed.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use pylair_sandbox::{Destination, proxy::Proxy};
use tokio::runtime::Runtime;

use crate::{Target, mutate::Random};

/// Only bounds what hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Whoever was connected to is not known before it is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

pub struct Connections {
    runtime: Runtime,
    proxy: Proxy,
    port: u16,
    allowed: TcpListener,
    forbidden: TcpListener,
}

const WORDS: &[&str] = &[
    "CONNECT ",
    "GET ",
    "POST ",
    "http://",
    "https://",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "\r\n",
    "\r\n\r\n",
    "\n\n",
    "Host: ",
    "Proxy-Authorization: x\r\n",
    "127.0.0.1:@ALLOWED@",
    "127.0.0.1:@FORBIDDEN@",
    "localhost:@FORBIDDEN@",
    "[::ffff:127.0.0.1]:@FORBIDDEN@",
    "127.1:@FORBIDDEN@",
    "0x7f000001:@FORBIDDEN@",
    "127.0.0.1.:@FORBIDDEN@",
    "127.0.0.1:@ALLOWED@@127.0.0.1:@FORBIDDEN@",
    "@",
    "/",
    ":",
    "%31",
    "\u{0}",
    "\u{5}\u{1}\u{0}",
    "#",
    "?",
    " ",
];

impl Connections {
    pub fn new() -> Self {
        let listen = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.set_nonblocking(true).expect("a listener");
            listener
        };
        let (allowed, forbidden, front) = (listen(), listen(), listen());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let port = front.local_addr().expect("an address").port();
        let destination = Destination::new("127.0.0.1", allowed.local_addr().unwrap().port()).expect("an address");
        let proxy = {
            let _inside = runtime.enter();
            Proxy::start(front.into(), vec![destination]).expect("a proxy")
        };
        Self { runtime, proxy, port, allowed, forbidden }
    }

    /// The input with the ports in it, as text and as SOCKS has them.
    fn fill_in(&self, input: &[u8]) -> Vec<u8> {
        let mut filled = input.to_vec();
        for (name, listener) in [("ALLOWED", &self.allowed), ("FORBIDDEN", &self.forbidden)] {
            let port = listener.local_addr().expect("an address").port();
            filled = replace(&filled, format!("@{name}@").as_bytes(), port.to_string().as_bytes());
            filled = replace(&filled, format!("!{name}!").as_bytes(), &port.to_be_bytes());
        }
        filled
    }
}

impl Target for Connections {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let socks = |address: &[u8], port: &str| [b"\x05\x01\x00\x05\x01\x00", address, port.as_bytes()].concat();
        vec![
            b"CONNECT 127.0.0.1:@ALLOWED@ HTTP/1.1\r\nHost: x\r\n\r\nhello".to_vec(),
            b"CONNECT 127.0.0.1:@FORBIDDEN@ HTTP/1.1\r\n\r\n".to_vec(),
            b"GET http://127.0.0.1:@ALLOWED@/a?b HTTP/1.1\r\nHost: 127.0.0.1:@FORBIDDEN@\r\n\r\n".to_vec(),
            b"POST http://localhost:@FORBIDDEN@/ HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".to_vec(),
            socks(b"\x01\x7f\x00\x00\x01", "!ALLOWED!"),
            socks(b"\x01\x7f\x00\x00\x01", "!FORBIDDEN!"),
            socks(b"\x03\x09localhost", "!FORBIDDEN!"),
            socks(b"\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x7f\x00\x00\x01", "!FORBIDDEN!"),
        ]
    }

    fn words(&self) -> &'static [&'static str] {
        WORDS
    }

    fn mutate(&self, _input: &[u8], _random: &mut Random) -> Option<Vec<u8>> {
        None
    }

    fn run(&mut self, input: &[u8]) -> Result<String, String> {
        let mut client = TcpStream::connect(("127.0.0.1", self.port)).map_err(|error| error.to_string())?;
        client.set_read_timeout(Some(LOOK_AGAIN)).map_err(|error| error.to_string())?;
        // It may have heard enough before all of it was said.
        let _closed = client.write_all(&self.fill_in(input));
        let _closed = client.shutdown(Shutdown::Write);
        let mut answer = vec![0; 256];
        let mut length = 0;
        let mut reached = 0;
        let began = Instant::now();
        loop {
            // Whoever was connected to says nothing and goes.
            while self.allowed.accept().is_ok() {
                reached += 1;
            }
            match client.read(&mut answer[length..]) {
                Ok(0) => break,
                Ok(count) => length = (length + count).min(answer.len() - 1),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < PATIENCE => {}
                Err(error) => return Err(format!("no end: {error}")),
            }
        }
        if self.forbidden.accept().is_ok() {
            return Err("somebody was connected to who is not allowed".to_owned());
        }
        let refused = self.proxy.take_refused().len();
        let status: String = answer[..length.min(24)]
            .iter()
            .map(|byte| char::from(byte & 0x7f))
            .filter(char::is_ascii_alphanumeric)
            .collect();
        Ok(format!("{reached} {refused} {status}"))
    }

    fn finish(&mut self) -> Result<(), String> {
        // Everything that was begun is over.
        let alive = self.runtime.metrics().num_alive_tasks();
        if alive > 8 { Err(format!("{alive} tasks are left")) } else { Ok(()) }
    }
}

fn replace(input: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut output = Vec::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        output.extend_from_slice(&rest[..at]);
        output.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    output.extend_from_slice(rest);
    output
}

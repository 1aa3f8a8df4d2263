//! The command line's end of the daemon's Unix socket: HTTP/1.1 over one connection.

use std::{io::Write as _, path::PathBuf, sync::Mutex};

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request, body::Incoming, client::conn::http1::SendRequest, header::HeaderValue};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};

use super::{Failure, Surroundings};
use crate::{config::Flags, lifecycle};
use pylair_core::{daemon::VERSION, settings::Introduction};
use pylair_web::{
    api,
    router::{self, CALLER_HEADER, SETTINGS_HEADER, VERSION_HEADER},
};

/// Where the daemon is, and who asks it.
#[derive(Debug, Clone)]
pub struct Address {
    socket: PathBuf,
    introduction: Option<HeaderValue>,
}

impl Address {
    /// Without settings that cannot be understood: what needs them says so when it starts.
    pub fn of(surroundings: &Surroundings) -> Self {
        Self::new(surroundings, surroundings.introduction(&Flags::default()).ok().as_ref())
    }

    fn new(surroundings: &Surroundings, introduction: Option<&Introduction>) -> Self {
        Self { socket: surroundings.places.socket(), introduction: introduction.and_then(router::introduced) }
    }
}

/// A connection, with the little runtime that drives it.
pub struct Client {
    pub runtime: tokio::runtime::Runtime,
    connection: Connection,
}

/// The asynchronous half, for commands that do two things at once.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    introduction: Option<HeaderValue>,
}

impl Client {
    /// Connects if a daemon is there.
    pub fn connect(surroundings: &Surroundings) -> Result<Option<Self>, Failure> {
        Self::connect_to(&Address::of(surroundings))
    }

    fn connect_to(address: &Address) -> Result<Option<Self>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connection = runtime.block_on(Connection::open(address))?;
        Ok(connection.map(|connection| Self { runtime, connection }))
    }

    /// Connects, starting a daemon if none is there.
    pub fn start(surroundings: &Surroundings) -> Result<Self, Failure> {
        let introduction = surroundings.introduction(&Flags::default())?;
        introduction.notes.iter().for_each(|note| tell_once(note));
        let address = Address::new(surroundings, Some(&introduction));
        if let Some(client) = Self::connect_to(&address)? {
            return Ok(client);
        }
        lifecycle::ensure_running(&surroundings.places, &surroundings.program, &surroundings.env)?;
        Self::connect_to(&address)?.ok_or_else(|| {
            Failure::new(
                "the daemon started and was gone again",
                format!("see {}", surroundings.places.log().display()),
            )
        })
    }

    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Failure> {
        self.runtime.block_on(self.connection.json(Method::GET, path, Bytes::new()))
    }

    pub fn get_bytes(&mut self, path: &str) -> Result<Bytes, Failure> {
        self.runtime.block_on(async {
            let body = self.connection.send(Method::GET, path, Bytes::new()).await?;
            Ok(body.collect().await.map_err(lost)?.to_bytes())
        })
    }

    pub fn post<B: Serialize, T: DeserializeOwned>(&mut self, path: &str, body: &B) -> Result<T, Failure> {
        let body = Bytes::from(serde_json::to_vec(body).unwrap_or_default());
        self.runtime.block_on(self.connection.json(Method::POST, path, body))
    }

    pub fn post_bytes<T: DeserializeOwned>(&mut self, path: &str, body: Bytes) -> Result<T, Failure> {
        self.runtime.block_on(self.connection.json(Method::POST, path, body))
    }

    /// Runs a cell to its end. What it prints is in the report.
    pub fn execute(&mut self, body: &api::ExecuteBody) -> Result<serde_json::Value, Failure> {
        let body = Bytes::from(serde_json::to_vec(body).unwrap_or_default());
        let told = self.runtime.block_on(async {
            let answer = self.connection.send(Method::POST, "/api/execute", body).await?;
            Ok::<_, Failure>(answer.collect().await.map_err(lost)?.to_bytes())
        })?;
        let last = told.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap_or_default();
        let line: serde_json::Value = serde_json::from_slice(last).map_err(lost)?;
        Ok(line["report"].clone())
    }

    pub fn into_parts(self) -> (tokio::runtime::Runtime, Connection) {
        (self.runtime, self.connection)
    }
}

impl Connection {
    pub async fn open(address: &Address) -> Result<Option<Self>, Failure> {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let stream = match tokio::net::UnixStream::connect(&address.socket).await {
            Ok(stream) => stream,
            Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        pylair_os::event_loop::spawn(async move {
            // The end of the connection shows in the answers.
            let _ended = driver.await;
        });
        Ok(Some(Self { sender, introduction: address.introduction.clone() }))
    }

    /// Sends a request and returns the body of a good answer; a bad one is the failure it tells.
    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Incoming, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "pylair")
            .header("content-type", "application/json")
            .header(VERSION_HEADER, VERSION);
        if let Some(introduction) = &self.introduction {
            request = request.header(CALLER_HEADER, introduction);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| Failure::new(error.to_string(), "this is a bug of pylair"))?;
        let response = self.sender.send_request(request).await.map_err(lost)?;
        notes(response.headers(), SETTINGS_HEADER).for_each(tell_once);
        if response.status().is_success() {
            notes(response.headers(), api::NOTE_HEADER).for_each(tell);
            return Ok(response.into_body());
        }
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(lost)?.to_bytes();
        Err(match serde_json::from_slice::<api::Failure>(&bytes) {
            Ok(failure) => Failure::new(failure.message, failure.hint),
            Err(_) => {
                Failure::new(format!("{status}: {}", String::from_utf8_lossy(&bytes)), "`pylair doctor` may say more")
            }
        })
    }

    pub async fn json<T: DeserializeOwned>(&mut self, method: Method, path: &str, body: Bytes) -> Result<T, Failure> {
        let bytes = self.send(method, path, body).await?.collect().await.map_err(lost)?.aggregate();
        serde_json::from_reader(bytes.reader())
            .map_err(|error| Failure::new(format!("the daemon answered something else: {error}"), "run `pylair stop`"))
    }
}

fn notes<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|note| note.to_str().ok())
}

fn tell(note: &str) {
    // What was asked for is done, whether this can be read or not.
    let _unread = writeln!(std::io::stderr(), "note: {}", super::words::with_commands(note));
}

/// Tells what holds for the whole command and is said with each of its answers.
fn tell_once(note: &str) {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut told = TOLD.lock().expect("no panic while locked");
    if !told.iter().any(|known| known == note) {
        tell(note);
        told.push(note.to_owned());
    }
}

pub fn lost(error: impl std::fmt::Display) -> Failure {
    Failure::new(
        format!("the connection to the daemon was lost: {error}"),
        "its sessions are gone; run the command again",
    )
}

//! What the HTTP door is set to.

use std::{path::PathBuf, time::Duration};

/// Where the HTTP door may be, and how much may come through it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// TLS is a proxy's, which may be somewhere else; `X-Forwarded-For` is believed for records.
    pub behind_proxy: bool,
    /// Names, with or without a port, that requests may be addressed to besides our own.
    pub allowed_hosts: Vec<String>,
    /// Certificate chain and key, both PEM, for TLS of our own.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub connections: usize,
    /// Connections that have not shown a token.
    pub strangers: usize,
    /// How long a request's head may take, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long a body may stop coming.
    pub body_timeout: Duration,
    /// How long whoever is answered may take nothing.
    pub write_timeout: Duration,
    /// Of bodies and answers under way, of everybody.
    pub buffer_bytes: usize,
    /// At once, of everybody and of one token.
    pub requests: usize,
    pub requests_per_token: usize,
    /// Open event streams, of everybody and of one token.
    pub streams: usize,
    pub streams_per_token: usize,
    /// Requests a second of one token, twice as many in a burst; 0 for any number.
    pub rate: u32,
    /// Failed authentications of one address a minute before it is told to wait.
    pub auth_failures: u32,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            behind_proxy: false,
            allowed_hosts: Vec::new(),
            tls: None,
            connections: 256,
            strangers: 256,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            buffer_bytes: 512 << 20,
            requests: 256,
            requests_per_token: 64,
            streams: 128,
            streams_per_token: 32,
            rate: 50,
            auth_failures: 10,
        }
    }
}

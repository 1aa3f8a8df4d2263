//! The one way out of a session that may use the network: a proxy in the daemon, which connects to what was allowed and to nothing else.
//!
//! Its listening socket was made by the session's keeper in a network of the session's own, so that only the session can reach it, and
//! only there. It speaks HTTP (`CONNECT` and plain requests) and SOCKS 5, as most programs do when `HTTPS_PROXY` and the like are
//! set. Names are resolved here and the very address that was looked at is connected to. Started by `workers::link`.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream, lookup_host},
    sync::Semaphore,
    time::timeout,
};

use super::{
    Destination,
    addresses::{self, Inward},
};
use pylair_os::open_files;

const MAX_CONNECTIONS: usize = 64;
const MAX_HEAD_BYTES: usize = 32 << 10;
/// How long somebody may take to say where to, and the other side to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How many different refusals are remembered until somebody reads them.
const MAX_REFUSED: usize = 20;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0} is not in this session's allow_net")]
    NotAllowed(String),
    #[error("{destination} leads to {address}, {leads_to}; allow_net has to name that address itself")]
    Inward { destination: Destination, address: IpAddr, leads_to: Inward },
    #[error("{destination} could not be reached: {source}")]
    Unreachable { destination: Destination, source: io::Error },
    #[error("the proxy does not understand the request")]
    Unknown,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Ends when it is dropped, and with it all connections.
#[derive(Debug)]
pub struct Proxy {
    task: tokio::task::JoinHandle<()>,
    rules: Arc<Gate>,
}

#[derive(Debug)]
struct Gate {
    allowed: Vec<Destination>,
    /// What was refused, and how often.
    refused: Mutex<BTreeMap<String, u64>>,
}

impl Proxy {
    pub fn start(listener: OwnedFd, allowed: Vec<Destination>) -> io::Result<Self> {
        let listener = TcpListener::from_std(listener.into())?;
        let rules = Arc::new(Gate { allowed, refused: Mutex::default() });
        Ok(Self { task: pylair_os::event_loop::spawn(serve(listener, rules.clone())), rules })
    }

    /// What was refused since this was last asked, in words.
    pub fn take_refused(&self) -> Vec<String> {
        let refused = std::mem::take(&mut *self.rules.refused.lock().expect("no panic while locked"));
        refused
            .into_iter()
            .map(|(why, count)| {
                if count == 1 {
                    format!("a connection was refused: {why}")
                } else {
                    format!("{count} connections were refused: {why}")
                }
            })
            .collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, rules: Arc<Gate>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, say. Nothing to be done but not to spin.
                tracing::debug!(%error, "a session's proxy could not take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if open_files::check(open_files::FOR_PROXIED).is_err() {
            rules.remember("the daemon has too many files open".to_owned());
            continue;
        }
        let rules = rules.clone();
        connections.spawn(pylair_os::event_loop::watched(async move {
            let _permit = permit;
            if let Err(error) = rules.serve_one(stream).await {
                tracing::trace!(%error, "a connection through a session's proxy ended");
            }
        }));
    }
}

impl Gate {
    async fn serve_one(&self, mut client: TcpStream) -> Result<(), Error> {
        let mut first = [0];
        let asked = async {
            client.peek(&mut first).await?;
            if first[0] == 5 { self.socks(&mut client).await } else { self.http(&mut client).await }
        };
        let patience = PATIENCE * 2;
        let mut server = timeout(patience, asked).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        copy_bidirectional(&mut client, &mut server).await?;
        Ok(())
    }

    async fn http(&self, client: &mut TcpStream) -> Result<TcpStream, Error> {
        let (head, rest) = read_head(client).await?;
        let opened = async {
            let request = Request::parse(&head).ok_or(Error::Unknown)?;
            let mut server = self.connect(&request.host, request.port).await?;
            match &request.forwarded {
                None => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
                Some(forwarded) => server.write_all(forwarded.as_bytes()).await?,
            }
            server.write_all(&rest).await?;
            Ok(server)
        };
        match opened.await {
            Err(error) => {
                let status = match &error {
                    Error::NotAllowed(_) | Error::Inward { .. } => "403 Forbidden",
                    Error::Unknown => "400 Bad Request",
                    _ => "502 Bad Gateway",
                };
                let body = format!("pylair: {error}\n");
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                client.write_all((head + &body).as_bytes()).await?;
                Err(error)
            }
            opened => opened,
        }
    }

    async fn socks(&self, client: &mut TcpStream) -> Result<TcpStream, Error> {
        const NO_PASSWORD: u8 = 0;
        let mut greeting = [0; 2];
        client.read_exact(&mut greeting).await?;
        let mut methods = vec![0; greeting[1].into()];
        client.read_exact(&mut methods).await?;
        if !methods.contains(&NO_PASSWORD) {
            client.write_all(&[5, 0xff]).await?;
            return Err(Error::Unknown);
        }
        client.write_all(&[5, NO_PASSWORD]).await?;
        let mut request = [0; 4];
        client.read_exact(&mut request).await?;
        let host = match request[3] {
            1 => client.read_u32().await.map(|bits| Ipv4Addr::from(bits).to_string())?,
            4 => client.read_u128().await.map(|bits| format!("[{}]", Ipv6Addr::from(bits)))?,
            3 => {
                let mut name = vec![0; client.read_u8().await?.into()];
                client.read_exact(&mut name).await?;
                String::from_utf8(name).map_err(|_| Error::Unknown)?
            }
            _ => return Err(Error::Unknown),
        };
        let port = client.read_u16().await?;
        let opened = if request[..2] == [5, 1] { self.connect(&host, port).await } else { Err(Error::Unknown) };
        let code = match &opened {
            Ok(_) => 0,
            Err(Error::NotAllowed(_) | Error::Inward { .. }) => 2,
            Err(Error::Unknown) => 7,
            Err(_) => 4,
        };
        client.write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
        opened
    }

    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, Error> {
        let connected = self.try_connect(host, port).await;
        if let Err(error @ (Error::NotAllowed(_) | Error::Inward { .. })) = &connected {
            self.remember(error.to_string());
        }
        connected
    }

    fn remember(&self, why: String) {
        let mut refused = self.refused.lock().expect("no panic while locked");
        if refused.len() < MAX_REFUSED || refused.contains_key(&why) {
            *refused.entry(why).or_default() += 1;
        }
    }

    async fn try_connect(&self, host: &str, port: u16) -> Result<TcpStream, Error> {
        let shown = || pylair_text::plain::one_line(&format!("{host}:{port}"), 300);
        let destination = Destination::new(host, port).filter(|destination| self.allowed.contains(destination));
        let destination = destination.ok_or_else(|| Error::NotAllowed(shown()))?;
        let unreachable = |source| Error::Unreachable { destination: destination.clone(), source };
        let found = timeout(PATIENCE, lookup_host((destination.host.as_str(), port))).await;
        let found = found.map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?.map_err(unreachable)?;
        let own = addresses::own().map_err(unreachable)?;
        let mut failed = unreachable(io::Error::new(io::ErrorKind::NotFound, "it has no address"));
        for address in found.map(|found| found.ip()) {
            if let Some(leads_to) = addresses::inward(address, &own)
                && !self.is_meant(&destination, address)
            {
                failed = Error::Inward { destination: destination.clone(), address, leads_to };
                continue;
            }
            match timeout(PATIENCE, TcpStream::connect(SocketAddr::new(address, port))).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failed = unreachable(error),
                Err(_) => failed = unreachable(io::ErrorKind::TimedOut.into()),
            }
        }
        Err(failed)
    }

    /// Whether an address that is not public was allowed by itself. A name does not allow it: whoever owns the name decides where it
    /// leads, and `localhost` alone always means this machine.
    fn is_meant(&self, destination: &Destination, address: IpAddr) -> bool {
        destination.host == "localhost" && address.is_loopback()
            || self.allowed.contains(&Destination { host: address.to_string(), port: destination.port })
    }
}

/// The head of a request, and what came after it.
async fn read_head(client: &mut TcpStream) -> Result<(String, Vec<u8>), Error> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        let from = bytes.len().saturating_sub(3);
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if let Some(end) = bytes[from..].windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = bytes.split_off(from + end + 4);
            return Ok((String::from_utf8(bytes).map_err(|_| Error::Unknown)?, rest));
        }
        if bytes.len() > MAX_HEAD_BYTES {
            return Err(Error::Unknown);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Request {
    host: String,
    port: u16,
    /// The head as the server gets it; none for a tunnel.
    forwarded: Option<String>,
}

impl Request {
    fn parse(head: &str) -> Option<Self> {
        let (line, headers) = head.split_once("\r\n")?;
        let mut words = line.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !version.starts_with("HTTP/1.") {
            return None;
        }
        if method == "CONNECT" {
            let (host, port) = target.rsplit_once(':')?;
            return Some(Self { host: host.to_owned(), port: port.parse().ok()?, forwarded: None });
        }
        let rest = target.strip_prefix("http://")?;
        let (authority, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
        // With a password in it nobody can tell what the host is at a glance.
        if authority.contains('@') {
            return None;
        }
        let has_port =
            authority.rfind(':').is_some_and(|colon| authority.rfind(']').is_none_or(|bracket| colon > bracket));
        let (host, port) = if has_port { authority.rsplit_once(':')? } else { (authority, "80") };
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut forwarded = format!("{method} {slash}{path} {version}\r\nHost: {authority}\r\nConnection: close\r\n");
        for header in headers.split("\r\n").filter(|header| !header.is_empty()) {
            let name = header.split(':').next()?.trim().to_ascii_lowercase();
            if name != "host" && name != "connection" && !name.starts_with("proxy-") && name != "keep-alive" {
                forwarded.push_str(header);
                forwarded.push_str("\r\n");
            }
        }
        forwarded.push_str("\r\n");
        Some(Self { host: host.to_owned(), port: port.parse().ok()?, forwarded: Some(forwarded) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_passed_on_to_whom_they_name() {
        let tunnel = Request::parse("CONNECT [::1]:443 HTTP/1.1\r\nHost: elsewhere\r\n\r\n").unwrap();
        assert_eq!(tunnel, Request { host: "[::1]".into(), port: 443, forwarded: None });
        let plain =
            "GET http://pypi.org/simple?x HTTP/1.1\r\nHost: elsewhere\r\nProxy-Connection: x\r\nAccept: */*\r\n\r\n";
        let plain = Request::parse(plain).unwrap();
        assert_eq!((plain.host.as_str(), plain.port), ("pypi.org", 80));
        let expected = "GET /simple?x HTTP/1.1\r\nHost: pypi.org\r\nConnection: close\r\nAccept: */*\r\n\r\n";
        assert_eq!(plain.forwarded.as_deref(), Some(expected));
        for bad in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET http://a@b/ HTTP/1.1\r\n\r\n",
            "CONNECT a HTTP/1.1\r\n\r\n",
            "\r\n",
            "GET http://a:x/ HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(Request::parse(bad), None, "{bad}");
        }
    }
}

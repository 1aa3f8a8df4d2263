//! Settings of the HTTP door and of the audit record.

use std::time::Duration;

use super::{Error, Resolver};
use pylair_core::settings::AuditSettings;
use pylair_web::settings::HttpSettings;

/// Values given on the command line.
#[derive(Debug, Default, Clone)]
pub struct HttpFlags {
    pub behind_proxy: bool,
    pub allowed_hosts: Vec<String>,
    pub tls_cert: Option<String>,
    pub tls_key: Option<String>,
}

pub(super) fn http(resolver: &mut Resolver, flags: &HttpFlags) -> Result<HttpSettings, Error> {
    let usual = HttpSettings::default();
    let proxy = flags.behind_proxy.then_some(true);
    let behind_proxy = resolver.pick("behind_proxy", proxy, |file| file.behind_proxy, false, "`true` or `false`")?;
    let hosts = Some(flags.allowed_hosts.join(",")).filter(|hosts| !hosts.is_empty());
    let from_file = |file: &super::File| file.allowed_hosts.as_ref().map(|hosts| hosts.join(","));
    let hosts = resolver.pick("allowed_hosts", hosts, from_file, String::new(), "names, separated by commas")?;
    let cert =
        resolver.pick("tls_cert", flags.tls_cert.clone(), |file| file.tls_cert.clone(), String::new(), "a file")?;
    let key = resolver.pick("tls_key", flags.tls_key.clone(), |file| file.tls_key.clone(), String::new(), "a file")?;
    let tls = match (cert.is_empty(), key.is_empty()) {
        (false, false) => Some((cert.into(), key.into())),
        (true, true) => None,
        (false, true) => return Err(resolver.invalid("tls_key", &key, "the file of the key for tls_cert")),
        (true, false) => return Err(resolver.invalid("tls_cert", &cert, "the file of the certificate for tls_key")),
    };
    let mut count = |key, from_file: fn(&super::File) -> Option<usize>, usual| {
        let count = resolver.pick(key, None, from_file, usual, "a number from 1 up")?;
        if count == 0 { Err(resolver.invalid(key, "0", "a number from 1 up")) } else { Ok(count) }
    };
    let connections = count("http_connections", |file| file.http_connections, usual.connections)?;
    let strangers = count("http_strangers", |file| file.http_strangers, usual.strangers)?;
    let buffer_mb = count("http_buffer_mb", |file| file.http_buffer_mb, usual.buffer_bytes >> 20)?;
    let requests = count("http_requests", |file| file.http_requests, usual.requests)?;
    let requests_per_token =
        count("http_requests_per_token", |file| file.http_requests_per_token, usual.requests_per_token)?;
    let streams = count("http_streams", |file| file.http_streams, usual.streams)?;
    let streams_per_token =
        count("http_streams_per_token", |file| file.http_streams_per_token, usual.streams_per_token)?;
    let rate = resolver.pick("http_rate", None, |file| file.http_rate, usual.rate, "requests a second, 0 for any")?;
    let auth_failures = resolver.pick(
        "http_auth_failures",
        None,
        |file| file.http_auth_failures,
        usual.auth_failures,
        "a number a minute",
    )?;
    let mut seconds = |key, from_file: fn(&super::File) -> Option<f64>, usual: Duration| {
        let value = resolver.pick(key, None, from_file, usual.as_secs_f64(), "seconds")?;
        let length = super::seconds(value).filter(|length| !length.is_zero());
        length.ok_or_else(|| resolver.invalid(key, &value.to_string(), "seconds, more than 0"))
    };
    let head_timeout = seconds("http_head_timeout_s", |file| file.http_head_timeout_s, usual.head_timeout)?;
    let body_timeout = seconds("http_body_timeout_s", |file| file.http_body_timeout_s, usual.body_timeout)?;
    let write_timeout = seconds("http_write_timeout_s", |file| file.http_write_timeout_s, usual.write_timeout)?;
    Ok(HttpSettings {
        behind_proxy,
        allowed_hosts: hosts.split(',').map(str::trim).filter(|host| !host.is_empty()).map(str::to_owned).collect(),
        tls,
        connections,
        strangers,
        head_timeout,
        body_timeout,
        write_timeout,
        buffer_bytes: buffer_mb.saturating_mul(1 << 20),
        requests,
        requests_per_token,
        streams,
        streams_per_token,
        rate,
        auth_failures,
    })
}

pub(super) fn audit(resolver: &mut Resolver) -> Result<AuditSettings, Error> {
    let usual = AuditSettings::default();
    let megabytes = resolver.pick("audit_mb", None, |file| file.audit_mb, usual.max_bytes >> 20, "megabytes")?;
    let files = resolver.pick("audit_files", None, |file| file.audit_files, usual.files, "a number of files")?;
    Ok(AuditSettings { max_bytes: megabytes.max(1) << 20, files: files.clamp(1, 1000) })
}

//! Names and pages: which `Host` and `Origin` are ours, what a page of another site makes a browser send, and what a browser may do with
//! our answers. `door` asks for every request, `router` puts `guard` around all of them.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::Request,
    http::{self, HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::Response,
};

use super::door::{Address, Refusal};
use pylair_core::rights;

const NO_PAGE: &str = "no page but this server's own may ask";

/// Why Host or Origin are not served here, if they are not.
pub(super) fn check_names(request: &Request, hosts: &[String], origins: &[String]) -> Result<(), Refusal> {
    let headers = request.headers();
    // Two of them: whoever is in between may have looked at the other one.
    let twice = |name| headers.get_all(name).iter().count() > 1;
    if [header::HOST, header::ORIGIN, header::AUTHORIZATION].into_iter().any(twice) {
        let message = "Host, Origin and Authorization may be sent once";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_argument", message, "leave out the second"));
    }
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
    let forbidden = |message, hint| Err(Refusal::new(StatusCode::FORBIDDEN, rights::Denied::KIND, message, hint));
    let is_ours = |host: &str| hosts.iter().any(|ours| ours.eq_ignore_ascii_case(host));
    // A target may name a host too, as it is sent to a proxy.
    let named = request.uri().authority().map(http::uri::Authority::as_str);
    if !text(header::HOST).is_some_and(is_ours) || !named.is_none_or(is_ours) {
        return forbidden(
            "this Host is not served here",
            "use the address that `pylair serve` prints, or start it with --allowed-host",
        );
    }
    if let Some(origin) = text(header::ORIGIN)
        && !origins.iter().any(|ours| ours == origin)
    {
        return forbidden("this Origin is not served here", NO_PAGE);
    }
    // What browsers add and no page can change, also where they leave out the Origin.
    if text("sec-fetch-site".parse().expect("a name")).is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return forbidden("requests from other sites are not served here", NO_PAGE);
    }
    Ok(())
}

/// A body as a page of another site may send it without asking us first.
pub(super) fn is_formlike(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or("text/plain"));
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"]
        .iter()
        .any(|simple| kind.eq_ignore_ascii_case(simple))
}

/// Which Host and Origin values are ours: loopback names with our port, the address we listen on, and what was allowed.
pub(super) fn names(address: Address, allowed: &[String]) -> (Arc<[String]>, Arc<[String]>) {
    let mut names = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "[::1]".to_owned()];
    let is_any = address.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if !is_any && !names.iter().any(|name| name == address.host) {
        names.push(address.host.to_owned());
    }
    let own = if address.is_tls { "https" } else { "http" };
    let mut hosts: Vec<_> = names.iter().map(|name| format!("{name}:{}", address.port)).collect();
    let mut origins: Vec<_> = hosts.iter().map(|host| format!("{own}://{host}")).collect();
    for name in allowed {
        // Without a port it is the usual one, which clients leave out, or ours.
        let has_port = name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let mut spellings = vec![name.clone()];
        if !has_port {
            spellings.extend([format!("{name}:443"), format!("{name}:{}", address.port)]);
        }
        origins.extend(spellings.iter().map(|name| format!("https://{name}")));
        hosts.extend(spellings);
    }
    (hosts.into(), origins.into())
}

/// What a browser may do with anything served here: neither show nor frame nor keep it, nor guess what it is.
const GUARDS: [(HeaderName, HeaderValue); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'; form-action 'none'"),
    ),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
];

/// A policy of a page of our own, in place of the usual one.
#[derive(Debug, Clone)]
pub(super) struct Policy(pub(super) HeaderValue);

/// Every answer says so.
pub async fn guard(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let own = response.extensions_mut().remove::<Policy>();
    let headers = response.headers_mut();
    for (name, value) in GUARDS {
        headers.insert(name, value);
    }
    if let Some(Policy(policy)) = own {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn status(pairs: &[(&'static str, &'static str)], allowed: &[&str]) -> u16 {
        let allowed: Vec<_> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let (hosts, origins) = names(Address { host: "127.0.0.1", port: 7420, is_tls: false }, &allowed);
        let request = pairs.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        check_names(&request.body(Body::empty()).unwrap(), &hosts, &origins)
            .map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_our_host_and_our_origin_come_in() {
        let check = |pairs: &[(&'static str, &'static str)]| status(pairs, &[]);
        assert_eq!(check(&[("host", "127.0.0.1:7420")]), 200);
        assert_eq!(check(&[("host", "localhost:7420"), ("origin", "http://localhost:7420")]), 200);
        assert_eq!(check(&[("host", "evil.example:7420")]), 403);
        assert_eq!(check(&[("host", "127.0.0.1:9999")]), 403);
        assert_eq!(check(&[]), 403);
        assert_eq!(check(&[("host", "127.0.0.1:7420"), ("origin", "http://evil.example")]), 403);
        assert_eq!(check(&[("host", "127.0.0.1:7420"), ("origin", "null")]), 403);
        assert_eq!(check(&[("host", "127.0.0.1:7420"), ("host", "evil.example")]), 400);
        let ours = ("origin", "http://localhost:7420");
        assert_eq!(check(&[("host", "127.0.0.1:7420"), ours, ("origin", "http://evil.example")]), 400);
    }

    #[test]
    fn a_name_that_was_allowed_is_served_under_https() {
        let check = |pairs: &[(&'static str, &'static str)]| status(pairs, &["py.example", "other.example:8443"]);
        assert_eq!(check(&[("host", "py.example")]), 200);
        assert_eq!(check(&[("host", "py.example:443"), ("origin", "https://py.example")]), 200);
        assert_eq!(check(&[("host", "py.example"), ("origin", "http://py.example")]), 403);
        assert_eq!(check(&[("host", "other.example:8443")]), 200);
        assert_eq!(check(&[("host", "other.example")]), 403);
        assert_eq!(check(&[("host", "x.py.example")]), 403);
    }
}

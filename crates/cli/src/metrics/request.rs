//! HTTP requests (RFC 9112): a pure function of the bytes that have arrived.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Largest request line with headers in bytes. Prometheus sends about 300; half would refuse browsers with
/// many cookies, double would serve no client that is known.
pub(super) const REQUEST_MAX: usize = 8 << 10;
/// Longest host name in bytes (RFC 1035, 3.1).
const NAME_MAX: usize = 255;

/// A request with a valid syntax.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Request<'a> {
    method: &'a str,
    target: &'a str,
    /// The Host header; `None` in a request of HTTP/1.0 without one.
    pub(super) host: Option<Host>,
}

/// The host in a Host header, without its port.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Host {
    /// An address.
    Ip(IpAddr),
    /// A name in lower case, without a final dot.
    Name(String),
}

/// The status of a reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Status(&'static str);

impl Status {
    pub(super) const OK: Status = Status("200 OK");
    pub(super) const BAD_REQUEST: Status = Status("400 Bad Request");
    pub(super) const NOT_FOUND: Status = Status("404 Not Found");
    pub(super) const METHOD_NOT_ALLOWED: Status = Status("405 Method Not Allowed");
    pub(super) const REQUEST_TIMEOUT: Status = Status("408 Request Timeout");
    pub(super) const MISDIRECTED_REQUEST: Status = Status("421 Misdirected Request");
    pub(super) const HEADER_FIELDS_TOO_LARGE: Status = Status("431 Request Header Fields Too Large");
    pub(super) const SERVICE_UNAVAILABLE: Status = Status("503 Service Unavailable");
}

/// Reads a request from the first bytes of a connection. `None` if the request has not ended yet, which
/// happens only to less than [`REQUEST_MAX`] bytes.
///
/// # Errors
/// `BAD_REQUEST`, or `HEADER_FIELDS_TOO_LARGE`.
pub(super) fn parse(bytes: &[u8]) -> Option<Result<Request<'_>, Status>> {
    let most = &bytes[..bytes.len().min(REQUEST_MAX)];
    match most.windows(4).position(|end| end == b"\r\n\r\n") {
        Some(len) => Some(parse_head(&most[..len]).ok_or(Status::BAD_REQUEST)),
        None if most.len() == REQUEST_MAX => Some(Err(Status::HEADER_FIELDS_TOO_LARGE)),
        None => None,
    }
}

/// Reads request line and headers, without the empty line after them.
fn parse_head(head: &[u8]) -> Option<Request<'_>> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    // Another server could take a single CR or LF for the end of a line (RFC 9112, 2.2).
    let line_ends = |byte: u8| head.iter().filter(|there| **there == byte).count();
    let pairs = head.windows(2).filter(|pair| pair == b"\r\n").count();
    if line_ends(b'\r') != pairs || line_ends(b'\n') != pairs || head.contains(&0) {
        return None;
    }
    let mut words = std::str::from_utf8(lines.next()?).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let minor = version.strip_prefix("HTTP/1.")?;
    if words.next().is_some() || !matches!(minor.as_bytes(), [b'0'..=b'9']) {
        return None;
    }
    let mut host = None;
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        // A space before the colon, or at the start of a line, would hide a header from other servers.
        if name.is_empty() || !name.iter().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"host") && host.replace(Host::parse(value)?).is_some() {
            return None;
        }
    }
    // Only HTTP/1.0 permits a request without a host (RFC 9112, 3.2).
    (host.is_some() || minor == "0").then_some(Request { method, target, host })
}

impl Request<'_> {
    /// Whether the reply has no body, whatever its status.
    pub(super) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// Returns whether the reply has a body (GET) or not (HEAD).
    ///
    /// # Errors
    /// `NOT_FOUND`, `METHOD_NOT_ALLOWED`.
    pub(super) fn has_body(&self) -> Result<bool, Status> {
        match (self.method, self.target.split('?').next().unwrap_or_default()) {
            ("GET" | "HEAD", "/metrics" | "/") => Ok(!self.is_head()),
            ("GET" | "HEAD", _) => Err(Status::NOT_FOUND),
            _ => Err(Status::METHOD_NOT_ALLOWED),
        }
    }
}

impl Host {
    /// Reads `NAME`, `ADDRESS` or `[ADDRESS]`, each with or without `:PORT`.
    pub(super) fn parse(text: &[u8]) -> Option<Host> {
        let text = std::str::from_utf8(text).ok()?;
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (ip, port) = rest.split_once(']')?;
                // A zone is the sender's name of an interface (RFC 6874).
                let ip: Ipv6Addr = ip.split('%').next()?.parse().ok()?;
                (Host::Ip(IpAddr::from(ip).to_canonical()), port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                (Host::of_name(name)?, port)
            }
        };
        let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
        (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(host)
    }

    fn of_name(name: &str) -> Option<Host> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_allowed) {
            return None;
        }
        let ip: Option<Ipv4Addr> = name.parse().ok();
        Some(ip.map_or_else(|| Host::Name(name.to_ascii_lowercase()), |ip| Host::Ip(ip.into())))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Ip(ip) => ip.fmt(f),
            Host::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> Result<bool, Status> {
        parse(format!("{head}\r\n\r\n").as_bytes()).expect("a complete request")?.has_body()
    }

    fn host(text: &str) -> Option<String> {
        Host::parse(text.as_bytes()).map(|host| host.to_string())
    }

    #[test]
    fn a_request_is_complete_after_its_empty_line() {
        let whole = b"GET /metrics?x HTTP/1.1\r\nHost: a\r\nAccept: \xe9\r\n\r\nmore";
        let end = whole.len() - 4;
        for len in 0..end {
            assert_eq!(parse(&whole[..len]), None, "{len}");
        }
        for len in end..=whole.len() {
            assert_eq!(parse(&whole[..len]).unwrap().unwrap().has_body(), Ok(true), "{len}");
        }
        assert_eq!(parse(&[b'a'; REQUEST_MAX - 1]), None);
        assert_eq!(parse(&[b'a'; REQUEST_MAX]), Some(Err(Status::HEADER_FIELDS_TOO_LARGE)));
        assert_eq!(parse(&[b'a'; 2 * REQUEST_MAX]), Some(Err(Status::HEADER_FIELDS_TOO_LARGE)));
    }

    #[test]
    fn only_requests_for_the_metrics_have_a_reply_with_counters() {
        assert_eq!(status("GET / HTTP/1.0"), Ok(true));
        assert_eq!(status("HEAD /metrics HTTP/1.1\r\nhost:localhost"), Ok(false));
        assert_eq!(status("GET /secrets HTTP/1.0"), Err(Status::NOT_FOUND));
        assert_eq!(status("POST /metrics HTTP/1.0"), Err(Status::METHOD_NOT_ALLOWED));
        for line in ["", "GET /metrics", "GET / HTTP/1.x", "GET / HTTP/2.0", "GET  / HTTP/1.0", "\u{e9}"] {
            assert_eq!(status(line), Err(Status::BAD_REQUEST), "{line}");
        }
    }

    #[test]
    fn a_request_has_one_valid_host() {
        for headers in [
            "",
            "\r\nHost: a\r\nHost: a",
            "\r\nHost: a\r\nhOST: b",
            "\r\nHost:",
            "\r\nHost: a b",
            "\r\nHost : a",
            "\r\nHost: a\r\n Host: b",
            "\r\nHost: a\r\nX",
            "\r\nHost: a\nHost: b",
            "\r\nHost: a\rHost: b",
            "\r\nHost: a\r\n: b",
            "\r\nHost: a\0",
        ] {
            assert_eq!(status(&format!("GET / HTTP/1.1{headers}")), Err(Status::BAD_REQUEST), "{headers:?}");
        }
        assert_eq!(status("GET / HTTP/1.0\r\nHost: a\r\nHost: a"), Err(Status::BAD_REQUEST));
    }

    #[test]
    fn a_host_is_compared_without_port_case_brackets_and_final_dot() {
        for (text, wanted) in [
            ("LocalHost:9791", "localhost"),
            ("prom.example.", "prom.example"),
            ("a_b-c:", "a_b-c"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("[::1]:9791", "::1"),
            ("[0:0::1]", "::1"),
            ("[fe80::1%25eth0]:9791", "fe80::1"),
            ("[::ffff:127.0.0.1]", "127.0.0.1"),
        ] {
            assert_eq!(host(text).as_deref(), Some(wanted), "{text}");
        }
        for text in
            ["", ".", ":9791", "::1", "[::1", "[::1]x", "[x]", "a:b", "a:123456", "a@b", "a/b", "a:1:2"]
        {
            assert_eq!(host(text), None, "{text}");
        }
        assert_eq!(host(&"a".repeat(NAME_MAX + 1)), None);
    }
}

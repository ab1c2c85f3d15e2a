//! A minimal HTTP server for scrapes: one request per connection, and a thread for each, so that a silent
//! client does not delay others.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sys::{PollFd, poll};

use crate::ending::Ending;
use crate::failure::{During, Failure, Outcome};

/// Largest request line with headers in bytes; Prometheus sends about 300.
const REQUEST_MAX: usize = 8 << 10;
/// Time limit for receiving a request, and for sending each part of the reply.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Most clients at a time. There are few scrapers; the limit bounds the threads and descriptors that clients
/// can use.
const CLIENTS_MAX: usize = 64;
/// Reads the counters of the processes; called for one client at a time.
pub(super) type Scrape = Box<dyn FnMut() -> String + Send>;
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves until a signal arrives.
pub(super) fn serve(address: SocketAddr, scrape: Scrape, ending: &Ending) -> Outcome {
    let listener = TcpListener::bind(address).map_err(|error| {
        let failure = Failure::new(format!("listening on {address}: {error}"));
        match error.kind() {
            io::ErrorKind::AddrInUse => failure.hint("choose another address: --listen 127.0.0.1:PORT"),
            _ => failure,
        }
    })?;
    let address = listener.local_addr().during("listening")?;
    // A client may disconnect between poll and accept, which must not block then.
    listener.set_nonblocking(true).during("listening")?;
    eprintln!("roxie: http://{address}/metrics");
    let scrape = Arc::new(Mutex::new(scrape));
    loop {
        let mut fds = [listener.as_fd(), ending.as_fd()].map(|fd| PollFd::readable(fd.as_raw_fd()));
        poll(&mut fds, None).during("listening")?;
        if ending.has_come().during("signals")? {
            return Ok(());
        }
        // Errors mean that the client has disconnected.
        let _disconnected = listener.accept().and_then(|(stream, _)| admit(stream, &scrape));
    }
}

/// Answers on a thread of its own, unless there are too many clients. Each thread holds a reference to
/// `scrape`, as does the caller.
fn admit(mut stream: TcpStream, scrape: &Arc<Mutex<Scrape>>) -> io::Result<()> {
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    if Arc::strong_count(scrape) > CLIENTS_MAX {
        const STATUS: &str = "503 Service Unavailable";
        return stream.write_all(&reply(STATUS, "too many clients at a time\n", true));
    }
    let scrape = Arc::clone(scrape);
    let thread = thread::Builder::new().name("client".to_owned());
    // Errors mean that the client has disconnected.
    thread.spawn(move || drop(answer(&mut stream, &scrape))).map(drop)
}

fn answer(stream: &mut TcpStream, scrape: &Mutex<Scrape>) -> io::Result<()> {
    let reply = match request(stream)?.as_deref().map(parse) {
        Some(Ok(body)) => {
            let text = scrape.lock().unwrap_or_else(PoisonError::into_inner)();
            reply("200 OK", &text, body)
        }
        Some(Err(status)) => reply(status, &format!("{status}\n"), true),
        None => reply("400 Bad Request", "400 Bad Request\n", true),
    };
    stream.write_all(&reply)
}

/// Request line and headers as text; `None` if they are too long or do not end in time.
fn request(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let (begun, mut bytes) = (Instant::now(), Vec::new());
    while !bytes.ends_with(b"\r\n\r\n") && !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = CLIENT_TIMEOUT.saturating_sub(begun.elapsed());
        if left.is_zero() || bytes.len() > REQUEST_MAX {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        match stream.read(&mut part) {
            Ok(0) => return Ok(None),
            Ok(len) => bytes.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns for a valid request whether the reply has a body (GET) or not (HEAD); otherwise the HTTP error
/// status.
fn parse(request: &str) -> Result<bool, &'static str> {
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
        return Err("400 Bad Request");
    }
    match (method, target.split('?').next().unwrap_or_default()) {
        ("GET" | "HEAD", "/metrics" | "/") => Ok(method == "GET"),
        ("GET" | "HEAD", _) => Err("404 Not Found"),
        _ => Err("405 Method Not Allowed"),
    }
}

fn reply(status: &str, text: &str, body: bool) -> Vec<u8> {
    let len = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {TEXT}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), if body { text.as_bytes() } else { b"" }].concat()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn scrape() -> Arc<Mutex<Scrape>> {
        Arc::new(Mutex::new(Box::new(|| "roxie_processes 0\n".to_owned())))
    }

    /// Both ends of a connection: the client's and the server's.
    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// The server's reply to a request.
    fn ask(bytes: &[u8]) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (mut client, stream) = connect(&listener);
        admit(stream, &scrape()).unwrap();
        client.write_all(bytes).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn silent_clients_do_not_delay_others() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (scrape, begun, mut idle) = (scrape(), Instant::now(), Vec::new());
        let mut status_beside = |others: usize| {
            for _ in idle.len()..others {
                let (mut client, stream) = connect(&listener);
                client.write_all(b"GET / HT").unwrap();
                admit(stream, &scrape).unwrap();
                idle.push(client);
            }
            let (mut client, stream) = connect(&listener);
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            admit(stream, &scrape).unwrap();
            let mut status = [0; 12];
            client.read_exact(&mut status).unwrap();
            String::from_utf8_lossy(&status).into_owned()
        };
        assert_eq!(status_beside(CLIENTS_MAX - 1), "HTTP/1.1 200");
        assert_eq!(status_beside(CLIENTS_MAX + 8), "HTTP/1.1 503");
        assert!(begun.elapsed() < CLIENT_TIMEOUT, "{:?}", begun.elapsed());
    }

    #[test]
    fn scrapes_are_answered_and_other_requests_are_refused() {
        let text = ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
        assert!(head.contains("Content-Length: 18") && body == "roxie_processes 0\n", "{text}");
        assert!(ask(b"HEAD / HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
        for (bytes, status) in [
            (&b"GET /secrets HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"GET /metrics HTTP/1.1\r\n", "400"),
            (b"\xff\xfe\r\n\r\n", "400"),
            // Longer than the limit.
            (&[b'a'; 9 * 1024], "400"),
        ] {
            assert!(ask(bytes).starts_with(&format!("HTTP/1.1 {status} ")), "{status}");
        }
    }
}

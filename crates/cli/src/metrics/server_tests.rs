//! The server with real connections, and with the parties and time limits that a test gives it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use sys::EventFd;

use super::*;

const OWN: Party = Party::User(1000);
const HOSTILE: Party = Party::User(4000);
/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(60);
/// Shorter than a person notices.
const SHORT: Duration = Duration::from_millis(30);
const PATIENT: Limits = Limits { request: LONG, scrape: LONG, reply: LONG };

/// A server for a test: its address, and the parties of the next connections.
struct Served {
    address: SocketAddr,
    parties: Arc<Mutex<VecDeque<Party>>>,
}

impl Served {
    fn connect(&self, party: Party, bytes: &[u8]) -> TcpStream {
        // The server accepts connections in their order.
        self.parties.lock().unwrap().push_back(party);
        let mut client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        client.write_all(bytes).unwrap();
        client
    }

    fn ask(&self, party: Party, bytes: &[u8]) -> String {
        rest(self.connect(party, bytes))
    }

    fn scrape(&self, party: Party) -> String {
        self.ask(party, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    }
}

fn rest(mut client: TcpStream) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    text
}

fn serve(limits: Limits, fresh: Duration, scrape: Scrape, f: impl FnOnce(&Served)) {
    let listener = Listener::new(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let Address::Tcp(address) = listener.address else { panic!("a port") };
    let parties = Arc::new(Mutex::new(VecDeque::new()));
    let served = Served { address, parties: Arc::clone(&parties) };
    let mut server = Server {
        listener,
        service: Service {
            hosts: Some(Hosts::new(address.ip(), &[])),
            scraper: Scraper::start(scrape, fresh).unwrap(),
            limits,
        },
        party_of: Box::new(move |_| parties.lock().unwrap().pop_front().unwrap()),
        places: Places { common: 64, share: 16, own_users: [1000, 0] },
        clients: Vec::new(),
        paused_until: None,
    };
    let stop = EventFd::new().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| server.run(stop.as_fd()).unwrap());
        let _stopped = Stop(&stop);
        f(&served);
    });
}

/// Stops the server at the end of the test, also if it fails.
struct Stop<'a>(&'a EventFd);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.signal(1);
    }
}

fn counters() -> Scrape {
    Box::new(|| "roxie_processes 0\n".to_owned())
}

#[test]
fn half_open_connections_of_a_user_refuse_no_scrape() {
    serve(PATIENT, Duration::ZERO, counters(), |served| {
        let (mut held, begun) = (Vec::new(), Instant::now());
        for party in [OWN, Party::User(0), Party::User(5000), HOSTILE, OWN] {
            held.extend((0..200).map(|_| served.connect(HOSTILE, b"GET / HT")));
            let text = served.scrape(party);
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{party:?}: {text}");
        }
        assert!(begun.elapsed() < LONG, "no connection was ended because of its age");
        // All but the newest have ended, with the reason.
        let newest = held.split_off(held.len() - 16);
        for client in held {
            assert!(rest(client).starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
        }
        for mut client in newest {
            client.write_all(b"TP/1.0\r\n\r\n").unwrap();
            assert!(rest(client).starts_with("HTTP/1.1 200 OK\r\n"));
        }
    });
}

#[test]
fn a_request_that_arrives_in_parts_has_one_deadline() {
    let limits = Limits { request: SHORT, ..PATIENT };
    serve(limits, Duration::ZERO, counters(), |served| {
        let client = served.connect(HOSTILE, b"G");
        let mut more = client.try_clone().unwrap();
        // Fewer bytes than fill a request, and more time than it has.
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..4000 {
                    thread::sleep(SHORT / 10);
                    if more.write_all(b"E").is_err() {
                        return;
                    }
                }
            });
            let mut status = [0; 12];
            (&client).read_exact(&mut status).unwrap();
            assert_eq!(&status, b"HTTP/1.1 408");
            drop(client);
        });
    });
}

#[test]
fn a_client_that_does_not_read_its_reply_is_disconnected() {
    let large = 64 << 20;
    let limits = Limits { reply: SHORT, ..PATIENT };
    let scrape = Box::new(move || "x".repeat(large));
    serve(limits, Duration::ZERO, scrape, |served| {
        let mut client = served.connect(HOSTILE, b"GET / HTTP/1.0\r\n\r\n");
        client.read_exact(&mut [0; 12]).unwrap();
        let mut fds = [PollFd::new(client.as_raw_fd(), 0)];
        poll(&mut fds, Some(LONG.as_nanos() as u64)).unwrap();
        assert!(fds[0].is_ready(), "the server has reset the connection");
        let (mut buffer, mut len) = (vec![0; 1 << 20], 0);
        while let Ok(more @ 1..) = client.read(&mut buffer) {
            len += more;
        }
        assert!(len < large, "{len}");
    });
}

#[test]
fn clients_that_wait_at_the_same_time_share_one_scrape() {
    let (scrapes, (go, gone)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel());
    let count = Arc::clone(&scrapes);
    let scrape = Box::new(move || {
        gone.recv().unwrap();
        format!("scrape {}\n", count.fetch_add(1, Ordering::Relaxed))
    });
    serve(PATIENT, LONG, scrape, |served| {
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let clients: Vec<_> = (0..10).map(|_| served.connect(OWN, request)).collect();
        go.send(()).unwrap();
        for client in clients {
            assert!(rest(client).ends_with("\r\n\r\nscrape 0\n"));
        }
        assert!(served.scrape(HOSTILE).ends_with("\r\n\r\nscrape 0\n"), "it is fresh");
        assert_eq!(scrapes.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn processes_that_do_not_answer_delay_no_other_reply() {
    let (go, gone) = mpsc::channel();
    let scrape = Box::new(move || {
        gone.recv().unwrap();
        String::new()
    });
    let limits = Limits { scrape: SHORT, ..PATIENT };
    serve(limits, LONG, scrape, |served| {
        assert!(served.scrape(OWN).starts_with("HTTP/1.1 503 "));
        assert!(served.ask(OWN, b"GET /x HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(served.scrape(OWN).contains("the processes have not answered in time"));
        go.send(()).unwrap();
    });
}

#[test]
fn scrapes_are_answered_and_other_requests_are_refused() {
    serve(PATIENT, Duration::ZERO, counters(), |served| {
        let text = served.scrape(OWN);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
        assert!(head.contains("Content-Length: 18") && body == "roxie_processes 0\n", "{text}");
        assert!(served.ask(OWN, b"HEAD / HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
        assert!(served.ask(OWN, b"HEAD /x HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
        for (bytes, status) in [
            (&b"GET /secrets HTTP/1.0\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.0\r\n\r\n", "405"),
            (b"GET /metrics HTTP/1.1\r\n\r\n", "400"),
            (b"\xff\xfe\r\n\r\n", "400"),
            (&[b'a'; 9 << 10], "431"),
        ] {
            let text = served.ask(OWN, bytes);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {text}");
        }
        let client = served.connect(OWN, b"GET /metrics HTTP/1.1\r\n");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(rest(client).starts_with("HTTP/1.1 400 "));
    });
}

#[test]
fn a_request_to_another_host_is_refused_with_the_option_that_permits_it() {
    serve(PATIENT, Duration::ZERO, counters(), |served| {
        let ask = |host: &str| served.ask(OWN, format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        let address = served.address.to_string();
        for host in ["localhost", "LOCALHOST.:1", "127.0.0.1", &address] {
            assert!(ask(host).starts_with("HTTP/1.1 200 "), "{host}");
        }
        let refused = ask("Evil.Example:9791");
        assert!(refused.starts_with("HTTP/1.1 421 Misdirected Request\r\n"), "{refused}");
        assert!(refused.contains("'roxie metrics --host evil.example'"), "{refused}");
        assert!(!refused.contains("roxie_processes"), "{refused}");
    });
}

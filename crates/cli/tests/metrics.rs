//! `roxie metrics` as a program: how it begins, which clients it answers, how it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, geteuid, setfsuid};

/// Time in which a scrape must succeed.
const SCRAPE_MAX: Duration = Duration::from_secs(1);

/// Starts it by a command of the shell, in which `$0` is the program. Returns its first message, too.
fn start(command: &str) -> (Child, String) {
    let mut roxie = Command::new("sh")
        .args(["-c", command])
        .arg(env!("CARGO_BIN_EXE_roxie"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("there is a shell");
    let mut line = String::new();
    BufReader::new(roxie.stderr.take().expect("a pipe")).read_line(&mut line).expect("text");
    (roxie, line.trim_end().to_owned())
}

/// Starts it on a free port, and returns address and port.
fn start_tcp(command: &str) -> (Child, String) {
    let (roxie, line) = start(&format!("{command} metrics --listen 127.0.0.1:0"));
    let address = line.strip_prefix("roxie: http://").and_then(|rest| rest.strip_suffix("/metrics"));
    (roxie, address.unwrap_or_else(|| panic!("{line}")).to_owned())
}

fn end(mut roxie: Child, signal: Signal) {
    kill(Pid::from_raw(roxie.id() as i32), signal).expect("it runs");
    assert_eq!(roxie.wait().expect("it ends").code(), Some(0), "{signal}");
}

fn scrape(mut connection: impl Read + Write) -> String {
    let mut text = String::new();
    connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    connection.read_to_string(&mut text).expect("a reply");
    text
}

/// A script's shell starts `command &` with SIGINT ignored.
#[test]
fn signals_end_it_in_the_background_of_a_script_too() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (roxie, _) = start_tcp("trap '' INT; exec \"$0\"");
        end(roxie, signal);
    }
}

/// The kernel takes the user of a socket from the thread that makes it.
#[test]
fn connections_of_another_user_refuse_no_scrape() {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let (roxie, address) = start_tcp("exec \"$0\"");
    let connect_as = |uid: u32| {
        setfsuid(Uid::from_raw(uid));
        let connection = TcpStream::connect(&address).expect("it listens");
        setfsuid(Uid::from_raw(0));
        connection
    };
    let mut held = Vec::new();
    for uid in [0, 5000, 4000, 0, 5000] {
        for _ in 0..200 {
            let mut connection = connect_as(4000);
            connection.write_all(b"GET /").expect("there is room in the socket");
            held.push(connection);
        }
        let begun = Instant::now();
        let text = scrape(connect_as(uid));
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "user {uid}: {text}");
        assert!(begun.elapsed() < SCRAPE_MAX, "user {uid}: {:?}", begun.elapsed());
    }
    end(roxie, Signal::SIGTERM);
}

#[test]
fn clients_without_a_descriptor_cost_no_cpu_time() {
    let limited = |limit: u32| start(&format!("ulimit -n {limit}; exec \"$0\" metrics --listen 127.0.0.1:0"));
    let begins = |limit: &u32| {
        let (mut roxie, line) = limited(*limit);
        // It has ended already if it did not begin.
        let _ended = roxie.kill();
        roxie.wait().expect("it ends");
        line.starts_with("roxie: http://")
    };
    let least = (4..100).find(begins).expect("it needs few descriptors");

    let (roxie, line) = limited(least);
    let address = line.trim_start_matches("roxie: http://").trim_end_matches("/metrics");
    let _waiting = TcpStream::connect(address).expect("the queue has room");
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", roxie.id())).expect("it runs");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        // User and system time in hundredths of a second (proc(5)).
        fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
    };
    let before = ticks();
    thread::sleep(Duration::from_millis(500));
    assert!(ticks() - before < 10, "{} of 50 ticks", ticks() - before);
    end(roxie, Signal::SIGTERM);

    // With one descriptor each client ends the silent one before it.
    let (roxie, address) = start_tcp(&format!("ulimit -n {}; exec \"$0\"", least + 1));
    let _silent: Vec<_> =
        (0..20).map(|_| TcpStream::connect(&address).expect("the queue has room")).collect();
    let text = scrape(TcpStream::connect(&address).expect("the queue has room"));
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    end(roxie, Signal::SIGTERM);
}

#[test]
fn a_unix_socket_answers_requests_to_every_host_and_leaves_no_file() {
    let dir = std::env::temp_dir().join(format!("roxie-metrics-program-{}", std::process::id()));
    fs::create_dir(&dir).expect("a new directory");
    let path = dir.join("socket");
    let (roxie, line) = start(&format!("exec \"$0\" metrics --listen unix:{}", path.display()));
    assert_eq!(line, format!("roxie: unix:{}", path.display()));
    let text = scrape(UnixStream::connect(&path).expect("it listens"));
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\nroxie_processes "), "{text}");
    let mut proxy = UnixStream::connect(&path).expect("it listens");
    proxy.write_all(b"HEAD / HTTP/1.1\r\nHost: public.example\r\n\r\n").expect("sent");
    let mut status = [0; 12];
    proxy.read_exact(&mut status).expect("a reply");
    assert_eq!(&status, b"HTTP/1.1 200");
    end(roxie, Signal::SIGTERM);
    fs::remove_dir(&dir).expect("it is empty");
}

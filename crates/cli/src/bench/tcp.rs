//! The same measurements over TCP sockets, between two threads: what a program without RDMA gets.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{During, Failure, Outcome};

/// Duration of each measurement, as that of the demo.
const SPAN: Duration = Duration::from_millis(1200);
/// Bytes of one call in the measurement of bandwidth, as the messages of the demo.
const LARGE: usize = 64 << 10;
/// Bytes of a small message.
const SMALL: usize = 8;
/// Small messages in one call, as the demo's post lists.
const LIST: usize = 64;
/// Round trips before the latency measurement starts.
const WARM_UP: usize = 200;

/// Results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Bytes per second.
    pub(super) bandwidth: f64,
    /// Messages of 8 bytes per second, 64 in each call.
    pub(super) rate: f64,
    /// Half of a round trip in us, median.
    pub(super) latency_us: f64,
}

/// Measures on this address.
pub(super) fn measure(ip: IpAddr) -> Outcome<Figures> {
    let bandwidth = stream(ip, LARGE)?;
    let rate = stream(ip, SMALL * LIST)? / SMALL as f64;
    Ok(Figures { bandwidth, rate, latency_us: latency(ip)? })
}

/// Returns both ends of a connection without Nagle's algorithm.
fn pair(ip: IpAddr) -> Outcome<(TcpStream, TcpStream)> {
    let connect = || {
        let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let (server, _) = listener.accept()?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok((client, server))
    };
    let connected: std::io::Result<_> = connect();
    connected.during("connecting TCP")
}

/// Returns the bytes per second that arrive, in calls of `len` bytes.
fn stream(ip: IpAddr, len: usize) -> Outcome<f64> {
    let (mut client, mut server) = pair(ip)?;
    let start = Instant::now();
    let sender = thread::spawn(move || {
        let bytes = vec![0x5a; len];
        while start.elapsed() < SPAN {
            client.write_all(&bytes)?;
        }
        std::io::Result::Ok(())
    });
    let mut buffer = vec![0; LARGE.max(len)];
    let mut total = 0_usize;
    loop {
        match server.read(&mut buffer).during("receiving over TCP")? {
            0 => break,
            read => total += read,
        }
    }
    let took = start.elapsed().as_secs_f64();
    sender.join().map_err(|_| Failure::new("the TCP sender failed"))?.during("sending over TCP")?;
    Ok(total as f64 / took)
}

fn latency(ip: IpAddr) -> Outcome<f64> {
    let (mut client, mut server) = pair(ip)?;
    let echo = thread::spawn(move || {
        let mut bytes = [0; SMALL];
        // Ends when the other end is closed.
        while server.read_exact(&mut bytes).and_then(|()| server.write_all(&bytes)).is_ok() {}
    });
    let mut took = Vec::new();
    let (start, mut bytes) = (Instant::now(), [0; SMALL]);
    while start.elapsed() < SPAN {
        let sent = Instant::now();
        client.write_all(&bytes).and_then(|()| client.read_exact(&mut bytes)).during("TCP there and back")?;
        took.push(sent.elapsed());
    }
    drop(client);
    echo.join().map_err(|_| Failure::new("the TCP echo failed"))?;
    let mut took = took.split_off(WARM_UP.min(took.len() / 2));
    took.sort_unstable();
    Ok(took[took.len() / 2].as_secs_f64() * 1e6 / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_of_tcp_is_measured() {
        let figures = measure(IpAddr::from([127, 0, 0, 1])).unwrap();
        assert!(figures.bandwidth > 1e6 && figures.rate > 1e3, "{figures:?}");
        assert!(figures.latency_us > 0.1 && figures.latency_us < 1e5, "{figures:?}");
    }
}

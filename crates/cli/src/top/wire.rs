//! Finds connections in the traffic of a network interface: a thread captures and analyses, the table reads
//! the counters.

use std::net::IpAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ::wire::capture::Seen;
use nix::ifaddrs::getifaddrs;
use nix::sys::signal::Signal;
use nix::sys::socket::SockaddrStorage;
use roxie::status::QpStatus;
use roxie_capture::analyse::{Analysis, Direction};
use roxie_capture::live::{CapturePoint, LiveCapture, Options};
use roxie_capture::source::Source;

use super::item::{Counts, Item, Key};
use crate::capture::{cannot_open, start_unattended};
use crate::ending::Ending;
use crate::failure::{Failure, Outcome};

/// Bytes captured of each packet: the headers.
const SNAP_LEN: u32 = 128;

/// A captured interface.
pub(super) struct Wire {
    name: String,
    /// The addresses of the interface.
    own: Vec<IpAddr>,
    analysis: Arc<Mutex<Analysis>>,
    thread: thread::JoinHandle<()>,
}

impl Wire {
    /// Starts the capture on a thread of its own.
    pub(super) fn open(name: &str) -> Outcome<Self> {
        let analysis = Arc::new(Mutex::new(Analysis::new()));
        let (started, starts) = mpsc::channel();
        let (point, shared) = (CapturePoint::Netdev(name.to_owned()), Arc::clone(&analysis));
        let thread = thread::spawn(move || {
            let mut source = match start(&point) {
                Ok(source) => source,
                Err(failure) => return drop(started.send(Err(failure))),
            };
            // Fails if the program has ended meanwhile.
            if started.send(Ok(())).is_ok() {
                feed(&mut source, &shared);
            }
        });
        starts.recv().unwrap_or_else(|_| Err(Failure::new(format!("{name}: the capture did not start"))))?;
        Ok(Self { name: name.to_owned(), own: addresses(name), analysis, thread })
    }

    /// The connections found so far. A direction without a known opposite is a connection of its own.
    pub(super) fn look(&self) -> Outcome<Vec<Item>> {
        if self.thread.is_finished() {
            return Err(Failure::new(format!(
                "{}: the capture has ended: was the interface removed?",
                self.name
            )));
        }
        let analysis = self.analysis.lock().unwrap_or_else(PoisonError::into_inner);
        let directions = analysis.directions();
        let each = directions.iter().enumerate().filter_map(|(index, direction)| {
            let back = match direction.peer {
                Some(peer) if peer < index => return None,
                peer => peer.and_then(|peer| directions.get(peer)),
            };
            let is_received = is_received(direction.key.src, direction.key.dst, &self.own);
            Some(item(direction, back, is_received, &self.name))
        });
        Ok(each.collect())
    }

    pub(super) fn summary(&self) -> String {
        let analysis = self.analysis.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = analysis.totals();
        let lost = match totals.not_followed {
            0 => String::new(),
            packets => format!(", {packets} packets not followed"),
        };
        format!("{}: {} RoCEv2 packets seen{lost}", self.name, totals.roce)
    }
}

/// Starts a capture of headers.
fn start(point: &CapturePoint) -> Outcome<Source<LiveCapture>> {
    // The signals are for the threads that draw or sleep: this thread must not take them.
    let _blocked = Ending::by(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let options = Options { snap_len: Some(SNAP_LEN), ..Options::default() };
    Source::new(start_unattended(point, options)?).map_err(cannot_open)
}

fn feed(source: &mut Source<LiveCapture>, analysis: &Mutex<Analysis>) {
    while let Ok(Some(record)) = source.next_record() {
        let seen = Seen::parse(record.decode_as, record.data);
        analysis.lock().unwrap_or_else(PoisonError::into_inner).feed(&record, &seen);
    }
}

/// The addresses of an interface; none if the kernel does not list them.
fn addresses(interface: &str) -> Vec<IpAddr> {
    let all = getifaddrs().into_iter().flatten().filter(|entry| entry.interface_name == interface);
    let ip = |address: SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    };
    all.filter_map(|entry| ip(entry.address?)).collect()
}

/// Whether a direction leads to this host. Without an end here, as in forwarded traffic, the direction found
/// first counts as the sending one.
fn is_received(src: IpAddr, dst: IpAddr, own: &[IpAddr]) -> bool {
    own.contains(&dst) && !own.contains(&src)
}

/// A table row for a connection seen on `netdev`. `is_received`: `direction` leads to this host.
fn item(direction: &Direction, back: Option<&Direction>, is_received: bool, netdev: &str) -> Item {
    let key = direction.key;
    let (there, other) = (Some(key.qp), back.map(|back| back.key.qp));
    let (qpn, dest_qpn) = if is_received { (there, other) } else { (other, there) };
    let (local, remote) = if is_received { (key.dst, key.src) } else { (key.src, key.dst) };
    let latency = |direction: &Direction| direction.counts.latency.percentile(50);
    let status = QpStatus {
        qpn: qpn.unwrap_or_default(),
        service: direction.service_name().to_owned(),
        local: Some(local),
        remote: Some(remote),
        dest_qpn,
        round_trip_ns: latency(direction).or_else(|| back.and_then(latency)),
        ..QpStatus::default()
    };
    let of = |count: fn(&Direction) -> u64| {
        let (first, second) = (count(direction), back.map_or(0, count));
        if is_received { (second, first) } else { (first, second) }
    };
    let messages = of(|direction| direction.counts.messages.iter().map(|(_, count)| count).sum());
    let (bytes, packets) = (of(|direction| direction.counts.bytes), of(|direction| direction.counts.packets));
    let both = |count: fn(&Direction) -> u64| {
        let (there, back) = of(count);
        there + back
    };
    let totals: Counts = [
        bytes.0,
        bytes.1,
        messages.0,
        messages.1,
        packets.0,
        packets.1,
        both(|direction| direction.counts.resent),
        both(|direction| direction.counts.episodes),
        both(|direction| direction.counts.naks),
        both(|direction| direction.counts.rnr_naks),
        both(|direction| direction.counts.cnps),
        both(|direction| direction.counts.ce),
    ];
    let key = Key::Wire { src: key.src, dst: key.dst, qpn: key.qp };
    Item { key, command: String::new(), device: String::new(), netdev: netdev.to_owned(), status, totals }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_at_the_interface_is_the_local_one() {
        let [own, other, third] = [1, 2, 3].map(|host| IpAddr::from([10, 0, 0, host]));
        assert!(is_received(other, own, &[own]));
        assert!(!is_received(own, other, &[own]));
        // On loopback, and in forwarded traffic, the direction found first is the sending one.
        assert!(!is_received(own, own, &[own]) && !is_received(other, third, &[own]));
        assert!(addresses("lo").iter().all(IpAddr::is_loopback) && addresses("no such netdev").is_empty());
    }
}

//! Receive times by the hints of a driver, and their place on the host's clock.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use sys::testing::{Host, ip};

use super::super::{CapturePoint, LiveCapture, Options};
use super::*;
use crate::source::Source;

#[test]
fn times_of_the_nic_keep_their_distances_on_the_clock_of_the_host() {
    // The NIC counts from 2^63 on, as one that was set to another time of day may.
    let nic = |ns: u64| (1 << 63) + ns;
    let mut clock = NicClock::default();
    assert_eq!(clock.host_ns(nic(1_000), 50_000), 50_000, "the first packet has no delay to compare");
    assert_eq!(clock.host_ns(nic(2_000), 50_700), 50_700, "the delay was 300 ns less");
    assert_eq!(clock.host_ns(nic(3_000), 59_000), 51_700, "1000 ns after the packet before");
    // A drift of 1 us in 25 s: only the last two periods count.
    let later = 15_000_000_000;
    assert_eq!(clock.host_ns(nic(later), 48_700 + later), 48_700 + later);
    let late = later + 25_000_000_000;
    assert_eq!(clock.host_ns(nic(late), 49_700 + late), 49_700 + late);
}

/// A veth has receive hints and no clock: the times are those of the XDP program. As root, else skipped.
#[test]
fn receive_times_cross_the_network_stack_in_front_of_the_packet() {
    let Some((here, peer)) = Host::new().zip(Host::new()) else { return };
    here.visit(|| {
        ip(&format!("link add veth0 mtu 9000 type veth peer name veth0 mtu 9000 netns {}", peer.path()))
    });
    for (host, n) in [(&here, 1), (&peer, 2)] {
        host.visit(|| {
            ip(&format!("link set veth0 address 02:00:00:00:81:0{n} addrgenmode none up"));
            ip(&format!("address add 10.81.0.{n}/24 dev veth0"));
            ip(&format!("neigh add 10.81.0.{} lladdr 02:00:00:00:81:0{} dev veth0", 3 - n, 3 - n));
        });
    }
    let options = Options { nic_time: true, duration: Some(Duration::from_secs(1)), ..Options::default() };
    let point = CapturePoint::Netdev("veth0".to_owned());
    let mut capture = match here.visit(|| LiveCapture::new(&point, options)) {
        Err(LiveError::NoHints { .. }) => return eprintln!("skipped: needs Linux 6.8"),
        capture => capture.unwrap(),
    };
    let socket = peer.visit(|| UdpSocket::bind("10.81.0.2:0")).unwrap();
    // BTH of a SEND Only, payload, ICRC.
    let packets = [60, 1500, 8000].map(|len| [&[4, 0x40, 0xff, 0xff][..], &vec![0; len]].concat());
    for packet in &packets {
        socket.send_to(packet, "10.81.0.1:4791").unwrap();
    }
    let (mut file, start) = (Vec::new(), Instant::now());
    while let bytes @ [_, ..] = capture.next_bytes().unwrap()
        && start.elapsed() < Duration::from_secs(5)
    {
        file.extend_from_slice(bytes);
    }
    let times = capture.receive_times().unwrap();
    assert_eq!(times, ReceiveTimes { nic: 0, driver: 3, stack: 0 });
    let mut source = Source::new(&file[..]).unwrap();
    for packet in &packets {
        let record = source.next_record().unwrap().expect("three packets");
        assert_eq!(&record.data[42..], packet, "the packet without the metadata");
    }
    assert_eq!(source.interfaces()[0].times.as_deref(), Some(TIMES));
}

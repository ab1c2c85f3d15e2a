//! Peers that have lost a connection, and hosts where no process has the port: noticed soon, and never by
//! mistake.

use super::*;
use ConnState::*;
use core::time::Duration;
use wire::cm::{Drep, Dreq};

const INTERVAL: Duration = Duration::from_secs(1);

/// An established connection whose active side probes.
fn probing() -> (Net, CmId, CmId) {
    let (mut net, a, b) = Net::established();
    net.cm[A].config.keepalive = INTERVAL;
    net.cm[A].keep_alive(a);
    (net, a, b)
}

/// Adds one more established connection between the two hosts.
fn connect_another(net: &mut Net, qpn: u32) -> CmId {
    let mut params = net.params();
    params.qp.qpn = Qpn::new(qpn);
    let a = net.cm[A].connect(net.now, &params).unwrap();
    net.run();
    let b = net.event(B).unwrap().id;
    let qp = LocalQp { qpn: Qpn::new(qpn ^ 0x30000), ..Net::accept_params().qp };
    net.cm[B].accept(net.now, b, &AcceptParams { qp, ..Net::accept_params() }).unwrap();
    net.run();
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::ConnectResponse(_)));
    net.cm[A].rtu(a, b"").unwrap();
    net.run();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
    a
}

/// The process of B is killed, and one with the same slot starts.
fn restart_b(net: &mut Net) {
    net.cm[B] = Cm::new(CmConfig::new(2, 0x0011_1111, 0x0200_0aff_fe00_0002, PathMtu::M4096));
    net.cm[B].set_gids(&[net.gid[B]]);
}

/// The process of B is killed, and its host says so for each message that arrives from now on: `is_said` gets
/// the number of the message. Returns the time (ms) of the first event of A.
fn without_b(net: &mut Net, is_said: impl Fn(usize) -> bool) -> (u64, CmEventKind) {
    for n in 0..1000 {
        let sent: Vec<MadBytes> =
            std::iter::from_fn(|| net.cm[A].poll_transmit()).map(|(.., mad)| mad).collect();
        if is_said(n) {
            sent.iter().for_each(|mad| net.cm[A].handle_refused(net.now, mad, net.gid[B]));
        }
        if let Some(event) = net.event(A) {
            return (net.now_ms(), event.kind);
        }
        let Some(at) = net.cm[A].poll_timeout() else { panic!("nothing is going to happen") };
        net.now = at;
        net.cm[A].handle_timeout(at);
    }
    panic!("no event");
}

#[test]
fn a_connection_that_both_ends_have_stays_established() {
    let (mut net, a, b) = probing();
    for _ in 0..100 {
        net.step();
    }
    assert_eq!(net.now_ms(), 100_000);
    assert_eq!(net.states(a, b), (Established, Established));
    assert_eq!(net.names(), [(A, "DREQ"); 100], "no message follows from a probe");
    assert!(net.event(A).is_none() && net.event(B).is_none());
}

#[test]
fn a_peer_that_was_restarted_is_noticed_with_the_next_probe() {
    let (mut net, a, _) = probing();
    restart_b(&mut net);
    net.step();
    assert_eq!((net.now_ms(), net.names()), (1000, vec![(A, "DREQ"), (B, "DREP")]));
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::Disconnected { timed_out: true }));
    assert_eq!(net.cm[A].state(a), Some(Timewait));
    assert!(matches!(net.wait_event(A).kind, CmEventKind::TimewaitExit));
    net.assert_quiet();
}

#[test]
fn all_connections_to_a_restarted_peer_are_probed_at_once() {
    let (mut net, ..) = probing();
    for n in 1..=20 {
        connect_another(&mut net, 0x10200 + n);
    }
    restart_b(&mut net);
    for _ in 0..21 {
        assert!(matches!(net.wait_event(A).kind, CmEventKind::Disconnected { timed_out: true }));
    }
    assert_eq!(net.now_ms(), 1000);
}

#[test]
fn each_connection_of_a_host_is_probed_in_turn() {
    let (mut net, ..) = probing();
    connect_another(&mut net, 0x10201);
    connect_another(&mut net, 0x10202);
    net.sent.clear();
    for _ in 0..6 {
        net.step();
    }
    let probed = |n: usize| Dreq::parse(&net.sent[n].2).local_comm_id;
    assert_eq!((net.sent.len(), net.now_ms()), (6, 6000), "one probe per interval");
    assert!(
        [0, 1, 2].map(probed) == [3, 4, 5].map(probed) && probed(0) != probed(1) && probed(1) != probed(2)
    );
}

#[test]
fn silence_ends_no_connection() {
    for side in [A, B] {
        let (mut net, a, _) = probing();
        net.lose.push((side, "DREQ", u32::MAX));
        net.lose.push((side, "DREP", u32::MAX));
        for _ in 0..1000 {
            net.step();
        }
        assert_eq!(net.cm[A].state(a), Some(Established));
    }
}

#[test]
fn a_killed_host_process_is_noticed_in_two_seconds() {
    let (mut net, a, _) = probing();
    let (at_ms, event) = without_b(&mut net, |_| true);
    assert!(matches!(event, CmEventKind::Disconnected { timed_out: true }));
    assert!((1500..2000).contains(&at_ms), "{at_ms}");
    assert_eq!(net.cm[A].state(a), Some(Timewait));
}

#[test]
fn one_of_the_icmp_messages_of_a_killed_host_process_is_enough() {
    let (mut net, ..) = probing();
    let (at_ms, event) = without_b(&mut net, |n| n == 3);
    assert!(matches!(event, CmEventKind::Disconnected { timed_out: true }));
    assert!((3500..5000).contains(&at_ms), "{at_ms}");
}

/// The ICMP messages that Linux sends to one host: six at once, then one per second (icmp_ratelimit).
struct IcmpLimit {
    saved_ms: u64,
    at_ms: u64,
}

impl IcmpLimit {
    fn takes(&mut self, at_ms: u64) -> bool {
        self.saved_ms = (self.saved_ms + at_ms - self.at_ms).min(6000);
        self.at_ms = at_ms;
        let sends = self.saved_ms >= 1000;
        self.saved_ms -= if sends { 1000 } else { 0 };
        sends
    }
}

/// The process of B is killed while 64 packets of A are in flight, of which A retransmits one each 100 ms. A
/// hears of the ICMP messages about them if `hears_of_packets`. Returns when A reports the end of the
/// connection (ms), within 10 s.
fn without_b_and_data_in_flight(hears_of_packets: bool) -> Option<u64> {
    let (mut net, ..) = probing();
    let mut limit = IcmpLimit { saved_ms: 6000, at_ms: 0 };
    for at_ms in 0..10_000_u64 {
        net.now = Instant(at_ms * 1_000_000);
        let packets = if at_ms == 0 { 64 } else { u32::from(at_ms % 100 == 0) };
        for _ in 0..packets {
            if limit.takes(at_ms) && hears_of_packets {
                net.cm[A].handle_refused_packet(net.now, net.gid[A], net.gid[B]);
            }
        }
        if net.cm[A].poll_timeout().is_some_and(|at| at <= net.now) {
            net.cm[A].handle_timeout(net.now);
        }
        while let Some((.., mad)) = net.cm[A].poll_transmit() {
            if limit.takes(at_ms) {
                net.cm[A].handle_refused(net.now, &mad, net.gid[B]);
            }
        }
        if net.event(A).is_some() {
            return Some(at_ms);
        }
    }
    None
}

#[test]
fn retransmissions_that_use_up_the_icmp_messages_of_a_host_do_not_hide_the_death_of_its_process() {
    assert_eq!(without_b_and_data_in_flight(false), None, "the probes get no ICMP message");
    assert_eq!(without_b_and_data_in_flight(true), Some(750));
}

#[test]
fn a_refused_packet_ends_no_connection_if_one_host_probe_is_answered() {
    for lost in 0..5 {
        let (mut net, a, b) = probing();
        net.lose.push((B, "DREP", lost));
        for _ in 0..50 {
            net.cm[A].handle_refused_packet(net.now, net.gid[A], net.gid[B]);
        }
        for _ in 0..30 {
            net.step();
        }
        let survives = lost < 4;
        assert_eq!(net.cm[A].state(a) == Some(Established), survives, "{lost} replies were lost");
        assert_eq!(net.cm[B].state(b), Some(Established));
    }
}

#[test]
fn a_refused_packet_to_a_host_without_connections_means_nothing() {
    let (mut net, a, b) = probing();
    let elsewhere = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 9));
    for (src, dst) in [(net.gid[A], elsewhere), (elsewhere, net.gid[B]), (net.gid[B], net.gid[A])] {
        net.cm[A].handle_refused_packet(net.now, src, dst);
    }
    for _ in 0..3 {
        net.step();
    }
    assert_eq!((net.names(), net.now_ms()), (vec![(A, "DREQ"); 3], 3000), "no host probe");
    assert_eq!(net.states(a, b), (Established, Established));
}

#[test]
fn an_icmp_message_ends_no_connection_if_one_host_probe_is_answered() {
    let (mut net, a, b) = probing();
    net.now = net.cm[A].poll_timeout().unwrap();
    net.cm[A].handle_timeout(net.now);
    let (.., mad) = net.cm[A].poll_transmit().unwrap();
    for _ in 0..100 {
        net.cm[A].handle_refused(net.now, &mad, net.gid[B]);
    }
    net.lose.push((B, "DREP", 3));
    for _ in 0..100 {
        net.step();
    }
    assert_eq!(net.log.iter().filter(|(_, side, name)| (*side, *name) == (B, "DREP")).count(), 4);
    assert_eq!(net.states(a, b), (Established, Established));
}

#[test]
fn forged_messages_do_not_hide_the_death_of_a_host_process() {
    let (mut net, a, b) = probing();
    let rep = net.sent.iter().find(|(_, m, _)| name(m) == "REP").unwrap().2;
    let mut tid = 0;
    let at_ms = loop {
        net.now = net.cm[A].poll_timeout().expect("a probe");
        net.cm[A].handle_timeout(net.now);
        while let Some((.., mad)) = net.cm[A].poll_transmit() {
            net.cm[A].handle_refused(net.now, &mad, net.gid[B]);
            tid = Dreq::parse(&mad).tid;
        }
        if let Some(event) = net.event(A) {
            assert!(matches!(event.kind, CmEventKind::Disconnected { timed_out: true }));
            break net.now_ms();
        }
        assert!(net.now_ms() < 10_000, "the death is hidden");
        // Also with the right ids, which count up, and a transaction id that is nearly right.
        let forged = [(7, (b.0, a.0)), (tid ^ 1, (b.0, a.0)), (tid ^ 1, (u32::MAX, a.0))];
        let dreps = forged.map(|(tid, ids)| *message::drep(tid, ids, &[]));
        for mad in dreps.iter().chain([&rep]) {
            net.cm[A].handle_mad(net.now, mad, net.gid[B], net.gid[A]);
            while net.cm[A].poll_transmit().is_some() {}
        }
    };
    assert!((1500..2000).contains(&at_ms), "{at_ms}");
}

#[test]
fn connections_that_have_ended_are_not_kept_behind_long_lived_ones() {
    let (mut net, ..) = probing();
    for n in 1..=50 {
        connect_another(&mut net, 0x10200 + n);
    }
    for n in 0..500 {
        let id = connect_another(&mut net, 0x11000 + n);
        net.cm[A].disconnect(net.now, id, b"").unwrap();
        net.run();
        let b = net.event(B).unwrap();
        assert!(matches!(b.kind, CmEventKind::Disconnected { .. }));
        net.cm[B].drep(net.now, b.id, b"").unwrap();
        net.run();
        while net.event(A).is_some() {}
    }
    let members: usize = net.cm[A].keepalive.hosts.values().map(|host| host.members.len()).sum();
    assert_eq!(members, 51);
}

#[test]
fn no_host_is_kept_without_a_connection() {
    let (mut net, a, b) = probing();
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    net.cm[B].drep(net.now, b, b"").unwrap();
    net.run();
    assert!(net.cm[A].keepalive.hosts.is_empty() && net.cm[A].keepalive.next().is_none());
}

#[test]
fn forged_messages_about_a_probe_end_no_connection() {
    let (mut net, a, b) = probing();
    for n in 0..20 {
        net.now = net.cm[A].poll_timeout().unwrap();
        net.cm[A].handle_timeout(net.now);
        let (.., mad) = net.cm[A].poll_transmit().unwrap();
        let mut forged = mad;
        forged[8 + n % 8] ^= 1;
        net.cm[A].handle_refused(net.now, &forged, net.gid[B]);
        let drep = message::drep(Dreq::parse(&forged).tid, (b.0, a.0), &[]);
        net.cm[A].handle_mad(net.now, &drep, net.gid[B], net.gid[A]);
        let elsewhere = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 9));
        net.cm[A].handle_refused(net.now, &mad, elsewhere);
    }
    assert_eq!(net.cm[A].state(a), Some(Established));
    assert!(net.event(A).is_none());
}

#[test]
fn a_probe_for_another_process_of_the_host_gets_a_drep_only_if_there_is_none() {
    let (mut net, _, b) = Net::established();
    let ids = Dreq { tid: 5, local_comm_id: 7, remote_comm_id: b.0 ^ 0x0700_0000, ..Dreq::default() };
    let mad = message::emit(|mad| ids.emit(mad));
    let outcome = net.cm[B].handle_mad(net.now, &mad, net.gid[A], net.gid[B]);
    assert_eq!(outcome, MadOutcome::OfSlot(CmId(ids.remote_comm_id).slot()));
    net.run();
    assert!(net.log.is_empty());
    net.cm[B].reply_without_process(net.now, &mad, net.gid[A], net.gid[B]);
    net.run();
    assert_eq!(net.names(), [(B, "DREP")]);
    assert_eq!(net.sent.last().map(|sent| Drep::parse(&sent.2).tid), Some(5));
}

/// Its DREQs go to a process that does not exist; only probes reach another process of that host.
#[test]
fn a_disconnect_without_a_drep_is_probed() {
    let (mut net, a, _) = probing();
    restart_b(&mut net);
    net.lose.push((B, "DREP", 1));
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    assert!(matches!(net.wait_event(A).kind, CmEventKind::Disconnected { timed_out: true }));
    assert_eq!(net.now_ms(), 1000, "the DREQ is repeated after 4.6 s");
}

/// The kernel of the silent host has spent its ICMP messages on the first process.
#[test]
fn a_process_tells_the_others_of_its_host_that_a_host_is_silent() {
    let (mut net, ..) = probing();
    net.cm[A].handle_refused_packet(net.now, net.gid[A], net.gid[B]);
    without_b(&mut net, |_| false);
    assert_eq!(net.cm[A].poll_silent_host(), Some((net.gid[A], net.gid[B])));
    assert_eq!(net.cm[A].poll_silent_host(), None);

    let (mut other, ..) = probing();
    other.cm[A].handle_silent_host(other.now, other.gid[A], other.gid[B]);
    let (at_ms, event) = without_b(&mut other, |_| false);
    assert!(matches!(event, CmEventKind::Disconnected { timed_out: true }));
    assert_eq!((at_ms, other.cm[A].poll_silent_host()), (750, None), "all have heard of it");
}

#[test]
fn what_another_process_says_of_a_host_that_replies_ends_no_connection() {
    let (mut net, a, b) = probing();
    net.cm[A].handle_silent_host(net.now, net.gid[A], net.gid[B]);
    for _ in 0..20 {
        net.step();
    }
    assert_eq!(net.states(a, b), (Established, Established));
    assert_eq!(net.cm[A].poll_silent_host(), None);
}

#[test]
fn a_client_of_an_absent_listener_fails_in_two_seconds() {
    let mut net = Net::new();
    net.connect();
    let (at_ms, event) = without_b(&mut net, |_| true);
    assert!(matches!(event, CmEventKind::Unreachable { is_refused: true }));
    assert!((1000..2000).contains(&at_ms), "{at_ms}");
}

#[test]
fn a_client_of_an_absent_datagram_service_fails_in_two_seconds() {
    let mut net = Net::new();
    let service_id = ServiceId::from_port(ServiceId::UDP, PORT);
    let params = SidrParams { service_id, path: net.path(), private_data: b"" };
    net.cm[A].sidr_connect(net.now, &params).unwrap();
    let (at_ms, event) = without_b(&mut net, |_| true);
    assert!(matches!(event, CmEventKind::Unreachable { is_refused: true }));
    assert!((1000..2000).contains(&at_ms), "{at_ms}");
    assert_eq!(net.cm[A].poll_timeout(), None);
}

#[test]
fn a_client_that_is_refused_once_repeats_its_request_as_often_as_any() {
    let mut net = Net::new();
    net.connect();
    let (at_ms, event) = without_b(&mut net, |n| n == 0);
    assert!(matches!(event, CmEventKind::Unreachable { is_refused: false }));
    assert!(at_ms > 60_000, "{at_ms}");
}

#[test]
fn a_server_that_starts_late_gets_the_request() {
    let mut net = Net::new();
    net.connect();
    for _ in 0..3 {
        let (.., mad) = net.cm[A].poll_transmit().unwrap();
        net.cm[A].handle_refused(net.now, &mad, net.gid[B]);
        net.now = net.cm[A].poll_timeout().unwrap();
        net.cm[A].handle_timeout(net.now);
    }
    net.listen(0);
    net.run();
    assert_eq!(net.now_ms(), 750);
    let b = net.event(B).unwrap().id;
    net.accept(b);
    net.run();
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::ConnectResponse(_)));
}

#[test]
fn a_disconnect_from_a_killed_peer_ends_at_once() {
    let (mut net, a, _) = Net::established();
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    let (at_ms, event) = without_b(&mut net, |_| true);
    assert!(matches!(event, CmEventKind::Disconnected { timed_out: true }));
    assert_eq!(at_ms, 0);
}

#[test]
fn a_disconnected_connection_is_not_probed() {
    let (mut net, a, b) = probing();
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    net.cm[B].drep(net.now, b, b"").unwrap();
    net.run();
    while net.step() {}
    assert_eq!(net.names(), [(A, "DREQ"), (B, "DREP")]);
    while net.event(A).is_some() || net.event(B).is_some() {}
    net.assert_quiet();
}

//! How long a silent peer is probed how often. Requests start at PSN 500; the ACK timeout is 67.1 ms.

use super::*;
use crate::testing::{Bench, Pkt, us};
use crate::{SendFlags, WcStatus, WrOp};

const MS: u64 = 1_000_000;
const RTT: u64 = 30_000;

fn at(ms: u64) -> Instant {
    Instant(ms * MS)
}

#[test]
fn a_peer_that_answers_long_after_the_probe_is_probed_after_twice_that_pause() {
    let mut silence = Silence::default();
    assert_eq!(silence.first_probe_ns(at(10), None), 0);
    silence.ended_after_probe(3 * MS, 2 * MS, RTT, at(10));
    assert_eq!(silence.first_probe_ns(at(10), None), 6 * MS);
    silence.ended_by_itself(5 * MS, at(500));
    silence.ended_by_itself(2 * MS, at(600));
    assert_eq!(silence.first_probe_ns(at(1500), None), 10 * MS, "the longest within a second");
    assert_eq!(silence.first_probe_ns(at(1600), None), 0, "forgotten");
    silence.ended_by_itself(5 * MS, at(1700));
    assert_eq!(silence.first_probe_ns(at(1700), None), 0, "no probe has shown a pause");
    silence.ended_after_probe(900 * MS, 800 * MS, RTT, at(1800));
    assert_eq!(silence.first_probe_ns(at(1800), None), DEFERRED_MAX_NS);
    assert_eq!(silence.first_probe_ns(at(1800), Some(16 * MS)), 4 * MS, "a quarter of the timeout");
}

#[test]
fn a_loss_makes_probes_early_again() {
    let mut silence = Silence::default();
    silence.ended_after_probe(4 * MS, 2 * MS, RTT, at(10));
    silence.ended_after_probe(MS / 2, 2 * RTT, RTT, at(20));
    assert_eq!(silence.first_probe_ns(at(20), None), 4 * MS, "one prompt answer may be a coincidence");
    silence.lost(at(30));
    assert_eq!(silence.first_probe_ns(at(30), None), 0);
    silence.ended_after_probe(4 * MS, 2 * MS, RTT, at(40));
    assert_eq!(silence.first_probe_ns(at(40), None), 0, "the probe may have been lost as well");
    silence.ended_after_probe(4 * MS, 2 * MS, RTT, at(1040));
    assert_eq!(silence.first_probe_ns(at(1040), None), 8 * MS);
}

/// Posts a SEND, and passes the time until `until_us`. Returns when the requester sent something.
fn send(b: &mut Bench, until_us: u64) -> Vec<Instant> {
    b.post_flags(1, WrOp::Send, 8, SendFlags::empty()).unwrap();
    b.sent();
    let mut times = vec![];
    while let Some(at) = b.qp.poll_timeout().filter(|at| *at < us(until_us)) {
        b.at(at);
        if !b.sent().is_empty() {
            times.push(at);
        }
    }
    b.at(us(until_us));
    times
}

/// Lets a peer answer one SEND after each of these times (microseconds). Returns the connection, the time
/// now, and for each SEND how many probes the requester had made by then.
fn answered(pauses_us: &[u64]) -> (Bench, u64, Vec<u64>) {
    let (mut b, mut now_us, mut probes) = (Bench::rc(), 0, vec![]);
    for (psn, pause_us) in (500..).zip(pauses_us) {
        now_us += pause_us;
        send(&mut b, now_us);
        b.recv(&Pkt::ack(psn)).unwrap();
        b.sent();
        probes.push(b.qp.counters().probes);
    }
    (b, now_us, probes)
}

/// A peer without a CPU for 5 ms is probed once or twice when that happens for the first time, and then no
/// more.
#[test]
fn a_peer_that_pauses_is_not_probed_in_its_next_pause() {
    let (_, _, probes) = answered(&[5_000; 20]);
    assert_eq!((probes[1], probes[19]), (probes[0], probes[0]), "{probes:?}");
}

/// Times of the probes and of the timeouts, since the silence began, of a peer that answered 20 SENDs
/// promptly, then one after this time, and then never again.
fn times_until_the_retries_are_exhausted(pause_us: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut b, start_us, _) = answered(&[&[10; 20][..], &[pause_us]].concat());
    b.events();
    b.post_flags(1, WrOp::Send, 8, SendFlags::empty()).unwrap();
    b.sent();
    let (mut probes, mut timeouts) = (vec![], vec![]);
    let mut counted = b.qp.counters().local_ack_timeout_err;
    while let Some(at) = b.qp.poll_timeout() {
        b.at(at);
        b.sent();
        let count = b.qp.counters().local_ack_timeout_err;
        let times = if count > counted { &mut timeouts } else { &mut probes };
        times.push(at.since(us(start_us)).as_nanos() as u64);
        counted = count;
    }
    assert_eq!(b.send_wcs(), [(1, WcStatus::RetryExcErr)]);
    (probes, timeouts)
}

/// Known pauses delay the first probe. They take no probe away before any timeout, and change neither how
/// many timeouts there are nor when.
#[test]
fn known_pauses_take_no_probe_and_no_retry_away() {
    let (probes, timeouts) = times_until_the_retries_are_exhausted(10);
    assert!(probes.len() > 4 && timeouts.len() > 1, "{probes:?}, {timeouts:?}");
    for pause_us in [2_000, 5_000, 9_000, 20_000, 30_000, 60_000] {
        let (later, same) = times_until_the_retries_are_exhausted(pause_us);
        assert_eq!(same, timeouts, "pauses of {pause_us} us");
        assert!(later[0] > probes[0], "the first probe waits for the pause of {pause_us} us: {later:?}");
        for timeout in &timeouts {
            let before = |times: &[u64]| times.iter().filter(|at| *at < timeout).count();
            assert!(before(&later) >= before(&probes), "pauses of {pause_us} us: {later:?}, {probes:?}");
        }
    }
}

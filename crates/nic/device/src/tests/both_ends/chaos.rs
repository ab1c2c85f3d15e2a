//! `--chaos` at one end of a connection, with every seed of a range: the faults must leave the queue pair in
//! a state that it may have without them.

use std::sync::Arc;

use transport::chaos::Chaos;
use transport::{QpState, QpType, WcStatus, WrOp};
use wire::Opcode;

use super::cable::Fate;
use super::end::{End, MTU};
use super::pair::{HERE, Pair, Setup};
use crate::engine::tables::Tables;
use crate::port::RxQueues;
use crate::sched::Trigger;

const SEEDS: u64 = 60;

/// Gives an end the faults of a seed.
fn faults(end: &mut End, seed: u64, faults: &str) -> Arc<Chaos> {
    let plan = format!("seed={seed},faults={faults}");
    let chaos = Arc::new(Chaos::new(plan.parse().expect("a plan")));
    let Tables { observer, mrs, .. } = &mut end.core.tables;
    observer.disturb(&chaos, mrs);
    chaos
}

#[test]
fn a_fatal_packet_flushes_the_receives_that_chaos_hides_from_it() {
    let mut hidden = 0;
    for seed in 0..SEEDS {
        let mut pair = Pair::new(&Setup::new(QpType::Rc));
        let chaos = faults(&mut pair.there, seed, "rnr");
        for _ in 0..3 {
            pair.receive(MTU + 8);
        }
        // A message begins before the last packet of another one.
        pair.judge(HERE, |_, packet| {
            if packet[0] == Opcode::RC_SEND_LAST.0 {
                packet[0] = Opcode::RC_SEND_ONLY.0;
            }
            Fate::Arrives
        });
        pair.post(WrOp::Send, MTU + 8);
        pair.run();
        let observed = pair.there.observe();
        assert_eq!(observed.state, QpState::Err, "seed {seed}");
        let [_begun, flushed @ ..] = &observed.recvs[..] else { panic!("seed {seed}: no completion") };
        assert_eq!(flushed, [WcStatus::WrFlushErr; 2], "seed {seed}");
        hidden += chaos.counts().len();
    }
    assert!(hidden > 5, "{hidden} seeds hide receives");
}

#[test]
fn a_hold_that_has_ended_is_no_deadline() {
    let mut held = 0;
    for seed in 0..SEEDS {
        let mut pair = Pair::new(&Setup::new(QpType::Rc));
        // The application leaves completions in the CQ, so the scheduler holds its further messages.
        for _ in 0..3 {
            pair.post(pair.there.open.write(0), 8);
        }
        pair.run();
        assert!(pair.here.send_cq.pop_one().is_some());
        let chaos = faults(&mut pair.here, seed, "send-reads");
        pair.post(pair.there.open.write(0), 8);
        let poll = |pair: &mut Pair| {
            let now = pair.now;
            pair.here.core.poll(|| now, RxQueues::ALL, Trigger::Poll);
            pair.here.core.next_deadline(|| now)
        };
        if poll(&mut pair).is_none_or(|at| at <= pair.now) || chaos.counts().is_empty() {
            continue;
        }
        held += 1;
        // The hold of send-reads ends after 0.25 ms at the latest.
        pair.now = pair.now.plus_ns(300_000);
        let sent = pair.cable.described_by(HERE).len();
        let next = poll(&mut pair);
        assert_eq!(pair.cable.described_by(HERE).len(), sent, "the scheduler holds it, seed {seed}");
        assert!(next.is_none_or(|at| at > pair.now), "seed {seed}: {next:?} at {:?}", pair.now);
    }
    assert!(held > 5, "{held} seeds");
}

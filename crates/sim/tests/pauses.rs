//! A peer without a CPU for some milliseconds is not a lossy path: the requester retransmits less than 0.1 %
//! of its packets.

use roxie::sched::Tuning;
use roxie_sim::{DeviceOptions, DeviceOutcome, PausedVerb, Pauses, run_pauses};

const MS: u64 = 1_000_000;
const VERBS: [PausedVerb; 3] = [PausedVerb::Send, PausedVerb::Write, PausedVerb::Read];

/// 32 MiB to or from a peer that runs for 1 ms at a time.
fn run(verb: PausedVerb, pause_ns: u64, drop_ppm: u64) -> DeviceOutcome {
    let options = DeviceOptions { seed: 7, tuning: Tuning::default() };
    let pauses = Pauses { verb, messages: (128, 256 * 1024), run_pause_ns: (MS, pause_ns), drop_ppm };
    let outcome = run_pauses(&options, &pauses).unwrap_or_else(|failed| panic!("{verb:?}: {}", failed.what));
    println!("{verb:?}, pauses of {} ms: {outcome:?}", pause_ns / MS);
    outcome
}

/// A pause of 4 ms is within the bound: the first probe waits for a quarter of the local ACK timeout at most.
/// Longer pauses are probed.
#[test]
fn a_peer_that_waits_for_a_cpu_causes_few_retransmissions() {
    const PAUSE_NS: u64 = 4 * MS;
    for verb in VERBS {
        let outcome = run(verb, PAUSE_NS, 0);
        let (sent, dropped) = outcome.packets;
        let again = outcome.retransmissions.packets + outcome.retransmissions.stale_responses;
        assert!(outcome.elapsed_ns > 20 * PAUSE_NS, "there were pauses");
        assert_eq!(dropped, 0);
        assert!(again * 1000 < sent, "{verb:?}: {again} of {sent} packets were retransmitted");
    }
}

/// The same peer behind a path that loses packets: losses are repaired within round trips, not after the
/// pauses.
#[test]
fn losses_are_repaired_early_although_the_peer_pauses() {
    for verb in VERBS {
        let without = run(verb, 4 * MS, 0).elapsed_ns;
        let with = run(verb, 4 * MS, 1_000).elapsed_ns;
        assert!(with < without * 5 / 4, "{verb:?}: {} instead of {} us", with / 1000, without / 1000);
    }
}

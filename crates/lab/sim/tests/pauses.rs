//! A peer without a CPU for some milliseconds is not a lossy path: the requester retransmits less than 0.1 %
//! of its packets. A requester without a CPU uses up no retry.

use roxie::sched::Tuning;
use roxie_sim::{DeviceFailed, DeviceOptions, DeviceOutcome, PausedSide, PausedVerb, Pauses, run_pauses};

const MS: u64 = 1_000_000;
const VERBS: [PausedVerb; 3] = [PausedVerb::Send, PausedVerb::Write, PausedVerb::Read];

/// 32 MiB to or from a peer that runs for 1 ms at a time.
fn run(verb: PausedVerb, pause_ns: u64, drop_ppm: u64) -> DeviceOutcome {
    let options = DeviceOptions { seed: 7, tuning: Tuning::default() };
    let (side, run_pause_ns) = (PausedSide::Responder, (MS, pause_ns));
    let pauses = Pauses { verb, messages: (128, 256 * 1024), side, run_pause_ns, drop_ppm, timeout: 12 };
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

/// Messages of 64 KiB under 5 % loss while one side has a CPU for 3 ms at a time, or both. With a local ACK
/// timeout of 16.8 ms and 7 retries the requester gives up after a silence of 487 ms.
fn run_starved(
    side: PausedSide,
    messages: usize,
    pause_ns: u64,
    seed: u64,
) -> Result<DeviceOutcome, DeviceFailed> {
    let options = DeviceOptions { seed, tuning: Tuning::default() };
    let (messages, run_pause_ns) = ((messages, 64 * 1024), (3 * MS, pause_ns));
    run_pauses(
        &options,
        &Pauses { verb: PausedVerb::Write, messages, side, run_pause_ns, drop_ppm: 50_000, timeout: 12 },
    )
}

/// The responses that arrived during a pause count before the timer does, and a pause uses up one retry at
/// most. So a pause that is longer than all timeouts does no harm.
#[test]
fn a_requester_without_a_cpu_keeps_its_connection() {
    for seed in 0..10 {
        for (side, pause_ns) in [(PausedSide::Requester, 600 * MS), (PausedSide::Both, 100 * MS)] {
            let outcome = run_starved(side, 16, pause_ns, seed);
            let outcome = outcome.unwrap_or_else(|failed| panic!("seed {seed}: {}", failed.what));
            assert!(outcome.elapsed_ns > pause_ns, "there was a pause");
        }
    }
}

/// A NIC with these attributes gives up after 134 ms (537 ms if it takes the longest timeouts of IBA
/// 9.7.6.1.3).
#[test]
fn a_responder_without_a_cpu_for_all_retries_loses_its_connection() {
    for seed in 0..2 {
        let kept = run_starved(PausedSide::Responder, 16, 100 * MS, seed);
        kept.unwrap_or_else(|failed| panic!("seed {seed}: {}", failed.what));
        let lost = run_starved(PausedSide::Responder, 64, 600 * MS, seed).expect_err("no retry is left");
        assert!(lost.what.contains("RetryExcErr"), "seed {seed}: {}", lost.what);
    }
}

/// Neither process has a CPU for longer than 3 ms in 300, and never both at once: a retransmission takes 300
/// ms, and some of 250 packets are lost three times. Requests that wait for them are kept for as long.
#[test]
fn hosts_without_cpus_repair_their_losses() {
    for seed in [2, 4] {
        let options = DeviceOptions { seed, tuning: Tuning::default() };
        let pauses = Pauses {
            verb: PausedVerb::Write,
            messages: (128, 64 * 1024),
            side: PausedSide::Both,
            run_pause_ns: (3 * MS, 300 * MS),
            drop_ppm: 50_000,
            timeout: 16,
        };
        // It must end within 100 pauses.
        run_pauses(&options, &pauses).unwrap_or_else(|failed| panic!("seed {seed}: {}", failed.what));
    }
}

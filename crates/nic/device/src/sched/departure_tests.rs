//! The decisions of [`decide`] as tables.

use super::*;

/// An RC queue pair with one small signaled message to send and nothing in flight.
const MESSAGE: Backlog = Backlog {
    pending_packets: 1,
    pending_bytes: 8,
    last_posted_bytes: 8,
    unsignaled_run: 0,
    in_flight_packets: 0,
    window_room_packets: 310,
    path_mtu_bytes: 1024,
    is_paced: false,
    is_ack_expected: false,
    owes_responses: false,
    isolated_packets: 1,
    only_small_messages: true,
    has_event: false,
    is_reliable: true,
};

/// A queue pair in a stream: 64 packets in flight, an ACK is expected.
const STREAM: Backlog =
    Backlog { in_flight_packets: 64, is_ack_expected: true, isolated_packets: 0, ..MESSAGE };

const POST: Trigger = Trigger::Post { work_requests: 1, is_listed: false };
const POST_BEHIND_HELD: Trigger = Trigger::Post { work_requests: 1, is_listed: true };
/// Packets that the flow window accepts.
const ROOM: usize = 310;

/// Each row: what it shows, the backlog, whether the CQ is backlogged, and whether the packets leave.
fn check(trigger: Trigger, rows: &[(&str, Backlog, bool, bool)]) {
    for (what, backlog, cq_is_backlogged, leaves) in rows {
        let decision = decide(trigger, backlog, *cq_is_backlogged, ROOM, &Tuning::default());
        assert_eq!(decision != Decision::Hold, *leaves, "{what}");
    }
}

#[test]
fn the_first_post_leaves_at_once_unless_an_ack_is_expected() {
    check(
        POST,
        &[
            ("a message with nothing in flight", MESSAGE, false, true),
            ("an ACK is expected, three in flight", Backlog { in_flight_packets: 3, ..STREAM }, false, true),
            ("an ACK is expected, four in flight", Backlog { in_flight_packets: 4, ..STREAM }, false, false),
            ("in flight, no ACK is expected", Backlog { is_ack_expected: false, ..STREAM }, false, true),
            ("a backlogged CQ", MESSAGE, true, true),
        ],
    );
}

#[test]
fn a_post_behind_a_held_message_leaves_when_the_batch_is_full() {
    check(
        POST_BEHIND_HELD,
        &[
            ("one message with a backlogged CQ", MESSAGE, true, false),
            ("95 packets of a stream", Backlog { pending_packets: 95, ..STREAM }, false, false),
            ("96 packets of a stream", Backlog { pending_packets: 96, ..STREAM }, false, true),
            ("a byte less than two bursts", Backlog { pending_bytes: 126_975, ..STREAM }, false, false),
            ("two bursts of bytes", Backlog { pending_bytes: 126_976, ..STREAM }, false, true),
            ("a message of a burst", Backlog { last_posted_bytes: 63_488, ..STREAM }, false, true),
            ("signaled after 15 unsignaled", Backlog { unsignaled_run: 15, ..STREAM }, false, false),
            ("signaled after 16 unsignaled", Backlog { unsignaled_run: 16, ..STREAM }, false, true),
            ("an unreliable service", Backlog { is_reliable: false, ..STREAM }, true, true),
        ],
    );
    let list = |work_requests| Trigger::Post { work_requests, is_listed: true };
    check(list(31), &[("a list of 31 work requests", STREAM, false, false)]);
    check(list(32), &[("a list of 32 work requests", STREAM, false, true)]);
}

#[test]
fn a_poll_holds_small_messages_while_completions_are_left_in_the_cq() {
    check(
        Trigger::Poll,
        &[
            ("the application has taken all completions", STREAM, false, true),
            ("completions are left in the CQ", STREAM, true, false),
            ("a READ or a retransmission", Backlog { only_small_messages: false, ..STREAM }, true, true),
            ("an event to deliver", Backlog { has_event: true, ..STREAM }, true, true),
        ],
    );
    check(Trigger::Flush, &[("the progress thread", STREAM, true, true)]);
}

#[test]
fn a_quantum_fills_the_window_by_whole_bursts_and_sends_two_bursts_in_halves() {
    let all = usize::MAX;
    let long = Backlog { pending_packets: 1000, isolated_packets: 0, only_small_messages: false, ..STREAM };
    let table = [
        // What it shows, the backlog, the room in the flow; budget and flush point of the quantum.
        ("one small message", MESSAGE, 310, 310, all),
        ("room for all that is pending", Backlog { pending_packets: 100, ..long }, 310, 310, all),
        ("more than the flow takes", long, 200, 186, all),
        ("more than the window takes", Backlog { window_room_packets: 130, ..long }, 310, 124, all),
        ("less than a burst in flight", Backlog { in_flight_packets: 61, ..long }, 200, 200, all),
        ("a rate limit", Backlog { is_paced: true, ..long }, 200, 200, all),
        ("a full flow window", long, 0, 0, all),
        ("a message of one burst", Backlog { isolated_packets: 62, ..MESSAGE }, 310, 310, all),
        ("a message of 64 KiB", Backlog { isolated_packets: 64, ..MESSAGE }, 310, 310, 32),
        ("a message of two bursts", Backlog { isolated_packets: 124, ..MESSAGE }, 310, 310, 62),
        ("a message of more", Backlog { isolated_packets: 125, ..MESSAGE }, 310, 310, all),
        (
            "bursts of 4 KiB packets",
            Backlog { path_mtu_bytes: 4096, in_flight_packets: 15, ..long },
            50,
            45,
            all,
        ),
    ];
    for (what, backlog, flow_room_pkts, budget_pkts, flush_at_pkts) in table {
        let expected = Quantum { budget_pkts, flush_at_pkts, max_pkts: 124 };
        let decision = decide(Trigger::Flush, &backlog, false, flow_room_pkts, &Tuning::default());
        assert_eq!(decision, Decision::Send(expected), "{what}");
    }
}

//! The table of [`decide`], row by row: a reader can check each by hand.

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
    wants_transmit: true,
    is_reliable: true,
};

/// The same in a stream: dozens in flight, an ACK expected.
const STREAM: Backlog =
    Backlog { in_flight_packets: 64, is_ack_expected: true, isolated_packets: 0, ..MESSAGE };

const POST: Trigger = Trigger::Post { work_requests: 1, is_listed: false };
const POST_BEHIND_HELD: Trigger = Trigger::Post { work_requests: 1, is_listed: true };
const ROOM: usize = 310;

fn sends(trigger: Trigger, backlog: Backlog, cq_is_backlogged: bool) -> bool {
    decide(trigger, &backlog, cq_is_backlogged, ROOM, &Tuning::default()) != Decision::Hold
}

#[test]
fn a_message_leaves_at_once_or_is_held_for_a_batch() {
    let list = |work_requests| Trigger::Post { work_requests, is_listed: true };
    #[rustfmt::skip]
    let table = [
        // what                                  trigger           backlog                      CQ
        // backlogged, sends
        ("a message with nothing in flight",     POST,             MESSAGE,                                false, true),
        ("an ACK is expected, few in flight",    POST,             Backlog { in_flight_packets: 3, ..STREAM }, false, true),
        ("an ACK is expected, four in flight",   POST,             Backlog { in_flight_packets: 4, ..STREAM }, false, false),
        ("in flight, but no ACK is expected",    POST,             Backlog { is_ack_expected: false, ..STREAM }, false, true),
        ("the first post with a backlogged CQ",  POST,             MESSAGE,                                true,  true),
        ("the next one",                         POST_BEHIND_HELD, MESSAGE,                                true,  false),
        ("95 packets of a stream",               POST_BEHIND_HELD, Backlog { pending_packets: 95, ..STREAM },  false, false),
        ("96 packets of a stream",               POST_BEHIND_HELD, Backlog { pending_packets: 96, ..STREAM },  false, true),
        ("a byte less than two bursts",          POST_BEHIND_HELD, Backlog { pending_bytes: 126_975, ..STREAM }, false, false),
        ("two bursts of bytes",                  POST_BEHIND_HELD, Backlog { pending_bytes: 126_976, ..STREAM }, false, true),
        ("a message of a burst",                 POST_BEHIND_HELD, Backlog { last_posted_bytes: 63_488, ..STREAM }, false, true),
        ("signaled after 15 unsignaled",         POST_BEHIND_HELD, Backlog { unsignaled_run: 15, ..STREAM },   false, false),
        ("signaled after 16 unsignaled",         POST_BEHIND_HELD, Backlog { unsignaled_run: 16, ..STREAM },   false, true),
        ("a list of 31",                         list(31),         STREAM,                                 false, false),
        ("a list of 32",                         list(32),         STREAM,                                 false, true),
        ("an unreliable service",                POST_BEHIND_HELD, Backlog { is_reliable: false, ..STREAM },   true,  true),
        ("a poll, completions all taken",        Trigger::Poll,    STREAM,                                 false, true),
        ("a poll, completions left in the CQ",   Trigger::Poll,    STREAM,                                 true,  false),
        ("... and a READ or a retransmission",   Trigger::Poll,    Backlog { only_small_messages: false, ..STREAM }, true, true),
        ("... and an event to deliver",          Trigger::Poll,    Backlog { has_event: true, ..STREAM },      true,  true),
        ("the progress thread",                  Trigger::Flush,   STREAM,                                 true,  true),
    ];
    for (what, trigger, backlog, cq_is_backlogged, expected) in table {
        assert_eq!(sends(trigger, backlog, cq_is_backlogged), expected, "{what}");
    }
}

#[test]
fn a_quantum_fills_the_window_by_whole_bursts_and_sends_two_bursts_in_halves() {
    let all = usize::MAX;
    let long = Backlog { pending_packets: 1000, isolated_packets: 0, only_small_messages: false, ..STREAM };
    #[rustfmt::skip]
    let table = [
        // what                          backlog                                        flow room, budget,
        // flush at
        ("one small message",            MESSAGE,                                              310, 310, all),
        ("room for all that is pending", Backlog { pending_packets: 100, ..long },             310, 310, all),
        ("more than the flow takes",     long,                                                 200, 186, all),
        ("more than the window takes",   Backlog { window_room_packets: 130, ..long },         310, 124, all),
        ("less than a burst in flight",  Backlog { in_flight_packets: 61, ..long },            200, 200, all),
        ("a rate limit",                 Backlog { is_paced: true, ..long },                   200, 200, all),
        ("no room in the flow",          long,                                                   0,   0, all),
        ("a message of one burst",       Backlog { isolated_packets: 62, ..MESSAGE },          310, 310, all),
        ("a message of 64 KiB",          Backlog { isolated_packets: 64, ..MESSAGE },          310, 310, 32),
        ("a message of two bursts",      Backlog { isolated_packets: 124, ..MESSAGE },         310, 310, 62),
        ("a message of more",            Backlog { isolated_packets: 125, ..MESSAGE },         310, 310, all),
        ("bursts of 4 KiB packets",      Backlog { path_mtu_bytes: 4096, in_flight_packets: 15, ..long }, 50, 45, all),
    ];
    for (what, backlog, flow_room_pkts, budget_pkts, flush_at_pkts) in table {
        let expected = Quantum { budget_pkts, flush_at_pkts, max_pkts: 124 };
        let decision = decide(Trigger::Flush, &backlog, false, flow_room_pkts, &Tuning::default());
        assert_eq!(decision, Decision::Send(expected), "{what}");
    }
}

//! Traces from events that are written by hand, through the file format to the summary.

use std::net::{IpAddr, Ipv4Addr};

use roxie::trace::CmMessage;
use wire::{Gid, Qpn};

use super::*;
use crate::trace::{chrome, ends, summary::Summary};

const CLIENT: u32 = 0x10;
const SERVER: u32 = 0x20;

fn gid(last: u8) -> Gid {
    Gid::from(IpAddr::from(Ipv4Addr::new(10, 0, 0, last)))
}

fn recording(process: u32, entries: &[(u64, Entry)]) -> Recording {
    Recording {
        process,
        token: 0,
        thread: process + 1,
        name: "worker".to_owned(),
        command: format!("prog {process}"),
        events: entries.iter().map(|(time, entry)| entry.event(*time)).collect(),
        replaced: 0,
        lost: 0,
    }
}

fn connected(qpn: u32, dest: u32, local: u8, remote: u8) -> Entry {
    let (ty, state) = (QpType::Rc, QpState::Rts);
    let state = State { ty, state, dest_qpn: Qpn::new(dest), local: gid(local), remote: gid(remote) };
    Entry::State { qpn: Qpn::new(qpn), state }
}

/// Number `index` of the work requests, of four packets.
fn post(index: u32, is_signaled: bool) -> Entry {
    let (first, opcode) = (100 + 4 * u64::from(index), WcOpcode::RdmaWrite);
    let wr_id = 1000 + u64::from(index);
    let send = PostedSend { wr_id, opcode, index, first, end: first + 4, length: 4096, is_signaled };
    Entry::Post { qpn: Qpn::new(CLIENT), send }
}

fn progress(completes_next: u32, acknowledged: u64, leaves_next: u64, executes_next: u64) -> Progress {
    Progress { completes_next, acknowledged, leaves_next, executes_next }
}

fn quantum(end_ns: u64, from: u64, until: u64, retransmitted: u32) -> Entry {
    let progress = progress(0, 100, until, 7);
    let quantum = Quantum { end_ns, packets: 4, retransmitted, from, progress };
    Entry::Quantum { qpn: Qpn::new(CLIENT), quantum }
}

fn received(qpn: u32, end_ns: u64, progress: Progress, naks: u16) -> Entry {
    let input = Input { end_ns, progress, naks, rnr_naks: 0, probes: 0, timeouts: 0 };
    Entry::Received { qpn: Qpn::new(qpn), input }
}

fn poll(wr_id: u64, status: u8) -> Entry {
    Entry::Poll { qpn: Qpn::new(CLIENT), wr_id, status, is_receive: false, bytes: 0 }
}

/// An unsignaled WRITE and a signaled one. A packet of the first is lost.
fn client() -> Recording {
    let entries = [
        (0, connected(CLIENT, SERVER, 1, 2)),
        (100, post(0, false)),
        (200, post(1, true)),
        (300, quantum(700, 100, 108, 0)),
        (1000, received(CLIENT, 1010, progress(0, 101, 108, 7), 1)),
        (1020, quantum(1050, 108, 108, 1)),
        (2000, received(CLIENT, 2010, progress(2, 108, 108, 7), 1)),
        (2100, poll(1001, 0)),
    ];
    recording(1, &entries)
}

fn server() -> Recording {
    let entries = [
        (0, connected(SERVER, CLIENT, 2, 1)),
        (750, received(SERVER, 760, progress(0, 50, 50, 101), 0)),
        (1500, received(SERVER, 1600, progress(0, 50, 50, 108), 0)),
    ];
    recording(5, &entries)
}

fn joined(recordings: &[Recording]) -> Trace {
    let mut trace = rebuild(recordings);
    ends::join(&mut trace);
    trace
}

#[test]
fn each_message_has_its_moments_in_order_and_the_parts_make_up_the_whole() {
    let trace = joined(&[client(), server()]);
    let [first, second] = &trace.messages[..] else { panic!("{:?}", trace.messages) };
    let times = |m: &Message| (m.posted, m.left, m.last, m.executed, m.acked, m.completed, m.polled);
    let some = |ns| Some(ns);
    assert_eq!(times(first), (100, some(300), some(500), some(1600), some(2000), 2010, None));
    assert_eq!(times(second), (200, some(500), some(700), some(1600), some(2000), 2010, some(2100)));
    assert_eq!((first.retransmitted, second.retransmitted), (1, 0));
    assert_eq!(second.parts(), [300, 200, 900, 400, 10, 90]);
    for message in &trace.messages {
        assert_eq!(message.parts().iter().sum::<u64>(), message.total());
    }
    let naks = trace.marks.iter().filter(|mark| mark.event == Event::SequenceNak { qpn: CLIENT });
    assert_eq!(naks.count(), 1);
}

/// What the line of the summary says that begins so.
fn line(summary: &str, name: &str) -> String {
    let rest = summary.lines().find_map(|line| line.trim().strip_prefix(name));
    let rest = rest.unwrap_or_else(|| panic!("{name}: {summary}"));
    rest.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_time_until_lost_packets_are_retransmitted_is_a_line_of_its_own() {
    let trace = joined(&[client(), server()]);
    // Retransmitted from 1020 on; the peer's batch with the last packet began at 1500.
    assert_eq!(trace.messages[0].causes(), [0, 1020 - 500, 1500 - 1020]);
    assert_eq!(trace.messages[1].causes(), [0, 1020 - 700, 1500 - 1020]);
    let summary = Summary::new(&trace, None, Vec::new()).to_string();
    // Of the first one, which takes longest; of both: 840 of 3810 ns.
    assert_eq!(line(&summary, "lost packets"), "0.52 0.52 22 %");
    assert!(!summary.contains("RNR"), "{summary}");
    assert_eq!(line(&summary, "messages in flight:"), "1.9");
}

#[test]
fn the_time_without_a_receive_is_a_line_of_its_own_also_in_a_file() {
    let not_ready = |end_ns: u64, rnr_naks: u16| {
        let progress = progress(0, 100, 104, 7);
        let input = Input { end_ns, progress, naks: 0, rnr_naks, probes: 0, timeouts: 0 };
        Entry::Received { qpn: Qpn::new(CLIENT), input }
    };
    let entries = [
        (0, connected(CLIENT, SERVER, 1, 2)),
        (100, post(0, true)),
        (100, quantum(200, 100, 104, 0)),
        (300, not_ready(310, 1)),
        (1300, quantum(1310, 104, 104, 4)),
        (1400, not_ready(1410, 2)),
        (2400, quantum(2410, 104, 104, 4)),
        (2500, received(CLIENT, 2510, progress(1, 104, 104, 7), 0)),
        (2600, poll(1000, 0)),
        (3000, post(1, true)),
        (3000, quantum(3050, 104, 108, 0)),
        (3100, received(CLIENT, 3110, progress(2, 108, 108, 7), 0)),
        (3100, poll(1001, 0)),
    ];
    let trace = joined(&[recording(1, &entries)]);
    assert_eq!(trace.messages[0].causes(), [2000, 0, 0]);
    let mut file = Vec::new();
    chrome::write(&trace, &mut file).expect("written");
    let read = chrome::read(&file, "file").expect("a trace");
    let summary = Summary::new(&read, None, Vec::new()).to_string();
    assert_eq!(line(&summary, "no receive (RNR)"), "2.00 2.00 77 %");
    let one = "1.0: the next one is posted when the one before is complete";
    assert_eq!(line(&summary, "messages in flight:"), one);
}

#[test]
fn the_last_packet_leaves_before_the_peer_executes_the_message() {
    let client = [
        (0, connected(CLIENT, SERVER, 1, 2)),
        (100, post(0, true)),
        (200, post(1, true)),
        (300, quantum(700, 100, 108, 0)),
        (710, received(CLIENT, 720, progress(2, 108, 108, 7), 0)),
    ];
    let server =
        [(0, connected(SERVER, CLIENT, 2, 1)), (450, received(SERVER, 600, progress(0, 50, 50, 108), 0))];
    let trace = joined(&[recording(1, &client), recording(5, &server)]);
    let departures: Vec<_> = trace.messages.iter().map(|message| (message.left, message.last)).collect();
    assert_eq!(departures, [(Some(300), Some(500)), (Some(500), Some(600))]);
    assert_eq!(trace.messages[1].parts(), [300, 100, 0, 110, 10, 0]);
}

#[test]
fn a_trace_is_read_back_as_it_was_written_and_files_of_both_ends_are_joined() {
    let mut files = Vec::new();
    for recording in [client(), server()] {
        let mut file = Vec::new();
        chrome::write(&joined(&[recording]), &mut file).expect("written");
        files.push(file);
    }
    let mut merged = Trace::default();
    files.iter().for_each(|file| merged.add(chrome::read(file, "file").expect("a trace")));
    assert!(merged.messages.iter().all(|message| message.executed.is_none()));
    ends::join(&mut merged);
    let whole = joined(&[client(), server()]);
    let text = |trace: &Trace| {
        let mut file = Vec::new();
        chrome::write(trace, &mut file).expect("written");
        let summary = Summary::new(trace, None, Vec::new());
        let mut lines: Vec<String> =
            String::from_utf8(file).expect("text").lines().map(str::to_owned).collect();
        lines.sort();
        // The order of events in the file has no meaning.
        lines.iter_mut().for_each(|line| *line = line.trim_end_matches(',').to_owned());
        (lines, summary.to_string())
    };
    assert_eq!(text(&merged), text(&whole));
    assert!(chrome::read(b"{}", "file").is_err() && chrome::read(b"x", "file").is_err());
}

#[test]
fn processes_with_the_same_number_stay_apart() {
    let mut merged = joined(&[client()]);
    merged.add(joined(&[recording(1, &[(0, connected(SERVER, CLIENT, 2, 1))])]));
    let pids: Vec<u32> = merged.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [1, 2]);
    assert_eq!((merged.threads[1].pid, merged.marks.last().map(|mark| mark.pid)), (2, Some(2)));
}

#[test]
fn a_failed_message_has_its_status_and_is_left_out_of_the_times() {
    let entries = [
        (0, connected(CLIENT, SERVER, 1, 2)),
        (100, post(0, false)),
        (300, quantum(700, 100, 104, 0)),
        (5000, received(CLIENT, 5010, progress(1, 100, 104, 7), 0)),
        (6000, poll(1000, 12)),
    ];
    let trace = joined(&[recording(1, &entries)]);
    let [message] = &trace.messages[..] else { panic!("{:?}", trace.messages) };
    assert_eq!((message.status, message.acked, message.polled), (Some(12), None, Some(6000)));
    let summary = Summary::new(&trace, Some((3, 4)), Vec::new()).to_string();
    assert!(summary.contains("failed: 1\n") && summary.contains("3 older events"), "{summary}");
    assert!(summary.contains("4 events were lost") && summary.contains("other end is not"), "{summary}");
}

#[test]
fn a_message_that_a_reset_discards_is_not_taken_for_one_of_the_next_connection() {
    let mut reset = connected(CLIENT, SERVER, 1, 2);
    if let Entry::State { state, .. } = &mut reset {
        state.state = QpState::Reset;
    }
    let entries = [
        (0, connected(CLIENT, SERVER, 1, 2)),
        (100, post(0, true)),
        (200, quantum(300, 100, 104, 0)),
        (400, reset),
        (500, connected(CLIENT, SERVER, 1, 2)),
        (600, post(0, true)),
        (700, quantum(800, 100, 104, 0)),
        (900, received(CLIENT, 910, progress(1, 104, 104, 7), 0)),
        (1000, poll(1000, 0)),
    ];
    let trace = joined(&[recording(1, &entries)]);
    let [message] = &trace.messages[..] else { panic!("{:?}", trace.messages) };
    assert_eq!((message.posted, message.acked, message.polled), (600, Some(900), Some(1000)));
}

/// The thread that polls sees a completion before the engine's thread has recorded that it is there.
#[test]
fn a_completion_may_be_polled_before_the_batch_that_made_it_ends() {
    let entries = [
        (100, post(0, true)),
        (300, quantum(400, 100, 104, 0)),
        (500, received(CLIENT, 700, progress(1, 104, 104, 7), 0)),
        (600, poll(1000, 0)),
    ];
    let trace = joined(&[recording(1, &entries)]);
    let message = &trace.messages[0];
    assert_eq!((message.acked, message.completed, message.polled), (Some(500), 600, Some(600)));
}

#[test]
fn the_peer_may_execute_a_message_while_the_batch_with_its_ack_runs() {
    let client = [
        (0, connected(CLIENT, SERVER, 1, 2)),
        (100, post(0, true)),
        (200, quantum(300, 100, 104, 0)),
        (210, received(CLIENT, 700, progress(1, 104, 104, 7), 0)),
        (800, poll(1000, 0)),
    ];
    let server =
        [(0, connected(SERVER, CLIENT, 2, 1)), (400, received(SERVER, 500, progress(0, 50, 50, 104), 0))];
    let trace = joined(&[recording(1, &client), recording(5, &server)]);
    assert_eq!(trace.messages[0].executed, Some(500));
}

/// Messages 0 and 1 were posted before the oldest event that is left. All have one wr_id, as in perftest.
#[test]
fn polls_of_messages_whose_posts_were_replaced_are_not_those_of_later_messages() {
    let post = |index: u32| {
        let first = 100 + 4 * u64::from(index);
        let opcode = WcOpcode::RdmaWrite;
        let send =
            PostedSend { wr_id: 7, opcode, index, first, end: first + 4, length: 4096, is_signaled: true };
        Entry::Post { qpn: Qpn::new(CLIENT), send }
    };
    let entries = [
        (100, post(2)),
        (200, poll(7, 0)),
        (210, received(CLIENT, 220, progress(2, 108, 112, 7), 0)),
        (230, poll(7, 0)),
        (300, received(CLIENT, 310, progress(3, 112, 112, 7), 0)),
        (400, poll(7, 0)),
    ];
    let trace = joined(&[recording(1, &entries)]);
    let moments: Vec<_> = trace.messages.iter().map(|message| (message.acked, message.polled)).collect();
    assert_eq!(moments, [(Some(300), Some(400))]);
}

/// The connections of both ends were replaced: the number finds the peer, if only one process has it.
#[test]
fn a_peer_without_a_connection_is_found_by_its_number() {
    let without_connection = |mut recording: Recording| {
        recording.events.remove(0);
        recording
    };
    let executed = |recordings: &[Recording]| {
        let mut trace = rebuild(recordings);
        trace.messages.iter_mut().for_each(|message| message.peer = SERVER);
        ends::join_by_number(&mut trace);
        let executions = trace.messages.iter().map(|message| message.execution);
        executions.map(|execution| execution.map(|batch| batch.pid)).collect::<Vec<_>>()
    };
    let (client, server) = (without_connection(client()), without_connection(server()));
    let pid = server.process;
    let all = [client, server];
    assert_eq!(executed(&all), [Some(pid); 2]);
    let namesake = Recording { process: 77, ..all[1].clone() };
    assert_eq!(executed(&[&all[..], &[namesake]].concat()), [None; 2]);
}

#[test]
fn handshakes_are_spans() {
    let cm =
        |attribute, sender, receiver, is_sent| Entry::Cm(CmMessage { attribute, sender, receiver, is_sent });
    let active = [(10, cm(0x10, 1, 0, true)), (20, cm(0x13, 2, 1, false)), (30, cm(0x14, 1, 2, true))];
    let passive = [(11, cm(0x10, 1, 0, false)), (12, cm(0x13, 2, 1, true)), (31, cm(0x14, 1, 2, false))];
    let trace = joined(&[recording(1, &active), recording(5, &passive)]);
    let mut file = Vec::new();
    chrome::write(&trace, &mut file).expect("written");
    let file: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
    let events = file["traceEvents"].as_array().expect("events");
    let spans = events.iter().filter(|event| event["cat"] == "cm").map(|event| event["ts"].as_f64());
    assert_eq!(spans.flatten().collect::<Vec<f64>>(), [0.01, 0.03, 0.011, 0.031]);
}

#[test]
fn a_message_of_an_unreliable_connection_arrives_when_a_later_packet_is_expected() {
    let unreliable = |entry| match entry {
        Entry::State { qpn, state } => Entry::State { qpn, state: State { ty: QpType::Uc, ..state } },
        entry => entry,
    };
    let sent = progress(3, 112, 112, 7);
    let client = [
        (0, unreliable(connected(CLIENT, SERVER, 1, 2))),
        (100, post(0, true)),
        (110, post(1, true)),
        (120, post(2, true)),
        (200, quantum(300, 100, 112, 0)),
        (310, received(CLIENT, 320, sent, 0)),
    ];
    // The first two end in one batch. PSNs have 24 bits.
    let expects = |psn| progress(0, 0, 0, psn);
    let server = [
        (0, unreliable(connected(SERVER, CLIENT, 2, 1))),
        (400, received(SERVER, 410, expects(102), 0)),
        (500, received(SERVER, 510, expects(108), 0)),
        (600, received(SERVER, 610, expects((1 << 24) + 112), 0)),
    ];
    let mut trace = rebuild(&[recording(1, &client), recording(5, &server)]);
    ends::join_by_number(&mut trace);
    let arrivals = trace.messages.iter().map(|message| {
        let execution = message.execution.expect("known");
        (execution.begin, execution.is_certain)
    });
    assert_eq!(arrivals.collect::<Vec<_>>(), [(500, false), (500, true), (600, true)]);
}

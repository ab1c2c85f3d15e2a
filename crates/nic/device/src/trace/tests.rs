//! Every entry survives its event.

use transport::{PostedSend, Progress, QpState, QpType, WcOpcode};
use wire::mad::MAD_LEN;

use super::*;

#[test]
fn an_entry_is_read_back_from_its_event() {
    let qpn = Qpn::new(0x12_3456);
    let progress = Progress { completes_next: 1, acknowledged: 1 << 40, leaves_next: 3, executes_next: 4 };
    let send = PostedSend {
        wr_id: u64::MAX,
        opcode: WcOpcode::RegMr,
        index: u32::MAX,
        first: 5,
        end: 6,
        length: 1 << 31,
        is_signaled: true,
    };
    let quantum = Quantum { end_ns: 7, packets: 8, retransmitted: 9, from: 10, progress };
    let input = Input { end_ns: 11, progress, naks: 12, rnr_naks: 13, probes: 14, timeouts: 65535 };
    let [local, remote] = [[0xfe; 16], [1; 16]].map(Gid);
    let state = State { ty: QpType::XrcTgt, state: QpState::Err, dest_qpn: qpn, local, remote };
    let cm = CmMessage { attribute: 0x12, sender: 15, receiver: 16, is_sent: true };
    let entries = [
        Entry::Post { qpn, send },
        Entry::Quantum { qpn, quantum },
        Entry::Received { qpn, input },
        Entry::Expired { qpn, input },
        Entry::Poll { qpn, wr_id: 17, status: 12, is_receive: true, bytes: u32::MAX },
        Entry::Batch { batches: 19 },
        Entry::Waits { qpn, wait: Wait::Window },
        Entry::State { qpn, state },
        Entry::Cm(cm),
    ];
    for entry in entries {
        let event = entry.event(20);
        assert_eq!((Entry::parse(&event), event.time_ns), (Some(entry), 20));
    }
    assert_eq!(Entry::parse(&sys::trace::Event::default()), None);
}

#[test]
fn messages_of_connection_management_have_names_and_ids() {
    let mut mad = [0; MAD_LEN];
    (mad[17], mad[27], mad[31]) = (0x13, 1, 2);
    let rep = CmMessage::parse(&mad, true);
    assert_eq!((rep.name(), rep.sender, rep.receiver), ("REP", 1, 2));
    mad[17] = 0x10;
    let req = CmMessage::parse(&mad, false);
    assert_eq!((req.name(), req.sender, req.receiver), ("REQ", 1, 0));
    mad[17] = 0x30;
    assert_eq!(CmMessage::parse(&mad, false).name(), "MAD");
}

#[test]
fn a_number_of_events_that_is_none_is_the_default() {
    let of = |value: &str| events_from(Some(value.into()));
    assert_eq!((of("5000"), events_from(None), of("")), (5000, EVENTS, EVENTS));
    assert_eq!([of("many"), of("0"), of("-1")], [EVENTS; 3]);
}

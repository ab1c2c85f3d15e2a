//! How the responding end of each capture was set up, and where our responses differ from the kernel's on
//! purpose.

use std::ops::Range;

use roxie_transport::{Access, PathMtu};
use wire::{Aeth, Bth, Msn, NakCode, Opcode, Operation, Packet, Syndrome};

/// What does not happen within a capture.
pub(crate) const NEVER: usize = usize::MAX;

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) path_mtu: PathMtu,
    /// Lost on the way to the responder: of the packets with this opcode those with these numbers, counted
    /// from 0.
    pub(crate) lost: Option<(Opcode, Range<usize>)>,
    pub(crate) mr_access: Access,
    pub(crate) qp_access: Access,
    /// R_Keys other than the first one seen do not exist.
    pub(crate) one_key: bool,
    /// First word of the memory, if it is not the pattern.
    pub(crate) word: Option<u64>,
    /// Bytes of each receive work request.
    pub(crate) recv_len: u32,
    /// Receive work requests are posted once this many RNR NAKs were sent.
    pub(crate) recv_after: usize,
    /// The RNR timer of each queue pair, in order.
    pub(crate) min_rnr_timers: &'static [u8],
    pub(crate) deviation: Option<Deviation>,
}

/// A row of `docs/deviations.md`.
#[derive(Clone, Copy)]
pub(crate) enum Deviation {
    /// rxe sends a sequence NAK for packets behind one that it refused with an RNR NAK; roxie does not.
    QuietAfterRnrNak,
    /// rxe responds to the rest of a READ with Middle and Last; roxie begins with First or Only.
    RestOfReadBeginsWithFirst,
    /// The same, and behind a later part rxe is silent about an earlier one of the same READ; roxie responds
    /// to it.
    EveryPartGetsAResponse,
    /// rxe calls a message that is too long for its receive a Remote operational error; for us it is an
    /// Invalid request.
    TooLongIsInvalid,
}

impl Setup {
    /// The setup of a capture, by its name.
    pub(crate) fn of(name: &str) -> Self {
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let rule = Self {
            path_mtu: PathMtu::M256,
            lost: None,
            mr_access: all,
            qp_access: all,
            one_key: false,
            word: None,
            recv_len: 32768,
            recv_after: 0,
            min_rnr_timers: &[12],
            deviation: None,
        };
        let lost = |opcode, numbers| Self { lost: Some((opcode, numbers)), ..rule.clone() };
        let mr_without = |access| Self { mr_access: all - access, ..rule.clone() };
        let qp_without = |access| Self { qp_access: all - access, ..rule.clone() };
        let no_receive_before =
            |recv_after, min_rnr_timers| Self { recv_after, min_rnr_timers, ..rule.clone() };
        match name.trim_end_matches("-v4").trim_end_matches("-v6") {
            "loss-all" => lost(Opcode::RC_SEND_ONLY, 0..NEVER),
            "loss-atomic-request" => lost(Opcode::RC_FETCH_ADD, 0..1),
            "loss-read-request" => lost(Opcode::RC_READ_REQUEST, 0..1),
            "loss-read-last" | "loss-read-middle" => {
                Self { deviation: Some(Deviation::RestOfReadBeginsWithFirst), ..rule }
            }
            "loss-send-first" => lost(Opcode::RC_SEND_FIRST, 0..1),
            "loss-send-middle" => lost(Opcode::RC_SEND_MIDDLE, 1..2),
            "loss-send-last" => lost(Opcode::RC_SEND_LAST, 0..1),
            "loss-write-middle" => lost(Opcode::RC_WRITE_MIDDLE, 2..3),
            "loss-write-last" => lost(Opcode::RC_WRITE_LAST, 0..1),
            "nak-atomic-bad-rkey" | "nak-read-bad-rkey" | "nak-write-bad-rkey" => {
                Self { one_key: true, ..rule }
            }
            "nak-mr-no-atomic" => mr_without(Access::REMOTE_ATOMIC),
            "nak-mr-no-read" => mr_without(Access::REMOTE_READ),
            "nak-mr-no-write" => mr_without(Access::REMOTE_WRITE),
            "nak-qp-no-read" => qp_without(Access::REMOTE_READ),
            "nak-qp-no-write" => qp_without(Access::REMOTE_WRITE),
            "nak-send-too-long" => {
                Self { recv_len: 64, deviation: Some(Deviation::TooLongIsInvalid), ..rule }
            }
            "rc-atomic" => Self { word: Some(5), ..rule },
            "rc-mtu1024" => Self { path_mtu: PathMtu::M1024, ..rule },
            "rc-mtu4096" => Self { path_mtu: PathMtu::M4096, ..rule },
            "read-parts" => Self { deviation: Some(Deviation::EveryPartGetsAResponse), ..rule },
            "rnr-exhausted" => no_receive_before(NEVER, &[14]),
            "rnr-then-ok" => {
                Self { deviation: Some(Deviation::QuietAfterRnrNak), ..no_receive_before(3, &[20]) }
            }
            "rnr-timers" => no_receive_before(NEVER, &[1, 5, 12, 18, 24, 26]),
            _ => rule,
        }
    }
}

impl Deviation {
    /// Changes the responses of the kernel, BTH to pad, into those that roxie must send.
    pub(crate) fn apply(self, responses: &mut Vec<Vec<u8>>) {
        let before = responses.clone();
        match self {
            Self::QuietAfterRnrNak => {
                let mut refused = None;
                responses.retain(|response| match decode(response) {
                    (bth, Some(Syndrome::RnrNak(_))) => {
                        refused = Some(bth.psn);
                        true
                    }
                    (bth, Some(Syndrome::Nak(NakCode::PsnSequenceError))) => refused != Some(bth.psn),
                    _ => true,
                });
            }
            Self::RestOfReadBeginsWithFirst => {
                let mut next = None;
                for response in responses.iter_mut() {
                    let (bth, _) = decode(response);
                    if next.is_some_and(|next| next != bth.psn) {
                        begin_read_response(response);
                    }
                    next = Some(bth.psn.advance(1));
                }
            }
            Self::EveryPartGetsAResponse => {
                responses[4..].iter_mut().for_each(begin_read_response);
                // The second packet of the READ, asked for twice between the first part and the last.
                let mut part = before[1].clone();
                begin_read_response(&mut part);
                part[0] = Opcode::RC_READ_RESPONSE_ONLY.0;
                responses.splice(5..5, [part.clone(), part]);
            }
            Self::TooLongIsInvalid => {
                let at = Bth::LEN;
                for response in responses.iter_mut() {
                    if Syndrome::from_byte(response[at]) == Syndrome::Nak(NakCode::RemoteOperationalError) {
                        response[at] = Syndrome::Nak(NakCode::InvalidRequest).byte();
                    }
                }
            }
        }
        assert_ne!(*responses, before, "the kernel does what we do; the deviation can go");
    }
}

/// Middle becomes First and Last becomes Only. It is always the first READ that is asked for again, so the
/// MSN is 1.
fn begin_read_response(response: &mut Vec<u8>) {
    let (bth, _) = decode(response);
    let opcode = match bth.opcode {
        Opcode::RC_READ_RESPONSE_MIDDLE => {
            let mut aeth = [0; Aeth::LEN];
            Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) }.emit(&mut aeth);
            response.splice(Bth::LEN..Bth::LEN, aeth);
            Opcode::RC_READ_RESPONSE_FIRST
        }
        Opcode::RC_READ_RESPONSE_LAST => Opcode::RC_READ_RESPONSE_ONLY,
        other => panic!("{other} is not the rest of a READ"),
    };
    response[0] = opcode.0;
}

fn decode(response: &[u8]) -> (Bth, Option<Syndrome>) {
    let bytes = [response, &[0; 4]].concat();
    let packet = Packet::parse(&bytes).expect("decodes");
    let is_ack = packet.row().operation == Operation::Ack;
    (packet.bth, packet.aeth().filter(|_| is_ack).map(|aeth| aeth.syndrome))
}

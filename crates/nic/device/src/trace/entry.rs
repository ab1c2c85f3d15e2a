//! The entries of a trace as values, and their places in an [`Event`].

use sys::trace::Event;
use transport::refusal::Value;
use transport::{PostedSend, Progress, QpState, QpType, WcOpcode};
use wire::cm::Req;
use wire::{Gid, MAD_LEN, MadHeader, Qpn};

/// What happened, at or from the time of its [`Event`] on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Entry {
    /// The application posted a send.
    Post {
        /// Its queue pair.
        qpn: Qpn,
        /// The work request.
        send: PostedSend,
    },
    /// A queue pair sent packets.
    Quantum {
        /// The queue pair.
        qpn: Qpn,
        /// What left.
        quantum: Quantum,
    },
    /// A queue pair processed received packets.
    Received {
        /// The queue pair.
        qpn: Qpn,
        /// How far it got.
        input: Input,
    },
    /// A timer of a queue pair expired.
    Expired {
        /// The queue pair.
        qpn: Qpn,
        /// How far it had got.
        input: Input,
    },
    /// The application polled a completion.
    Poll {
        /// The queue pair.
        qpn: Qpn,
        /// The application's number.
        wr_id: u64,
        /// `enum ibv_wc_status`.
        status: u8,
        /// Whether a receive completed.
        is_receive: bool,
        /// Bytes received.
        bytes: u32,
    },
    /// An engine received, ran timers and sent. The entries of what it did come before this one, and the last
    /// of them says when it ended, which saves a look at the clock.
    Batch {
        /// Receive batches.
        batches: u64,
    },
    /// A queue pair has packets to send and waits.
    Waits {
        /// The queue pair.
        qpn: Qpn,
        /// What for.
        wait: Wait,
    },
    /// A queue pair changed its state.
    State {
        /// The queue pair.
        qpn: Qpn,
        /// The new state.
        state: State,
    },
    /// A message of connection management.
    Cm(CmMessage),
}

/// A transmit quantum.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quantum {
    /// When it ended.
    pub end_ns: u64,
    /// Packets, responses included.
    pub packets: u16,
    /// Packets of them that were sent before.
    pub retransmitted: u32,
    /// Number of the first request packet; it ends before `progress.leaves_next`.
    pub from: u64,
    /// How far the queue pair was afterwards.
    pub progress: Progress,
}

/// A queue pair after packets or a timer. The counters are those of the queue pair modulo 2^16.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Input {
    /// When its completions were visible.
    pub end_ns: u64,
    /// How far it is.
    pub progress: Progress,
    /// Sequence NAKs received.
    pub naks: u16,
    /// RNR NAKs received.
    pub rnr_naks: u16,
    /// Probes sent.
    pub probes: u16,
    /// Local ACK timeouts.
    pub timeouts: u16,
}

/// Why packets wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Wait {
    /// The transmit queue of the port is full, or a hook pauses it.
    Port = 1,
    /// The socket or ring of this flow is full.
    Flow = 2,
    /// The window of the flow is full.
    Window = 3,
}

/// State and connection of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct State {
    /// Transport service.
    pub ty: QpType,
    /// The state.
    pub state: QpState,
    /// The peer's number.
    pub dest_qpn: Qpn,
    /// Address that it sends from.
    pub local: Gid,
    /// Address of the peer.
    pub remote: Gid,
}

/// A message of connection management (IBA 12.6).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CmMessage {
    /// Attribute ID.
    pub attribute: u16,
    /// Communication ID of the sender.
    pub sender: u32,
    /// Communication ID of the receiver; 0 in a REQ.
    pub receiver: u32,
    /// Whether this process sent it; it received it otherwise.
    pub is_sent: bool,
}

impl CmMessage {
    pub(super) fn parse(mad: &[u8; MAD_LEN], is_sent: bool) -> Self {
        let word = |at: usize| u32::from_be_bytes([mad[at], mad[at + 1], mad[at + 2], mad[at + 3]]);
        let attribute = mad.first_chunk().map_or(0, |header| MadHeader::parse(header).attribute_id);
        // A REQ has a reserved word after the communication ID of its sender (IBA 12.6.5).
        let receiver = if attribute == Req::ATTRIBUTE { 0 } else { word(28) };
        Self { attribute, sender: word(24), receiver, is_sent }
    }

    /// The name of the message (IBA 16.7.1.2).
    #[must_use]
    pub fn name(&self) -> &'static str {
        const NAMES: [&str; 11] =
            ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"];
        self.attribute.checked_sub(Req::ATTRIBUTE).and_then(|n| NAMES.get(usize::from(n))).unwrap_or(&"MAD")
    }
}

const POST: u8 = 1;
const QUANTUM: u8 = 2;
const RECEIVED: u8 = 3;
const EXPIRED: u8 = 4;
const POLL: u8 = 5;
const BATCH: u8 = 6;
const WAITS: u8 = 7;
const STATE: u8 = 8;
const CM: u8 = 9;

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn quad(values: [u16; 4]) -> u64 {
    values.into_iter().fold(0, |word, value| word << 16 | u64::from(value))
}

fn unquad(word: u64) -> [u16; 4] {
    [48, 32, 16, 0].map(|shift| (word >> shift) as u16)
}

impl Entry {
    /// The event that records it.
    #[must_use]
    pub fn event(&self, time_ns: u64) -> Event {
        let event = |kind, qpn: Qpn| Event { time_ns, kind, id: qpn.value(), ..Event::default() };
        match *self {
            Self::Post { qpn, send } => Event {
                flags: send.opcode as u8,
                count: send.is_signaled.into(),
                args: [send.wr_id, send.first, send.end, pair(send.index, send.length), 0, 0],
                ..event(POST, qpn)
            },
            Self::Quantum { qpn, quantum } => {
                let Quantum { end_ns, packets, retransmitted, from, progress } = quantum;
                let next = pair(progress.completes_next, retransmitted);
                let Progress { acknowledged, leaves_next, executes_next, .. } = progress;
                Event {
                    count: packets,
                    args: [end_ns, next, from, leaves_next, acknowledged, executes_next],
                    ..event(QUANTUM, qpn)
                }
            }
            Self::Received { qpn, input } => input.put(event(RECEIVED, qpn)),
            Self::Expired { qpn, input } => input.put(event(EXPIRED, qpn)),
            Self::Poll { qpn, wr_id, status, is_receive, bytes } => Event {
                flags: status,
                count: is_receive.into(),
                args: [wr_id, bytes.into(), 0, 0, 0, 0],
                ..event(POLL, qpn)
            },
            Self::Batch { batches } => {
                Event { args: [batches, 0, 0, 0, 0, 0], ..event(BATCH, Qpn::default()) }
            }
            Self::Waits { qpn, wait } => Event { flags: wait as u8, ..event(WAITS, qpn) },
            Self::State { qpn, state } => {
                let State { ty, state, dest_qpn, local, remote } = state;
                let [a, b] = halves(local);
                let [c, d] = halves(remote);
                Event {
                    flags: state as u8,
                    count: ty as u16,
                    args: [dest_qpn.value().into(), a, b, c, d, 0],
                    ..event(STATE, qpn)
                }
            }
            Self::Cm(CmMessage { attribute, sender, receiver, is_sent }) => Event {
                flags: is_sent.into(),
                count: attribute,
                args: [sender.into(), receiver.into(), 0, 0, 0, 0],
                ..event(CM, Qpn::default())
            },
        }
    }

    /// Reads an event; `None` if it is none of these.
    #[must_use]
    pub fn parse(event: &Event) -> Option<Self> {
        let (qpn, args) = (Qpn::new(event.id), event.args);
        Some(match event.kind {
            POST => {
                let send = PostedSend {
                    wr_id: args[0],
                    opcode: WcOpcode::known(event.flags.into())?,
                    index: (args[3] >> 32) as u32,
                    first: args[1],
                    end: args[2],
                    length: args[3] as u32,
                    is_signaled: event.count != 0,
                };
                Self::Post { qpn, send }
            }
            QUANTUM => {
                let progress = Progress {
                    completes_next: (args[1] >> 32) as u32,
                    acknowledged: args[4],
                    leaves_next: args[3],
                    executes_next: args[5],
                };
                let (packets, retransmitted) = (event.count, args[1] as u32);
                let quantum = Quantum { end_ns: args[0], packets, retransmitted, from: args[2], progress };
                Self::Quantum { qpn, quantum }
            }
            RECEIVED => Self::Received { qpn, input: Input::take(event) },
            EXPIRED => Self::Expired { qpn, input: Input::take(event) },
            POLL => Self::Poll {
                qpn,
                wr_id: args[0],
                status: event.flags,
                is_receive: event.count != 0,
                bytes: args[1] as u32,
            },
            BATCH => Self::Batch { batches: args[0] },
            WAITS => {
                let wait = [Wait::Port, Wait::Flow, Wait::Window];
                let wait = wait.into_iter().find(|wait| *wait as u8 == event.flags)?;
                Self::Waits { qpn, wait }
            }
            STATE => {
                let state = State {
                    ty: QpType::known(event.count.into())?,
                    state: QpState::known(event.flags.into())?,
                    dest_qpn: Qpn::new(args[0] as u32),
                    local: gid([args[1], args[2]]),
                    remote: gid([args[3], args[4]]),
                };
                Self::State { qpn, state }
            }
            CM => Self::Cm(CmMessage {
                attribute: event.count,
                sender: args[0] as u32,
                receiver: args[1] as u32,
                is_sent: event.flags != 0,
            }),
            _ => return None,
        })
    }
}

impl Input {
    fn put(self, event: Event) -> Event {
        let Progress { completes_next, acknowledged, leaves_next, executes_next } = self.progress;
        let counters = quad([self.naks, self.rnr_naks, self.probes, self.timeouts]);
        let args = [self.end_ns, counters, completes_next.into(), acknowledged, leaves_next, executes_next];
        Event { args, ..event }
    }

    fn take(event: &Event) -> Self {
        let [end_ns, counters, completes_next, acknowledged, leaves_next, executes_next] = event.args;
        let [naks, rnr_naks, probes, timeouts] = unquad(counters);
        let completes_next = completes_next as u32;
        let progress = Progress { completes_next, acknowledged, leaves_next, executes_next };
        Self { end_ns, progress, naks, rnr_naks, probes, timeouts }
    }
}

fn halves(gid: Gid) -> [u64; 2] {
    let value = u128::from_be_bytes(gid.0);
    [(value >> 64) as u64, value as u64]
}

fn gid([high, low]: [u64; 2]) -> Gid {
    Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
}

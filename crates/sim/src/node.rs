//! A node: frames that arrived and wait in its ring, its queue pairs, and what a device does in one turn. Each queue pair has
//! an application that posts and checks.

use std::collections::VecDeque;

use transport::ReorderBuffer;
use wire::Psn;

use crate::fabric::Frame;
use crate::queue_pair::QueuePair;
use crate::reliable::Reliable;
use crate::rng::Rng;
use crate::unreliable::Unreliable;

/// A device.
pub(crate) struct Node {
    /// Frames that arrived.
    pub(crate) ring: VecDeque<Frame>,
    /// Frames that fit, while rings are short.
    pub(crate) ring_max: usize,
    pub(crate) reorder: ReorderBuffer,
    /// Indices of its queue pairs, in the order of their numbers.
    pub(crate) endpoints: Vec<usize>,
    /// When it has its next turn; `u64::MAX` if nothing but a frame will wake it.
    pub(crate) wake_ns: u64,
    /// Time from the arrival of a frame to the turn that looks at it.
    pub(crate) poll_ns: u64,
    /// Frames of one turn.
    pub(crate) batch: usize,
    /// Applications post much at a time, and early.
    pub(crate) eager: bool,
    /// Until when it has no buffers.
    pub(crate) empty_until_ns: u64,
    /// IPv4 identification of the next frame.
    pub(crate) ip_id: u16,
    /// The queue pair that begins.
    pub(crate) first: usize,
}

impl Node {
    pub(crate) fn new(reorder: ReorderBuffer, rng: &mut Rng) -> Self {
        Self {
            ring: VecDeque::new(),
            ring_max: rng.between(1, 16) as usize,
            reorder,
            endpoints: Vec::new(),
            wake_ns: 0,
            poll_ns: rng.between(100, 5_000),
            batch: rng.pick(&[1, 4, 64]),
            eager: rng.chance(500),
            empty_until_ns: 0,
            ip_id: rng.next() as u16,
            first: 0,
        }
    }
}

/// A queue pair in its place.
pub(crate) struct Endpoint {
    pub(crate) node: usize,
    /// Index of the other end; datagrams have none.
    pub(crate) peer: Option<usize>,
    pub(crate) queue: QueuePair,
    pub(crate) app: App,
    pub(crate) sq_psn: Psn,
    /// Packets that the device allows in flight.
    pub(crate) flow_window: usize,
    /// When the application has its next turn.
    pub(crate) next_turn_ns: u64,
    /// It has had packets of this batch.
    pub(crate) touched: bool,
}

/// What uses a queue pair.
pub(crate) enum App {
    Reliable(Box<Reliable>),
    Unreliable(Box<Unreliable>),
}

impl App {
    pub(crate) fn wants_turn(&self) -> bool {
        match self {
            Self::Reliable(app) => app.wants_turn(),
            Self::Unreliable(app) => app.wants_turn(),
        }
    }

    pub(crate) fn state(&self) -> String {
        match self {
            Self::Reliable(app) => app.state(),
            Self::Unreliable(app) => app.state(),
        }
    }

    /// Bytes of complete operations, and of messages received without acknowledgement.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Reliable(app) => app.bytes,
            Self::Unreliable(app) => app.bytes,
        }
    }
}

//! A node: received frames in a ring, queue pairs, and the timing of the device. Each queue pair has an
//! application that posts work requests and checks completions.

use std::collections::VecDeque;

use transport::ReorderBuffer;
use wire::Psn;

use crate::fabric::Frame;
use crate::queue_pair::QueuePair;
use crate::reliable::Reliable;
use crate::rng::Rng;
use crate::unreliable::Unreliable;

/// The device of a node.
pub(crate) struct Node {
    /// Received frames that have not been handled.
    pub(crate) ring: VecDeque<Frame>,
    /// Capacity of the ring in frames while the fault `full-ring` is active.
    pub(crate) ring_max: usize,
    pub(crate) reorder: ReorderBuffer,
    /// Indices of its queue pairs, in the order of their numbers.
    pub(crate) endpoints: Vec<usize>,
    /// Time of the next poll; `u64::MAX` if only a frame will wake the node.
    pub(crate) wake_ns: u64,
    /// Time from the arrival of a frame to the poll that handles it.
    pub(crate) poll_ns: u64,
    /// Maximum number of frames per poll.
    pub(crate) batch: usize,
    /// Whether applications post many work requests at once, and early.
    pub(crate) eager: bool,
    /// Time until which the node has no buffers.
    pub(crate) empty_until_ns: u64,
    /// IPv4 identification of the next frame.
    pub(crate) ip_id: u16,
    /// Index of the queue pair that is served first in the next poll.
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

/// A queue pair and its application.
pub(crate) struct Endpoint {
    pub(crate) node: usize,
    /// Index of the queue pair at the other end; datagram queue pairs have none.
    pub(crate) peer: Option<usize>,
    pub(crate) queue: QueuePair,
    pub(crate) app: App,
    pub(crate) sq_psn: Psn,
    /// Packets that the device allows in flight.
    pub(crate) flow_window: usize,
    /// Time when the application posts next.
    pub(crate) next_post_ns: u64,
    /// How often it changed its UDP source port.
    pub(crate) rebinds: u16,
    /// Whether it received packets of the current batch.
    pub(crate) touched: bool,
}

/// The application of a queue pair.
pub(crate) enum App {
    Reliable(Box<Reliable>),
    Unreliable(Box<Unreliable>),
}

impl App {
    pub(crate) fn has_work(&self) -> bool {
        match self {
            Self::Reliable(app) => app.has_work(),
            Self::Unreliable(app) => app.has_work(),
        }
    }

    pub(crate) fn state(&self) -> String {
        match self {
            Self::Reliable(app) => app.state(),
            Self::Unreliable(app) => app.state(),
        }
    }

    /// Returns the bytes of complete operations, and of unacknowledged messages that were received.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Reliable(app) => app.bytes,
            Self::Unreliable(app) => app.bytes,
        }
    }
}

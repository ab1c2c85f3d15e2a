//! Events of a run, as an observer sees them.

use std::fmt;

use transport::{AsyncEventKind, Wc, WcStatus};
use wire::{DropReason, Packet};

use crate::cause::Cause;

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// Virtual time, in nanoseconds.
    pub at_ns: u64,
    /// The node of the event; for a lost frame its destination.
    pub node: usize,
    /// Kind of the event.
    pub what: What<'a>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum What<'a> {
    /// A frame is sent.
    Sent {
        /// Sequence number of the frame.
        number: u64,
        /// Destination node.
        to: usize,
        /// The frame from the Ethernet header to the ICRC.
        frame: &'a [u8],
        /// Whether the network made a copy.
        is_copy: bool,
    },
    /// The network damages a frame.
    Damaged {
        /// Number of the frame in [`What::Sent`].
        number: u64,
        /// The damaged frame.
        frame: &'a [u8],
        /// [`Cause::Corrupt`] or [`Cause::Truncate`].
        cause: Cause,
    },
    /// A frame is lost.
    Lost {
        /// Number of the frame in [`What::Sent`].
        number: u64,
        /// Sending node.
        from: usize,
        /// The frame when it was lost.
        frame: &'a [u8],
        /// Reason.
        cause: Cause,
    },
    /// A frame reaches its queue pair.
    Delivered {
        /// The packet in the frame.
        packet: Packet<'a>,
        /// Reason why the queue pair dropped the packet, if it did.
        refused: Option<DropReason>,
    },
    /// A link stands still.
    StandsStill {
        /// Virtual time of the end, in nanoseconds.
        until_ns: u64,
    },
    /// A work request is complete.
    Completed {
        /// The completion.
        wc: Wc,
        /// Whether it is the completion of a receive.
        is_receive: bool,
    },
    /// An asynchronous event of a queue pair.
    Event {
        /// Number of the queue pair.
        qpn: u32,
        /// Kind of the event.
        kind: AsyncEventKind,
    },
    /// The node stops sending and receiving for good.
    Vanished,
    /// The nodes in this bit set are cut off from the others.
    Parted(u64),
    /// All faults have ended, except for a vanished node.
    Healed,
}

impl fmt::Display for Sight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at_ns, node, what } = self;
        write!(f, "{:>4}.{:06} ms  node {node:<2}  ", at_ns / 1_000_000, at_ns % 1_000_000)?;
        match what {
            What::Sent { number, to, frame, is_copy } => {
                let how = if *is_copy { "the network sends a copy" } else { "sends" };
                write!(f, "#{number} {how} to node {to}: {}", Shown(frame))
            }
            What::Damaged { number, cause, frame } => {
                write!(f, "#{number} is damaged ({}): {}", cause.name(), Shown(frame))
            }
            What::Lost { number, from, frame, cause } => {
                write!(f, "#{number} from node {from} is lost ({}): {}", cause.name(), Shown(frame))
            }
            What::Delivered { packet, refused: None } => write!(f, "takes {packet}"),
            What::Delivered { packet, refused: Some(reason) } => write!(f, "ignores ({reason}) {packet}"),
            What::StandsStill { until_ns } => {
                write!(f, "sends nothing for {} us", until_ns.saturating_sub(*at_ns) / 1000)
            }
            What::Completed { wc, is_receive } => {
                let queue = if *is_receive { "receive" } else { "send" };
                let (qpn, id, status) = (wc.qp_num, wc.wr_id, wc.status);
                if status == WcStatus::Success {
                    write!(f, "QP {qpn:#x} completes {queue} {id}: {:?}, {} bytes", wc.opcode, wc.byte_len)
                } else {
                    write!(f, "QP {qpn:#x} completes {queue} {id}: {status:?}")
                }
            }
            What::Event { qpn, kind } => write!(f, "QP {qpn:#x}: event {kind:?}"),
            What::Vanished => f.write_str("vanishes"),
            What::Parted(nodes) => write!(f, "{} cut off from the others", Nodes(*nodes)),
            What::Healed => f.write_str("the network is healed"),
        }
    }
}

/// The nodes of a bit set, with a verb.
struct Nodes(u64);

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = (0..u64::BITS).filter(|node| self.0 >> node & 1 == 1).collect();
        let (noun, verb) = if nodes.len() == 1 { ("node", "is") } else { ("nodes", "are") };
        f.write_str(noun)?;
        for (i, node) in nodes.iter().enumerate() {
            let before = match nodes.len() - i {
                _ if i == 0 => " ",
                1 => " and ",
                _ => ", ",
            };
            write!(f, "{before}{node}")?;
        }
        write!(f, " {verb}")
    }
}

/// The packet in a frame, or the part that is left of it.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match crate::frame::packet_anyhow(self.0) {
            Some(packet) => packet.fmt(f),
            None => write!(f, "{} bytes, damaged", self.0.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_mask_displays_the_node_numbers() {
        for (mask, expected) in [
            (0b1, "node 0 is cut off from the others"),
            (0b101, "nodes 0 and 2 are cut off from the others"),
            (1 << 63 | 0b110, "nodes 1, 2 and 63 are cut off from the others"),
        ] {
            let line = Sight { at_ns: 0, node: 1, what: What::Parted(mask) }.to_string();
            assert!(line.ends_with(expected), "{line}");
        }
    }
}

//! One stage of a hook, and the simplest one.

use std::fmt;

use super::parameters::Parameters;
use super::{HookError, HookPacket};

/// The decision about a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Continue with the next stage, then the transport or the port.
    Pass,
    /// Dropped.
    Drop,
    /// Dropped, because the program failed.
    Aborted,
    /// Dropped, because the program returned no valid verdict.
    Invalid,
    /// Sent back through the port.
    Tx,
    /// Redirected.
    Redirect(Target),
}

/// Target of a redirect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Target {
    /// No target: the program has not set one, or there is no receiver. The packet is dropped.
    Nowhere,
    /// The interface with this index.
    Interface(u32),
    /// The reader of this key of an XSKMAP.
    Ring(u32),
    /// The process of this host with this slot: bits 23..12 of a QPN.
    Slot {
        /// The slot.
        slot: u32,
        /// The packet passes if no process has the slot; otherwise it is dropped then.
        passes: bool,
    },
}

/// A stage of a [`Hook`](super::Hook). Runs under the engine's lock, so it must not wait, nor call the
/// device.
pub trait Stage: Send + fmt::Debug {
    /// Judges a packet, and may change it.
    fn run(&mut self, packet: &mut HookPacket<'_>) -> Verdict;

    /// Returns the verdict on packets that differ from the last one only after the UDP header, and have
    /// its length; `None` if the stage must see them. The caller reports their number by
    /// [`repeat`](Stage::repeat).
    fn foresee(&self) -> Option<Verdict> {
        None
    }

    /// Reports `packets` foreseen packets, of `bytes` bytes together, Ethernet header to ICRC.
    fn repeat(&mut self, packets: u64, bytes: u64) {
        let _ = (packets, bytes);
    }

    /// Names and values of its counters.
    fn rows(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Further information for people.
    fn note(&self) -> Option<String> {
        None
    }

    /// Takes the lines that its program printed, with their times, of at most `room` bytes together; reduces
    /// `room`. Returns the number of lost lines, too. The lines of the next two seconds are kept.
    fn read_log(&mut self, now_ns: u64, room: &mut usize) -> (Vec<(u64, String)>, u64) {
        let _ = (now_ns, room);
        (Vec::new(), 0)
    }
}

/// Counts packets and bytes, and passes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    packets: u64,
    bytes: u64,
}

impl Count {
    /// Parses the text after `count:`, which must be empty.
    pub(super) fn parse(text: &str) -> Result<Count, HookError> {
        match Parameters::new("count", text, "count, without parameters") {
            _ if text.is_empty() => Ok(Count::default()),
            parameters => Err(parameters.error()),
        }
    }

    pub(super) fn stage(self) -> Box<dyn Stage> {
        Box::new(self)
    }
}

impl Stage for Count {
    fn run(&mut self, packet: &mut HookPacket<'_>) -> Verdict {
        self.repeat(1, packet.frame_len() as u64);
        Verdict::Pass
    }

    fn foresee(&self) -> Option<Verdict> {
        Some(Verdict::Pass)
    }

    fn repeat(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    fn rows(&self) -> Vec<(String, u64)> {
        vec![("packets".to_owned(), self.packets), ("bytes".to_owned(), self.bytes)]
    }
}

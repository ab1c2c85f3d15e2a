//! One step of a hook, and the simplest one.

use std::fmt;

use super::parameters::Parameters;
use super::{HookError, HookPacket};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// On to the next stage, then to the transport or the port.
    Pass,
    /// Dropped.
    Drop,
    /// Dropped, because the program has failed.
    Aborted,
    /// Dropped, because the program has returned what is no verdict.
    Invalid,
    /// Out of the port again.
    Tx,
    /// Elsewhere.
    Redirect(Target),
}

/// Where a packet is redirected to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Target {
    /// Nowhere: the program has not said where, or where nobody is. It is dropped.
    Nowhere,
    /// Out of the interface with this index.
    Interface(u32),
    /// To whoever reads what is redirected to this key of an XSKMAP.
    Ring(u32),
    /// To the process of this host that has this slot: bits 23..16 of a QPN.
    Slot(u32),
}

/// A step of a [`Hook`](super::Hook). Runs under the engine's lock, so it must not wait, nor call the device.
pub trait Stage: Send + fmt::Debug {
    /// Looks at a packet, and may change it.
    fn run(&mut self, packet: &mut HookPacket<'_>) -> Verdict;

    /// The verdict on packets that differ from the one it saw last in nothing but what is behind the UDP header, and are as
    /// long; `None` if it must see them. Whoever asks tells by [`repeat`](Stage::repeat) how many there were.
    fn foresee(&self) -> Option<Verdict> {
        None
    }

    /// There were `packets` packets that it foresaw, of `bytes` bytes together, Ethernet header to ICRC.
    fn repeat(&mut self, packets: u64, bytes: u64) {
        let _ = (packets, bytes);
    }

    /// Name and value of what it counts.
    fn rows(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// What else a person should know.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Counts packets and bytes, and passes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    packets: u64,
    bytes: u64,
}

impl Count {
    /// From the text behind `count:`, which takes none.
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

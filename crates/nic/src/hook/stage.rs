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

    /// Whether the verdict depends on no packet, so that [`run_train`](Stage::run_train) may stand for many calls of
    /// [`run`](Stage::run). Asked once, when the hook is made.
    fn is_uniform(&self) -> bool {
        false
    }

    /// The one verdict on `packets` packets of `bytes` bytes together, Ethernet header to ICRC: `Pass`, `Drop` or `Aborted`.
    fn run_train(&mut self, packets: u64, bytes: u64) -> Verdict {
        let _ = (packets, bytes);
        Verdict::Pass
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
        self.run_train(1, packet.frame_len() as u64)
    }

    fn is_uniform(&self) -> bool {
        true
    }

    fn run_train(&mut self, packets: u64, bytes: u64) -> Verdict {
        self.packets += packets;
        self.bytes += bytes;
        Verdict::Pass
    }

    fn rows(&self) -> Vec<(String, u64)> {
        vec![("packets".to_owned(), self.packets), ("bytes".to_owned(), self.bytes)]
    }
}

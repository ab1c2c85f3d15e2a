//! Result of running a program on a packet.

use std::fmt;

use crate::map::MapRef;
use crate::xdp::XdpAction;

/// Result of a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Outcome {
    /// Return value of the program; 0 if it faulted.
    pub returned: u32,
    /// Target of the last redirect helper; relevant if the verdict is [`XdpAction::Redirect`].
    pub redirect: Option<Redirect>,
    /// Reason why the machine ended the program, if it did.
    pub fault: Option<Fault>,
}

impl Outcome {
    /// Returns the verdict. As in the kernel, an invalid number means [`XdpAction::Aborted`].
    #[must_use]
    pub fn action(&self) -> XdpAction {
        XdpAction::from_number(self.returned).unwrap_or(XdpAction::Aborted)
    }
}

/// Target of a redirect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Redirect {
    /// Interface with this index.
    Interface(u32),
    /// Entry of a map of devices, CPUs or sockets.
    Map {
        /// Index in [`Program::maps`](crate::Program::maps).
        map: MapRef,
        /// Key of the entry.
        key: u32,
        /// The first 64 bits of the entry's value; 0 for broadcasts.
        value: u64,
        /// The helper's flags. Bits 0 and 1: the verdict if the entry has no target. Bits 3 and 4: redirect
        /// to all devices; exclude the interface that received the packet.
        flags: u64,
    },
}

/// The machine ended the program at an instruction that the kernel's verifier would have rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fault {
    /// Slot of the instruction.
    pub slot: u32,
    /// Reason.
    pub kind: FaultKind,
}

/// Reason of a [`Fault`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultKind {
    /// Access to memory that does not exist or is not allowed.
    Access {
        /// Guest address of the access.
        address: u64,
    },
    /// The program exceeded its budget.
    Budget,
    /// Function calls are nested more than eight levels deep.
    CallDepth,
    /// An argument is invalid for this helper.
    Argument,
    /// The instruction accesses a field or function that this kernel does not have, without asking first.
    Missing,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}: {}", self.slot, self.kind)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::Access { address } => write!(f, "invalid access at {address:#x}"),
            FaultKind::Budget => f.write_str("the program runs for too long"),
            FaultKind::CallDepth => f.write_str("calls are nested too deeply"),
            FaultKind::Missing => f.write_str("access to what this kernel does not have"),
            FaultKind::Argument => f.write_str("invalid argument of a helper"),
        }
    }
}

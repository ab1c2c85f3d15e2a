//! What comes of running a program on a packet.

use std::fmt;

use crate::map::MapRef;
use crate::xdp::XdpAction;

/// Result of a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Outcome {
    /// What the program returned; 0 if it faulted.
    pub returned: u32,
    /// Where a redirect helper was told to send the packet; counts if the verdict is [`XdpAction::Redirect`].
    pub redirect: Option<Redirect>,
    /// Why the program was ended, if it was.
    pub fault: Option<Fault>,
}

impl Outcome {
    /// The verdict. As in the kernel, a number that is none means [`XdpAction::Aborted`].
    #[must_use]
    pub fn action(&self) -> XdpAction {
        XdpAction::from_number(self.returned).unwrap_or(XdpAction::Aborted)
    }
}

/// Target of a redirect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Redirect {
    /// An interface by index.
    Interface(u32),
    /// An entry of a map of devices, CPUs or sockets.
    Map {
        /// Index in [`Program::maps`](crate::Program::maps).
        map: MapRef,
        /// Its key.
        key: u32,
        /// The first 64 bits of its value; 0 for broadcasts.
        value: u64,
        /// Bits 3 and 4 of the helper's flags: to all devices, and not back to where the packet came from.
        flags: u64,
    },
}

/// A program did what the kernel's verifier would not have let it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fault {
    /// Slot of the instruction.
    pub slot: u32,
    /// What it did.
    pub kind: FaultKind,
}

/// See [`Fault`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultKind {
    /// Access to what is not there or not allowed.
    Access {
        /// Guest address.
        address: u64,
    },
    /// It ran for too long.
    Budget,
    /// Calls are nested too deeply.
    CallDepth,
    /// An argument that this helper cannot take.
    Argument,
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
            FaultKind::Argument => f.write_str("invalid argument of a helper"),
        }
    }
}

//! The two hook points.

use std::fmt;

/// A place where a hook can be attached.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum HookPoint {
    /// After the port has received a packet, before the transport.
    Ingress,
    /// After the transport has built a packet, before the port.
    Egress,
}

impl HookPoint {
    /// Both, ingress first.
    pub const ALL: [HookPoint; 2] = [HookPoint::Ingress, HookPoint::Egress];
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HookPoint::Ingress => "ingress",
            HookPoint::Egress => "egress",
        })
    }
}

//! The end of a wire where a program runs: roxie or the kernel's Soft-RoCE, on the host or in the emulated
//! machine.

/// An end of a wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// roxie on the host, at the tap of the machine's network card.
    Roxie,
    /// The other end of that wire: Soft-RoCE in the machine.
    Rxe,
    /// roxie in the machine, at one end of the wire between two of its network cards.
    A,
    /// roxie in the machine, at the other end of that wire.
    B,
}

impl End {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Roxie => Self::Rxe,
            Self::Rxe => Self::Roxie,
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Its address.
    pub(crate) fn address(self, v6: bool) -> &'static str {
        match (self, v6) {
            (Self::Roxie, false) => "10.99.0.1",
            (Self::Roxie, true) => "fd99::1",
            (Self::Rxe, false) => "10.99.0.2",
            (Self::Rxe, true) => "fd99::2",
            (Self::A, false) => "10.98.0.1",
            (Self::A, true) => "fd98::1",
            (Self::B, false) => "10.98.0.2",
            (Self::B, true) => "fd98::2",
        }
    }

    /// The index of the GID of that address; rxe has the link-local GID in front.
    pub(crate) fn gid_index(self, v6: bool) -> &'static str {
        match (self, v6) {
            (Self::Rxe, true) => "2",
            (Self::Rxe, false) | (_, true) => "1",
            (_, false) => "0",
        }
    }

    pub(crate) fn device(self) -> &'static str {
        if self == Self::Rxe { "rxe0" } else { "roxie0" }
    }

    /// The interface that roxie uses.
    pub(crate) fn netdev(self) -> &'static str {
        if self == Self::Roxie { "host0" } else { "wire" }
    }

    /// The network namespace inside the machine, if it is not the initial one.
    pub(crate) fn netns(self) -> Option<&'static str> {
        match self {
            Self::Roxie | Self::Rxe => None,
            Self::A => Some("a"),
            Self::B => Some("b"),
        }
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Roxie | Self::Rxe => Kind::Rxe,
            Self::A | Self::B => Kind::Wire,
        }
    }
}

/// The purpose of a machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// A kernel with Soft-RoCE, the host's own release: the peer.
    Rxe,
    /// The same with a paravirtual RDMA device on roxie at the host's end.
    Pvrdma,
    /// A kernel with zero-copy AF_XDP in virtio_net, and two network cards joined by a wire.
    Wire,
}

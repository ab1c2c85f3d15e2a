//! Whether a socket reports TOS and TTL of the datagrams that it receives.
//!
//! These two control messages take 0.15 us of the time of a small packet that arrives alone. The transport
//! uses them in datagrams, and to see congestion: a router marks a packet (ECN CE) if its sender set an
//! ECN codepoint. So the socket of connected queue pairs reports them while a sender sets one, and looks from
//! time to time whether one does.

use std::os::fd::{AsFd, OwnedFd};

use sys::Opt;

/// Datagrams without an ECN codepoint in a row after which the socket stops to report. Half: the look misses
/// a sender that shares the socket with 16 busier ones. Double: twice the cost of a look.
const LOOK: u32 = 32;
/// Datagrams until the next look: 64 MiB in full bursts, which pass in some 20 ms. Half: a look costs 0.01 us
/// per datagram. Double: congestion of a connection that begins to set a codepoint is seen that much later.
const PAUSE: u32 = 1024;

/// The ECN codepoint in the TOS or traffic class (RFC 3168, section 5); 0 is "not ECN-capable".
const ECN: u8 = 3;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct HeaderReport {
    is_on: bool,
    /// Datagrams until the socket stops to report, or begins to.
    left: u32,
}

impl HeaderReport {
    /// Makes a socket report both. An earlier owner may have left it otherwise.
    pub(super) fn begin(socket: &OwnedFd) -> HeaderReport {
        let mut report = HeaderReport { is_on: false, left: 0 };
        report.look(socket);
        report
    }

    /// Looks for senders that set an ECN codepoint.
    #[cold]
    pub(super) fn look(&mut self, socket: &OwnedFd) {
        self.turn(socket, true);
        self.left = LOOK;
    }

    /// The values of all datagrams are used from now on.
    #[inline]
    pub(super) fn require(&mut self, socket: &OwnedFd) {
        if !self.is_on {
            self.look(socket);
        }
    }

    /// `datagrams` were received; their values of TOS have these bits in all.
    #[inline]
    pub(super) fn received(&mut self, socket: &OwnedFd, datagrams: u32, tos_bits: u8) {
        if tos_bits & ECN != 0 {
            self.left = LOOK;
        } else if self.left > datagrams {
            self.left -= datagrams;
        } else if self.is_on {
            self.turn(socket, false);
            self.left = PAUSE;
        } else {
            self.look(socket);
        }
    }

    #[cold]
    fn turn(&mut self, socket: &OwnedFd, on: bool) {
        if self.is_on != on {
            // An IPv4 socket has only the first two.
            for opt in [Opt::RECV_TOS, Opt::RECV_TTL, Opt::RECV_TCLASS, Opt::RECV_HOP_LIMIT] {
                let _of_ipv6 = sys::set_opt(socket.as_fd(), opt, i32::from(on));
            }
            self.is_on = on;
        }
    }
}

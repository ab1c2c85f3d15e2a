//! Why a packet was refused. Refusal is silent on the wire; here it always has a name and a counter.

use core::fmt;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// Why a received packet went no further. One counter each; `as usize` indexes an array of
        /// [`DropReason::COUNT`] counters.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum DropReason {
            $($(#[doc = $doc])* $variant,)*
        }

        impl DropReason {
            /// Every reason, in the order of its value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// The counter's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

drop_reasons! {
    /// Shorter than BTH, extension headers, pad and ICRC, or a broken outer header.
    TooShort = "rx_too_short",
    /// Opcode without a row in the table.
    UnknownOpcode = "rx_unknown_opcode",
    /// Transport header version is not 0.
    BadTver = "rx_bad_tver",
    /// The invariant CRC does not match.
    BadIcrc = "rx_bad_icrc",
    /// The destination address is none of ours.
    NotForUs = "rx_not_for_us",
    /// No QP has this number (also QP 0, which does not exist on Ethernet).
    UnknownQp = "rx_unknown_qp",
    /// The opcode belongs to another service than the QP's.
    WrongService = "rx_wrong_service",
    /// The QP's state does not accept this packet.
    WrongState = "rx_wrong_state",
    /// The sender is not the peer this QP is connected to.
    WrongPeer = "rx_wrong_peer",
    /// Partition keys do not match.
    BadPKey = "bad_pkey_cntr",
    /// The Q_Key is not the QP's.
    BadQKey = "qkey_viol_cntr",
    /// An AETH whose syndrome has no meaning.
    ReservedSyndrome = "rx_reserved_syndrome",
    /// A response to nothing that is outstanding: stale, duplicate or invented.
    StaleResponse = "rx_stale_response",
    /// A response out of order; the requester goes back by itself.
    OutOfOrderResponse = "rx_out_of_order_response",
    /// A request that leaves a gap; NAKed once.
    OutOfSequence = "out_of_seq_request",
    /// A repeated request that needs no new answer.
    Duplicate = "duplicate_request",
    /// Part of an unreliable message whose beginning was lost.
    UcIncomplete = "rx_uc_incomplete",
    /// The opcode is not allowed at this place in a message.
    BadSequenceOfOpcodes = "rx_bad_opcode_order",
    /// Payload or pad length is wrong for this opcode or path MTU.
    BadLength = "rx_bad_length",
    /// There is no such XRC shared receive queue, or it is of another XRC domain.
    NoSuchSrq = "rx_no_such_srq",
    /// No receive was posted.
    NoReceive = "rx_no_receive",
    /// The posted receive is too small.
    ReceiveTooSmall = "rx_receive_too_small",
    /// Memory refused an unreliable packet.
    AccessFault = "rx_access_fault",
    /// The service or operation is defined but not implemented.
    Unsupported = "rx_unsupported",
    /// A queue inside the device was full.
    QueueFull = "rx_queue_full",
    /// A management datagram that is not a connection-manager message of a version we speak.
    BadMad = "rx_bad_mad",
    /// An XDP program said drop.
    XdpDrop = "rx_xdp_drop",
    /// An XDP program said abort, or failed.
    XdpAborted = "rx_xdp_aborted",
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_indexes_its_counter_and_names_are_distinct() {
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
            assert!(DropReason::ALL[..i].iter().all(|other| other.name() != reason.name()));
        }
    }
}

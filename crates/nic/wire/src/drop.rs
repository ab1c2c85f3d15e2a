//! Reasons for dropping a received packet. The peer gets no message about it; the device counts it.

use core::fmt;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// Reason why a received packet was dropped. Each has a counter; `reason as usize` is an index into
        /// an array of [`DropReason::COUNT`] counters.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum DropReason {
            $($(#[doc = $doc])* $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of their values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the name of the counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

drop_reasons! {
    /// Shorter than BTH, extension headers, pad and ICRC together, or a malformed outer header.
    TooShort = "rx_too_short",
    /// The opcode is reserved or manufacturer-specific.
    UnknownOpcode = "rx_unknown_opcode",
    /// The transport header version is not 0.
    BadTver = "rx_bad_tver",
    /// The invariant CRC does not match.
    BadIcrc = "rx_bad_icrc",
    /// The destination address belongs to another host.
    NotForUs = "rx_not_for_us",
    /// No QP has the destination QPN. QP 0 does not exist on Ethernet.
    UnknownQp = "rx_unknown_qp",
    /// The opcode belongs to a transport service that is not the QP's.
    WrongService = "rx_wrong_service",
    /// The QP's state does not allow this packet.
    WrongState = "rx_wrong_state",
    /// The sender is not the peer to which this QP is connected.
    WrongPeer = "rx_wrong_peer",
    /// The UDP source port is not the peer's, and the PSN does not prove that the peer has changed it.
    ForeignPort = "foreign_port",
    /// The peer cannot send this PSN now.
    GuessedPsn = "guessed_psn",
    /// A request with the same PSN and other bytes was kept; both are dropped.
    ConflictingPsn = "conflicting_psn",
    /// The partition keys do not match.
    BadPKey = "bad_pkey_cntr",
    /// The Q_Key is not that of the QP.
    BadQKey = "qkey_viol_cntr",
    /// The AETH has a reserved syndrome.
    ReservedSyndrome = "rx_reserved_syndrome",
    /// No outstanding request matches the response: it is stale, a duplicate or forged.
    StaleResponse = "rx_stale_response",
    /// A response is missing before this one. The requester retransmits the request.
    OutOfOrderResponse = "rx_out_of_order_response",
    /// A request is missing before this one. The responder sends one NAK.
    OutOfSequence = "out_of_seq_request",
    /// A duplicate request that needs no new response.
    Duplicate = "duplicate_request",
    /// A packet of an unreliable message that lost an earlier packet.
    UcIncomplete = "rx_uc_incomplete",
    /// The opcode is not allowed at this position of a message.
    BadSequenceOfOpcodes = "rx_bad_opcode_order",
    /// The payload or the pad has the wrong length for this opcode or path MTU.
    BadLength = "rx_bad_length",
    /// The XRC shared receive queue does not exist, or belongs to another XRC domain.
    NoSuchSrq = "rx_no_such_srq",
    /// The application has posted no receive.
    NoReceive = "rx_no_receive",
    /// The posted receive is smaller than the message.
    ReceiveTooSmall = "rx_receive_too_small",
    /// An unreliable packet addresses memory that it may not access.
    AccessFault = "rx_access_fault",
    /// The specification defines the service or operation, but roxie does not implement it.
    Unsupported = "rx_unsupported",
    /// A queue inside the device is full.
    QueueFull = "rx_queue_full",
    /// The management datagram is not a CM message of a supported version.
    BadMad = "rx_bad_mad",
    /// An XDP program returned `XDP_DROP`.
    XdpDrop = "rx_xdp_drop",
    /// An XDP program returned `XDP_ABORTED`, or failed.
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

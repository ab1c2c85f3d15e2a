//! Counters of a queue pair, with the names that rxe uses where it has one.

/// Makes the struct, its rows for display, and the sum over queue pairs from one list.
macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters of one queue pair, or of many; they only grow.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct QpCounters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl QpCounters {
            /// Name and value of each.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Description of the counter with this name.
            #[must_use]
            pub fn help(name: &str) -> Option<&'static str> {
                match name {
                    $(stringify!($name) => Some(concat!($($doc),*)),)*
                    _ => None,
                }
            }

            /// Sets the counter with this name; returns false if there is none.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }

            /// Adds the counters of another queue pair.
            pub fn absorb(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Packets given to the owner for sending.
    sent_pkts,
    /// Packets received from the owner.
    rcvd_pkts,
    /// Payload bytes sent, retransmitted ones included.
    sent_bytes,
    /// Payload bytes received in packets that were accepted for this queue pair.
    rcvd_bytes,
    /// Requests received again.
    duplicate_request,
    /// Requests received ahead of the expected one.
    out_of_seq_request,
    /// Requests received ahead of the expected one and kept in the reorder buffer.
    kept_request,
    /// Packets dropped because the peer uses another UDP source port.
    foreign_port,
    /// Packets dropped because the peer cannot send their PSN now.
    guessed_psn,
    /// Times that so many guessed PSNs came that only exact packets were believed.
    distrusted,
    /// Requests that had the PSN of a kept one and other bytes; both were dropped.
    conflicting_psn,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR NAKs sent.
    send_rnr_err,
    /// Sequence NAKs received.
    rcvd_seq_err,
    /// Sequence NAKs sent.
    send_seq_err,
    /// Packets that arrived with a congestion mark (ECN CE).
    np_ecn_marked_roce_packets,
    /// CNPs sent.
    np_cnp_sent,
    /// CNPs received that cut the rate.
    rp_cnp_handled,
    /// CNPs received too soon after the one before.
    rp_cnp_ignored,
    /// Times that a packet was held back by the rate.
    rate_waits,
    /// Plain ACKs that left together with a request.
    ack_deferred,
    /// Work requests that ended with `RETRY_EXC_ERR`.
    retry_exceeded_err,
    /// Work requests that ended with `RNR_RETRY_EXC_ERR`.
    retry_rnr_exceeded_err,
    /// Times the requester requested missing responses again because a later response or ACK had arrived.
    completer_retry_err,
    /// Times an ACK of a later request showed that responses were missing.
    implied_nak_seq_err,
    /// Times the local ACK timer fired.
    local_ack_timeout_err,
    /// Probes: retransmissions before that timer because an ACK was overdue, or to ask about packets without
    /// AckReq.
    probes,
    /// Gap reports received (gaps beyond the one that a NAK names, and what has arrived meanwhile).
    rcvd_gap_report,
    /// Gap reports sent (gaps beyond the one that a NAK names, and what has arrived meanwhile).
    send_gap_report,
    /// Request packets retransmitted.
    retransmitted_pkts,
    /// Send work requests that failed for a local reason.
    send_err,
    /// Work requests completed, by the requester.
    rdma_sends,
    /// Messages received that made a completion.
    rdma_recvs,
    /// Responses dropped: duplicates, from an earlier connection, or with a reserved syndrome.
    ignored_responses,
    /// UD messages longer than the MTU; they complete and nothing is sent (IBA C10-93.1.1).
    ud_send_too_long,
    /// UD and UC messages without a receive work request, or too long for it.
    rcvd_no_wqe,
    /// UC messages abandoned.
    uc_dropped_messages,
}

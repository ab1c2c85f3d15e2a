//! What a queue pair counts, under the names that rxe users know where rxe has one.

/// One list makes the struct, its rows for people, and the sum over queue pairs.
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

            /// What the one of this name counts.
            #[must_use]
            pub fn help(name: &str) -> Option<&'static str> {
                match name {
                    $(stringify!($name) => Some(concat!($($doc),*)),)*
                    _ => None,
                }
            }

            /// Sets the one of this name; false if there is none.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }

            /// Adds another queue pair's.
            pub fn absorb(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Packets given to the owner for sending.
    sent_pkts,
    /// Packets taken from the owner.
    rcvd_pkts,
    /// Payload bytes sent, resent ones included.
    sent_bytes,
    /// Payload bytes received in packets that were accepted for this queue pair.
    rcvd_bytes,
    /// Requests received again.
    duplicate_request,
    /// Requests received ahead of the expected one.
    out_of_seq_request,
    /// Requests received ahead of the expected one and kept until those before them had arrived.
    kept_request,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR NAKs sent.
    send_rnr_err,
    /// Sequence NAKs received.
    rcvd_seq_err,
    /// Sequence NAKs sent.
    send_seq_err,
    /// Packets that arrived with the mark of congestion (ECN CE).
    np_ecn_marked_roce_packets,
    /// CNPs sent.
    np_cnp_sent,
    /// CNPs received that cut the rate.
    rp_cnp_handled,
    /// CNPs received too soon after the one before.
    rp_cnp_ignored,
    /// Times that sending waited for its rate.
    rate_waits,
    /// Plain ACKs that left together with a request.
    ack_deferred,
    /// Work requests that ended with `RETRY_EXC_ERR`.
    retry_exceeded_err,
    /// Work requests that ended with `RNR_RETRY_EXC_ERR`.
    retry_rnr_exceeded_err,
    /// Times the requester asked again for answers that are missing, as later ones, or an acknowledgement of what follows, show.
    completer_retry_err,
    /// Times that an acknowledgement of what follows has shown that answers are missing.
    implied_nak_seq_err,
    /// Times the local ACK timer fired.
    local_ack_timeout_err,
    /// Times the peer was asked because an answer was overdue, before that timer, or because nobody had asked for one.
    probes,
    /// Gaps that the peer reported besides its NAKs.
    rcvd_gap_report,
    /// Gaps reported to the peer besides NAKs.
    send_gap_report,
    /// Request packets sent again.
    retransmitted_pkts,
    /// Send work requests that failed for a local reason.
    send_err,
    /// Work requests completed, by the requester.
    rdma_sends,
    /// Messages received that made a completion.
    rdma_recvs,
    /// Responses that were duplicates, ghosts or reserved.
    ignored_responses,
    /// UD messages longer than the MTU; they complete and nothing is sent (IBA C10-93.1.1).
    ud_send_too_long,
    /// UD and UC messages without a receive work request, or too long for it.
    rcvd_no_wqe,
    /// UC messages abandoned.
    uc_dropped_messages,
}

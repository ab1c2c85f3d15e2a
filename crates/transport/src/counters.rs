//! What a queue pair counts, under the names that rxe users know where rxe has one.

/// Counters of one queue pair; they only grow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QpCounters {
    /// Packets given to the owner for sending.
    pub sent_pkts: u64,
    /// Packets taken from the owner.
    pub rcvd_pkts: u64,
    /// Payload bytes sent, resent ones included.
    pub sent_bytes: u64,
    /// Payload bytes received in packets that were accepted for this queue pair.
    pub rcvd_bytes: u64,
    /// Requests received again.
    pub duplicate_request: u64,
    /// Requests received ahead of the expected one.
    pub out_of_seq_request: u64,
    /// RNR NAKs received.
    pub rcvd_rnr_err: u64,
    /// RNR NAKs sent.
    pub send_rnr_err: u64,
    /// Sequence NAKs received.
    pub rcvd_seq_err: u64,
    /// Sequence NAKs sent.
    pub send_seq_err: u64,
    /// Plain ACKs that left together with a request.
    pub ack_deferred: u64,
    /// Work requests that ended with `RETRY_EXC_ERR`.
    pub retry_exceeded_err: u64,
    /// Work requests that ended with `RNR_RETRY_EXC_ERR`.
    pub retry_rnr_exceeded_err: u64,
    /// Times the requester went back for missing responses.
    pub completer_retry_err: u64,
    /// Times the local ACK timer fired.
    pub local_ack_timeout_err: u64,
    /// Request packets sent again.
    pub retransmitted_pkts: u64,
    /// Send work requests that failed for a local reason.
    pub send_err: u64,
    /// Work requests completed, by the requester.
    pub rdma_sends: u64,
    /// Messages received that made a completion.
    pub rdma_recvs: u64,
    /// Responses that were duplicates, ghosts or reserved.
    pub ignored_responses: u64,
    /// UD messages longer than the MTU; they complete and nothing is sent (IBA C10-93.1.1).
    pub ud_send_too_long: u64,
    /// UD and UC messages without a receive work request, or too long for it.
    pub rcvd_no_wqe: u64,
    /// UC messages abandoned.
    pub uc_dropped_messages: u64,
}

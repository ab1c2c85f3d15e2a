//! The USDT probes, provider `roxie`. docs/trace.md names the arguments.

sys::usdt! {
    /// Queue pair, `wr_id`, opcode (`enum ibv_wc_opcode`), bytes, number of the first packet.
    pub(super) fn post_send(qpn, wr_id, opcode, bytes, first)
}
sys::usdt! {
    /// Queue pair, packets, numbers of the first packet and of the one after the last, retransmitted ones.
    pub(super) fn transmit(qpn, packets, from, until, retransmitted)
}
sys::usdt! {
    /// Queue pair, number of the oldest unacknowledged packet, number of the request that is expected next.
    pub(super) fn receive(qpn, acknowledged, expected)
}
sys::usdt! {
    /// Queue pair, number of the oldest unacknowledged packet, local ACK timeouts so far.
    pub(super) fn expire(qpn, acknowledged, timeouts)
}
sys::usdt! {
    /// Queue pair, `wr_id`, status (`enum ibv_wc_status`), 1 for a receive.
    pub(super) fn poll(qpn, wr_id, status, is_receive)
}
sys::usdt! {
    /// When it began (CLOCK_MONOTONIC, ns), receive batches.
    pub(super) fn batch(begin_ns, batches)
}
sys::usdt! {
    /// Queue pair, reason ([`super::Wait`]).
    pub(super) fn wait(qpn, reason)
}
sys::usdt! {
    /// Queue pair, state (`enum ibv_qp_state`), queue pair of the peer.
    pub(super) fn state(qpn, state, dest_qpn)
}
sys::usdt! {
    /// Attribute ID of the message, communication IDs of sender and receiver, 1 if it was sent.
    pub(super) fn cm(attribute, sender, receiver, is_sent)
}

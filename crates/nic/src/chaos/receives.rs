//! RNR NAKs: a message arrives before the device has learned of the receive that was posted for it.

use transport::chaos::{Chaos, Fault};
use transport::{Qp, QpType};
use wire::{Operation, Packet, Qpn};

/// SENDs of a queue pair after a refused one that are not refused: a peer that retries one time (`rnr_retry`
/// 1) does not fail.
const ACCEPTED_MIN: u64 = 4;
/// Most refused SENDs of a queue pair. A peer may wait 655 ms after each (`min_rnr_timer` 0).
const REFUSED_MAX: u64 = 3;

/// The SENDs that the queue pairs of an engine have received.
#[derive(Debug, Default)]
pub(crate) struct Receives(Vec<Received>);

#[derive(Clone, Copy, Debug)]
struct Received {
    qpn: Qpn,
    /// Differs from that of an earlier queue pair with the same `qpn`.
    number: u64,
    sends: u64,
    refused: u64,
    next_refusal: u64,
}

impl Receives {
    /// Whether this packet begins a SEND that finds no receive.
    pub(crate) fn refuses(&mut self, chaos: &Chaos, qp: &Qp, packet: &Packet<'_>) -> bool {
        let row = packet.row();
        let is_send = matches!(row.operation, Operation::Send | Operation::SendImm | Operation::SendInv);
        if qp.ty() != QpType::Rc || !is_send || !row.position.starts() {
            return false;
        }
        let (qpn, number) = (qp.qpn(), chaos.number(qp.qpn().value()));
        let new = Received { qpn, number, sends: 0, refused: 0, next_refusal: 0 };
        let at = self.0.iter().position(|received| received.qpn == qpn).unwrap_or_else(|| {
            self.0.push(new);
            self.0.len() - 1
        });
        let received = &mut self.0[at];
        if received.number != number {
            *received = new;
        }
        received.sends += 1;
        let may = received.sends > received.next_refusal && received.refused < REFUSED_MAX;
        let refuses = may && chaos.strikes(Fault::Rnr, number, received.sends).is_some();
        if refuses {
            received.refused += 1;
            received.next_refusal = received.sends + ACCEPTED_MIN;
        }
        refuses
    }
}

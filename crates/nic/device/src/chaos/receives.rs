//! RNR NAKs: a message arrives before the device has learned of the receive that was posted for it.

use std::collections::HashMap;

use transport::chaos::{Chaos, Fault};
use transport::{Qp, QpType};
use wire::{Operation, Packet};

/// SENDs of a queue pair after a refused one that are not refused: a peer that retries one time (`rnr_retry`
/// 1) does not fail.
const ACCEPTED_MIN: u64 = 4;
/// Most refused SENDs of a queue pair. A peer may wait 655 ms after each (`min_rnr_timer` 0).
const REFUSED_MAX: u64 = 3;

/// The SENDs that the queue pairs of an engine have received, by their [numbers](Chaos::number).
#[derive(Debug, Default)]
pub(crate) struct Receives(HashMap<u64, Received>);

#[derive(Clone, Copy, Debug, Default)]
struct Received {
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
        let number = chaos.number(qp.qpn().value());
        let received = self.0.entry(number).or_default();
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

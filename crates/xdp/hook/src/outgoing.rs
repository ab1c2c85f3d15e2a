//! Packets that leave by themselves: later than the transport sent them, or bounced by a hook.

use transport::numbering::slot_of;
use wire::icrc::ICRC_LEN;
use wire::{Bth, Qpn};

use roxie::port::{FlowId, FlowKey, GSI_FLOW_SLOT, MAX_PACKET, Port, RxBatch};

/// A packet that leaves later, or does not come from the transport.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) key: FlowKey,
    /// The local queue pair that sends it, if one does.
    pub(super) sender: Option<Qpn>,
    /// BTH to the last byte before the ICRC.
    pub(super) bytes: Vec<u8>,
}

impl Outgoing {
    /// Returns a received packet as one to send, from its source address to its destination. `None` if it
    /// is too short or too long.
    pub(super) fn back(packet: &RxBatch<'_>) -> Option<Outgoing> {
        let bytes = packet.bytes.get(..packet.bytes.len().checked_sub(ICRC_LEN)?)?;
        let bth = Bth::parse(bytes.first_chunk()?);
        let dst_slot = match bth.dest_qp {
            Qpn::GSI => GSI_FLOW_SLOT,
            qpn => slot_of(qpn),
        };
        let fits = packet.bytes.len() <= MAX_PACKET;
        fits.then(|| Outgoing {
            key: FlowKey { dst_slot, ..packet.flow_key() },
            sender: None,
            bytes: bytes.to_vec(),
        })
    }

    /// Writes it into the port's slot; `None` if it cannot be sent between these addresses.
    pub(super) fn stage(&self, port: &mut dyn Port) -> Option<FlowId> {
        let flow = port.datagram_flow(&self.key).ok()?;
        port.tx_slot().get_mut(..self.bytes.len())?.copy_from_slice(&self.bytes);
        Some(flow)
    }
}

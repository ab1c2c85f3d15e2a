//! The receiving half of an unreliable connection: it sends nothing, and drops a damaged message as a whole
//! (IBA 9.8.2).

use wire::{DropReason, Packet};

use super::{Message, Responder};
use crate::emit::psn_of;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::memory::Memory;
use crate::recv_queue::SrqTable;

impl Responder {
    /// Handles a packet on an unreliable connection. The next message reuses the receive work request of an
    /// abandoned SEND from its start; an abandoned WRITE leaves the bytes that it placed. The outer error is
    /// a fault of the receive work request, which every later message would meet too.
    pub(crate) fn handle_unreliable(
        &mut self,
        packet: &Packet<'_>,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        ep: &mut Endpoint,
    ) -> Result<Result<(), DropReason>, Fault> {
        let starts = packet.row().position.starts();
        let distance = packet.bth.psn.distance_from(psn_of(self.expected));
        if starts {
            if self.message.kind != Message::None {
                self.abandon(ep);
            }
            self.message.is_skipped = false;
        } else if self.message.is_skipped || distance != 0 || self.message.kind == Message::None {
            if self.message.kind != Message::None {
                self.abandon(ep);
            }
            self.message.is_skipped = true;
            return Ok(Err(DropReason::UcIncomplete));
        }
        self.expected = u64::from(packet.bth.psn.value());
        let position = self.expected;
        match self.execute(packet, mem, srqs, ep) {
            Ok(()) => Ok(Ok(())),
            Err(fault) if fault.is_of_receive_memory() => Err(fault),
            Err(fault) => {
                self.expected = position.wrapping_add(1);
                self.abandon(ep);
                self.message.is_skipped = !packet.row().position.ends();
                Ok(Err(fault.row().reason))
            }
        }
    }

    fn abandon(&mut self, ep: &mut Endpoint) {
        self.message.kind = Message::None;
        ep.counters.uc_dropped_messages += 1;
    }
}

//! The receiving half of an unreliable connection: nothing is answered, a damaged message is dropped whole (IBA 9.8.2).

use wire::{DropReason, Packet};

use crate::emit::psn_of;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::memory::Memory;
use crate::recv_queue::SrqTable;
use crate::responder::{Message, Responder};

impl Responder {
    /// A packet on an unreliable connection. The receive work request of an abandoned SEND is used again from its start
    /// by the next message; an abandoned WRITE leaves what it placed. Only a fault of the receive itself is returned: every
    /// message would meet it.
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
            if self.message != Message::None {
                self.abandon(ep);
            }
            self.dropping = false;
        } else if self.dropping || distance != 0 || self.message == Message::None {
            if self.message != Message::None {
                self.abandon(ep);
            }
            self.dropping = true;
            return Ok(Err(DropReason::UcIncomplete));
        }
        self.expected = u64::from(packet.bth.psn.value());
        let position = self.expected;
        match self.execute(packet, mem, srqs, ep) {
            Ok(()) => Ok(Ok(())),
            Err(Fault::RecvWqeProtection) => Err(Fault::RecvWqeProtection),
            Err(fault) => {
                self.expected = position.wrapping_add(1);
                self.abandon(ep);
                self.dropping = !packet.row().position.ends();
                Ok(Err(fault.row().reason))
            }
        }
    }

    fn abandon(&mut self, ep: &mut Endpoint) {
        self.message = Message::None;
        ep.counters.uc_dropped_messages += 1;
    }
}

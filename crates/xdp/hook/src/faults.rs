//! The network: packets are lost, overtaken and duplicated. A stage of the egress hook.
//!
//! A packet is lost only if the packets before it arrived, so a retransmission is not lost, and a peer with
//! `retry_cnt` 1 does not fail. An ACK or NAK is never lost: an application that has all its completions may
//! destroy the queue pair that sent it, and then nothing answers the retransmission. Management datagrams are
//! left alone: their timers are seconds long.

use std::sync::Arc;

use transport::chaos::{Chaos, Fault};
use wire::{Bth, Operation, Qpn, Service};

use crate::{Hook, HookPacket, Stage, Verdict};

/// Packets after a lost one that are not lost.
const SAFE_PKTS: u64 = 8;
/// Longest delay of a packet that others overtake, in nanoseconds.
const LATE_NS: u64 = 200_000;
/// A lost connection loses everything from one of the first so many packets on.
const CUT_MAX: u64 = 64;

/// The hook that loses, delays and duplicates packets.
pub(super) fn hook(chaos: &Arc<Chaos>) -> Hook {
    let stage = ChaosStage { chaos: Arc::clone(chaos), flows: Vec::new() };
    Hook::new("chaos", vec![Box::new(stage)])
}

#[derive(Debug)]
struct ChaosStage {
    chaos: Arc<Chaos>,
    /// By destination, in the order of first use.
    flows: Vec<Flow>,
}

#[derive(Debug)]
struct Flow {
    to: Qpn,
    packets: u64,
    safe_until: u64,
    /// All packets from this one on are lost.
    cut: Option<u64>,
}

impl ChaosStage {
    fn flow(&mut self, to: Qpn) -> usize {
        self.flows.iter().position(|flow| flow.to == to).unwrap_or_else(|| {
            let number = self.flows.len() as u64;
            let cut = if self.chaos.has(Fault::ConnectionLoss) && number == 0 {
                let draw = self.chaos.strikes(Fault::ConnectionLoss, number, 0);
                draw.map(|mut draw| 1 + draw.below(CUT_MAX))
            } else {
                None
            };
            self.flows.push(Flow { to, packets: 0, safe_until: 0, cut });
            self.flows.len() - 1
        })
    }
}

impl Stage for ChaosStage {
    fn run(&mut self, packet: &mut HookPacket<'_>) -> Verdict {
        let Some(bth) = packet.bytes().first_chunk().map(Bth::parse) else { return Verdict::Pass };
        let Some(row) = bth.opcode.row().filter(|_| bth.dest_qp != Qpn::GSI) else { return Verdict::Pass };
        if row.operation == Operation::Cnp {
            return Verdict::Pass;
        }
        let at = self.flow(bth.dest_qp);
        let (flow, number) = (&mut self.flows[at], at as u64);
        flow.packets += 1;
        let nth = flow.packets;
        if flow.cut.is_some_and(|cut| nth >= cut) {
            return Verdict::Drop;
        }
        let strikes = |fault| self.chaos.strikes(fault, number, nth);
        let may_lose = nth > flow.safe_until && row.operation != Operation::Ack;
        if !matches!(row.service, Service::Rc | Service::Xrc) {
            return match strikes(Fault::Datagrams).map(|mut draw| (draw.below(3), draw.below(LATE_NS))) {
                Some((0, _)) => Verdict::Drop,
                Some((1, _)) => {
                    packet.double();
                    Verdict::Pass
                }
                Some((_, late_ns)) => {
                    packet.hold_ns(late_ns);
                    Verdict::Pass
                }
                None => Verdict::Pass,
            };
        }
        if may_lose && strikes(Fault::Loss).is_some() {
            flow.safe_until = nth + SAFE_PKTS;
            return Verdict::Drop;
        }
        if strikes(Fault::Duplicates).is_some() {
            packet.double();
        }
        if let Some(mut draw) = strikes(Fault::Order) {
            packet.hold_ns(1 + draw.below(LATE_NS));
        }
        Verdict::Pass
    }

    fn rows(&self) -> Vec<(String, u64)> {
        self.chaos.counts().into_iter().map(|(fault, count)| (fault.name().to_owned(), count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use wire::Opcode;

    use super::*;
    use crate::packet::Scratch;
    use roxie::runtime::Runtime;

    #[test]
    fn packets_of_requests_are_lost_and_acks_are_not() {
        let bth = |opcode: Opcode| {
            let mut bytes = [0; Bth::LEN];
            Bth { opcode, dest_qp: Qpn::new(17), ..Bth::parse(&bytes) }.emit(&mut bytes);
            bytes
        };
        let lost = |seed: u64, opcode| {
            let plan = format!("seed={seed},faults=loss").parse().unwrap();
            let mut stage = ChaosStage { chaos: Arc::new(Chaos::new(plan)), flows: Vec::new() };
            let (mut scratch, bytes) = (Scratch::new(1), bth(opcode));
            let mut run =
                || stage.run(&mut HookPacket::new(&mut scratch, &Runtime::Kernel, &bytes)) == Verdict::Drop;
            (0..200).filter(|_| run()).count()
        };
        let of_20_seeds = |opcode| (0..20).map(|seed| lost(seed, opcode)).sum::<usize>();
        assert_ne!(of_20_seeds(Opcode::RC_SEND_ONLY), 0);
        assert_eq!([Opcode::RC_ACKNOWLEDGE, Opcode::XRC_ACKNOWLEDGE].map(of_20_seeds), [0, 0]);
    }
}

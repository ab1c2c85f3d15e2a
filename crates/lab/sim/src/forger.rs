//! A forger off the path: it knows the addresses of all nodes, sends frames with the address of a peer as
//! their source, and sees no traffic. It forges requests, ACKs, NAKs, READ responses, CNPs and CM messages.
//!
//! What it cannot know it draws: the PSN, the UDP source port, and unless it was told, the QPN. A forged
//! frame that is right by chance does what a genuine one does; SECURITY.md says how many frames that takes.
//! The network loses such a frame ([`Cause::Lucky`](crate::Cause::Lucky)), because a run has many forged
//! frames that are near the right PSN.

use transport::{PsnWindow, Qp, QpType};
use wire::mad::{MAD_LEN, MadHeader};
use wire::{
    Aeth, Bth, Deth, ExtHeader, Msn, NakCode, Opcode, Operation, PKey, Packet, Position, Psn, QKey, Qpn,
    Reth, Syndrome,
};

use crate::memory::{REMOTE_BASE, REMOTE_KEY};
use crate::queue_pair::SRQNS;
use crate::rng::Rng;

/// What the forger knows besides addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Knowledge {
    Nothing,
    /// The QPNs of both ends. It sends PSNs at a distance of 768, so that every window has one.
    Qpns,
    /// Also about where the connection is: it sends PSNs up to 768 away.
    Window,
}

/// The forger of a run.
pub(crate) struct Forger {
    rng: Rng,
    knowledge: Knowledge,
    next_ns: u64,
    pause_ns: u64,
    sweep: u32,
}

/// A forged packet from BTH to pad, and the UDP source port that it is sent from.
pub(crate) struct Forgery {
    pub(crate) packet: Vec<u8>,
    pub(crate) port: u16,
}

/// Packets that a responder keeps, and a requester may have in flight.
const WINDOW: u32 = 768;
/// Forged frames per run, on average.
const FRAMES: u64 = 300;
/// UDP source ports of the forger: those of RoCEv2 that no queue pair of a simulation has. A forger has the
/// right one in one of 16384 frames.
const PORTS: (u64, u64) = (0xe000, 0xffff);
/// Low bits of the opcodes that it sends, common to RC and XRC.
const OPCODES: [Opcode; 10] = [
    Opcode::RC_SEND_ONLY,
    Opcode::RC_SEND_LAST,
    Opcode::RC_SEND_ONLY_IMM,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_WRITE_MIDDLE,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_ACKNOWLEDGE,
    Opcode::RC_READ_RESPONSE_ONLY,
    Opcode::RC_ATOMIC_ACKNOWLEDGE,
];
const XRC: u8 = 0xa0;
/// Kinds of CM messages: the first, REQ, and how many there are.
const CM_ATTRIBUTES: (u16, u16) = (0x10, 9);

impl Forger {
    /// A forger that works until the network is healed.
    pub(crate) fn new(mut rng: Rng, heal_ns: u64) -> Self {
        let knowledge = rng.pick(&[Knowledge::Nothing, Knowledge::Qpns, Knowledge::Window]);
        // Most runs end long before the network is healed.
        let pause_ns = (heal_ns.min(20_000_000) / FRAMES).max(1);
        let sweep = rng.next() as u32;
        Self { next_ns: rng.between(0, pause_ns), pause_ns, knowledge, sweep, rng }
    }

    /// When it sends the next frame.
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Chooses a queue pair out of `count`, and waits for the next frame.
    pub(crate) fn choose(&mut self, count: usize) -> usize {
        self.next_ns += 1 + self.rng.next() % (2 * self.pause_ns);
        (self.rng.next() % count as u64) as usize
    }

    /// Forges a packet for a queue pair. `None` for types that the forger leaves out: a UC queue pair accepts
    /// any PSN, and a UD queue pair any sender with the Q_Key.
    pub(crate) fn forge(&mut self, victim: &Qp) -> Option<Forgery> {
        let rng = &mut self.rng;
        let port = if rng.chance(50) { 0 } else { rng.between(PORTS.0, PORTS.1) as u16 };
        let qpn = match self.knowledge {
            Knowledge::Nothing => Qpn::new(rng.next() as u32),
            Knowledge::Qpns | Knowledge::Window => victim.qpn(),
        };
        if rng.chance(100) {
            return Some(Forgery { packet: cnp(qpn), port });
        }
        if rng.chance(50) {
            return Some(Forgery { packet: cm_message(rng), port });
        }
        let base = match victim.ty() {
            QpType::Rc => 0,
            QpType::XrcIni | QpType::XrcTgt => XRC,
            QpType::Uc | QpType::Ud | QpType::Gsi => return None,
        };
        let opcode = Opcode(base | rng.pick(&OPCODES).0);
        let row = opcode.row()?;
        let psn = match self.knowledge {
            Knowledge::Nothing => Psn::new(rng.next() as u32),
            Knowledge::Qpns => {
                self.sweep = self.sweep.wrapping_add(WINDOW);
                Psn::new(self.sweep)
            }
            Knowledge::Window => {
                let PsnWindow { expected, next, .. } = victim.psn_window();
                let near = if row.is_response() { next } else { expected };
                near.advance(rng.between(0, 2 * u64::from(WINDOW)) as u32).advance(0u32.wrapping_sub(WINDOW))
            }
        };
        let has_payload = matches!(
            row.operation,
            Operation::Send | Operation::SendImm | Operation::Write | Operation::ReadResponse
        );
        let payload = match row.position {
            _ if !has_payload => 0,
            Position::First | Position::Middle => victim.attr().path_mtu.bytes(),
            Position::Last | Position::Only => 4 * rng.between(1, 16) as usize,
        };
        let mut packet = vec![0; row.header_len() + payload];
        rng.fill(&mut packet);
        let bth = Bth { opcode, dest_qp: qpn, psn, p_key: PKey::DEFAULT, ack_req: true, ..Bth::default() };
        bth.emit(packet.first_chunk_mut()?);
        let dma_len = if payload > 0 { payload as u32 } else { rng.between(1, 2000) as u32 };
        let reth = Reth { va: REMOTE_BASE + rng.between(0, 4096), r_key: REMOTE_KEY, dma_len };
        if let Some(at) = row.offset(ExtHeader::Reth) {
            reth.emit(packet[at..].first_chunk_mut()?);
        }
        if let Some(at) = row.offset(ExtHeader::Aeth) {
            let nak = rng.pick(&[NakCode::PsnSequenceError, NakCode::RemoteAccessError]);
            let syndrome = if row.operation == Operation::Ack {
                rng.pick(&[Syndrome::Ack(31), Syndrome::Nak(nak), Syndrome::RnrNak(20)])
            } else {
                Syndrome::Ack(31)
            };
            Aeth { syndrome, msn: Msn::new(0) }.emit(packet[at..].first_chunk_mut()?);
        }
        if let Some(at) = row.offset(ExtHeader::Xrceth) {
            packet[at..at + 4].copy_from_slice(&rng.pick(&SRQNS).to_be_bytes());
        }
        Some(Forgery { packet, port })
    }
}

/// Whether a forged packet has a PSN with which the queue pair believes it from any port: the expected one of
/// a request, one in flight of a response.
pub(crate) fn is_lucky(victim: &Qp, packet: &Packet<'_>) -> bool {
    let PsnWindow { expected, oldest, next } = victim.psn_window();
    let psn = packet.bth.psn;
    if packet.row().is_response() {
        psn.distance_from(oldest) >= 0 && psn.distance_from(next) < 0
    } else {
        packet.row().operation != Operation::Cnp && psn == expected
    }
}

fn cnp(qpn: Qpn) -> Vec<u8> {
    let mut packet = vec![0; Opcode::CNP.row().map_or(Bth::LEN, |row| row.header_len())];
    let bth = Bth { opcode: Opcode::CNP, dest_qp: qpn, p_key: PKey::DEFAULT, becn: true, ..Bth::default() };
    bth.emit(packet.first_chunk_mut().expect("a packet has a BTH"));
    packet
}

/// A CM message with a drawn body.
pub(crate) fn cm_message(rng: &mut Rng) -> Vec<u8> {
    let at = Bth::LEN + Deth::LEN;
    let mut packet = vec![0; at + MAD_LEN];
    rng.fill(&mut packet[at..]);
    let kind = CM_ATTRIBUTES.0 + rng.next() as u16 % CM_ATTRIBUTES.1;
    let header = MadHeader::cm(kind, rng.next(), 0);
    header.emit(packet[at..].first_chunk_mut().expect("a MAD has its header"));
    let deth = Deth { q_key: QKey::GSI, src_qp: Qpn::GSI };
    deth.emit(packet[Bth::LEN..].first_chunk_mut().expect("a datagram has a DETH"));
    let bth = Bth {
        opcode: Opcode::UD_SEND_ONLY,
        dest_qp: Qpn::GSI,
        psn: Psn::new(rng.next() as u32),
        p_key: PKey::DEFAULT,
        ..Bth::default()
    };
    bth.emit(packet.first_chunk_mut().expect("a packet has a BTH"));
    packet
}

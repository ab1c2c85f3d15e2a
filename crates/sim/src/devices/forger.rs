//! A forger off the path of whole devices: it knows their addresses and QPNs, and sends requests, responses
//! and CM messages in the name of another device. It draws PSNs, communication IDs and UDP source ports.

use std::net::IpAddr;

use wire::{Aeth, Bth, ExtHeader, Msn, Opcode, Operation, PKey, Psn, Qpn, Reth, Rkey, Syndrome};

use super::network::Frame;
use super::port::icrc_header;
use crate::Rng;
use crate::forger::cm_message;

/// Forged frames for 1000 frames of the devices.
const SHARE: u64 = 60;
/// UDP source ports of the forger; a device has one for each of 256 slots.
const PORTS: (u64, u64) = (0xe000, 0xffff);
/// PSNs of the forger. A connection is believed to be elsewhere; SECURITY.md says how many tries hit one.
const PSNS: (u64, u64) = (0x40_0000, 0xc0_0000);
/// QPNs of a process that the forger tries: simulated devices number them from 0.
const QPS: u64 = 8;
const OPCODES: [Opcode; 6] = [
    Opcode::RC_SEND_ONLY,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_ACKNOWLEDGE,
    Opcode::RC_READ_RESPONSE_ONLY,
];

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Forger(Rng);

impl Forger {
    /// A forger, or none: in two of three runs.
    pub(super) fn draw(mut rng: Rng) -> Option<Self> {
        rng.chance(333).then_some(Self(rng))
    }

    /// A frame to one of the processes with these addresses, in the name of another; mostly none.
    pub(super) fn forge(&mut self, addresses: &[IpAddr]) -> Option<Frame> {
        let rng = &mut self.0;
        if !rng.chance(SHARE) {
            return None;
        }
        let to = rng.next() as usize % addresses.len();
        let dst = addresses[to];
        let others: Vec<IpAddr> = addresses.iter().copied().filter(|address| *address != dst).collect();
        let src = if others.is_empty() { dst } else { rng.pick(&others) };
        let qpn = Qpn::new((to as u32 + 1) << 16 | rng.between(0, QPS) as u32);
        let mut bytes = if rng.chance(200) { cm_message(rng) } else { packet(rng, qpn)? };
        let src_port = rng.between(PORTS.0, PORTS.1) as u16;
        let icrc = icrc_header(src, dst, src_port).icrc(0, &bytes);
        bytes.extend(icrc.to_le_bytes());
        Some(Frame { src, dst, src_port, tos: 0, ttl: 64, bytes })
    }
}

fn packet(rng: &mut Rng, dest_qp: Qpn) -> Option<Vec<u8>> {
    let opcode = rng.pick(&OPCODES);
    let row = opcode.row()?;
    let has_payload = matches!(row.operation, Operation::Send | Operation::Write | Operation::ReadResponse);
    let payload = if has_payload { 4 * rng.between(1, 64) as usize } else { 0 };
    let mut packet = vec![0; row.header_len() + payload];
    rng.fill(&mut packet);
    let psn = Psn::new(rng.between(PSNS.0, PSNS.1) as u32);
    Bth { opcode, dest_qp, psn, p_key: PKey::DEFAULT, ack_req: true, ..Bth::default() }
        .emit(packet.first_chunk_mut()?);
    if let Some(at) = row.offset(ExtHeader::Reth) {
        let reth = Reth { va: rng.next(), r_key: Rkey(rng.next() as u32), dma_len: payload.max(8) as u32 };
        reth.emit(packet[at..].first_chunk_mut()?);
    }
    if let Some(at) = row.offset(ExtHeader::Aeth) {
        Aeth { syndrome: Syndrome::Ack(31), msn: Msn::new(0) }.emit(packet[at..].first_chunk_mut()?);
    }
    Some(packet)
}

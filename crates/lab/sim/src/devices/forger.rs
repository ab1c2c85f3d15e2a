//! A forger off the path of whole devices: it knows their addresses, node GUIDs and QPNs, and sends requests,
//! responses and CM messages in the name of another device. It draws PSNs, communication IDs and UDP source
//! ports. Its connection requests to a listener name a queue pair of the other device.

use std::net::IpAddr;

use transport::numbering::{ID_SHIFT, qpn_at};
use wire::cm::{IpCmHeader, Path, Req, ServiceId};
use wire::mad::MAD_LEN;
use wire::{Aeth, Bth, Deth, ExtHeader, Gid, Msn, Opcode, Operation, PKey, Psn, Qpn, Reth, Rkey, Syndrome};

use super::frame::{Frame, PORT, icrc_header};
use crate::Rng;
use crate::forger::cm_message;

/// Forged frames for 1000 frames of the devices.
const SHARE: u64 = 60;
/// UDP source ports of the forger; a device has one for each slot.
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
        let others: Vec<usize> = (0..addresses.len()).filter(|from| addresses[*from] != dst).collect();
        let from = if others.is_empty() { to } else { rng.pick(&others) };
        let src = addresses[from];
        let mut bytes = match rng.between(0, 9) {
            0 => cm_message(rng),
            1 => connection_request(rng, (from, src), (to, dst))?,
            _ => {
                let dest_qp = qpn(rng, to);
                packet(rng, dest_qp)?
            }
        };
        let src_port = rng.between(PORTS.0, PORTS.1) as u16;
        let icrc = icrc_header(src, dst, src_port).icrc(0, &bytes);
        bytes.extend(icrc.to_le_bytes());
        Some(Frame { sender: None, src, dst, src_port, tos: 0, ttl: 64, bytes })
    }
}

/// A QPN of a process: the right one of a connection in one of some tries.
fn qpn(rng: &mut Rng, process: usize) -> Qpn {
    qpn_at(process as u16 + 1, rng.between(0, QPS) as u32)
}

/// A request to the listener of process `to`, with address, node GUID and a QPN of process `from`.
fn connection_request(
    rng: &mut Rng,
    (from, src): (usize, IpAddr),
    (to, dst): (usize, IpAddr),
) -> Option<Vec<u8>> {
    let mut request = Req {
        tid: rng.next(),
        local_comm_id: (from as u32 + 1) << ID_SHIFT | rng.between(1, 0xf_ffff) as u32,
        service_id: ServiceId::from_port(ServiceId::TCP, PORT + to as u16),
        local_ca_guid: node_guid(from),
        local_qpn: qpn(rng, from),
        starting_psn: Psn::new(rng.next() as u32),
        p_key: PKey::DEFAULT,
        path_mtu: 3,
        max_cm_retries: 15,
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        primary: Path {
            local_lid: Path::PERMISSIVE_LID,
            remote_lid: Path::PERMISSIVE_LID,
            local_gid: Gid::from(src),
            remote_gid: Gid::from(dst),
            hop_limit: 64,
            ack_timeout: 14,
            ..Path::default()
        },
        ..Req::default()
    };
    rng.fill(&mut request.private_data);
    let header = IpCmHeader { src_port: rng.next() as u16, src, dst };
    header.emit(request.private_data.first_chunk_mut()?);
    let mut packet = cm_message(rng);
    request.emit(packet[Bth::LEN + Deth::LEN..].first_chunk_mut::<MAD_LEN>()?);
    Some(packet)
}

/// The node GUID of a simulated device, which follows from its slot.
fn node_guid(process: usize) -> u64 {
    0x0200_00ff_fe00_0000 | (process as u64 + 1)
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

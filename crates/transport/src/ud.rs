//! Receiving datagrams: key checks, the 40-byte GRH area, one receive work request each (IBA 9.8.3, Annex A17.4.5).

use core::net::{IpAddr, Ipv4Addr};

use wire::{DropReason, Gid, Packet};

use crate::endpoint::Endpoint;
use crate::event::AsyncEventKind;
use crate::memory::Memory;
use crate::recv_queue::{RecvQueue, RecvWqe};
use crate::wc::{Wc, WcOpcode, WcStatus};

/// Bytes in front of the payload of every datagram received.
pub const GRH_LEN: usize = 40;

/// UDP and ICRC around a packet, for the length fields of the IP header.
const UDP_AND_ICRC: usize = 8 + 4;
const PROTOCOL_UDP: u8 = 17;

/// Where a packet came from: what the outer headers said.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PacketSource {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Received {
    Delivered,
    /// The receive work request's memory could not be written: its completion was in error and the queue pair is.
    Fatal,
}

/// Delivers a datagram or drops it; a drop takes no receive work request.
pub(crate) fn receive(
    packet: &Packet<'_>,
    from: &PacketSource,
    mem: &impl Memory,
    rq: &mut RecvQueue,
    ep: &mut Endpoint,
) -> Result<Received, DropReason> {
    let deth = packet.deth().ok_or(DropReason::WrongService)?;
    if deth.q_key != ep.attr.q_key {
        return Err(DropReason::BadQKey);
    }
    let payload = packet.payload();
    if payload.len() > ep.mtu {
        return Err(DropReason::BadLength);
    }
    let room = rq.next_room().filter(|_| ep.events.has_recv_room());
    let Some(room) = room else {
        ep.counters.rcvd_no_wqe += 1;
        return Err(DropReason::NoReceive);
    };
    if room < (GRH_LEN + payload.len()) as u64 {
        ep.counters.rcvd_no_wqe += 1;
        return Err(DropReason::ReceiveTooSmall);
    }
    let mut wqe = RecvWqe::new();
    let taken = rq.take(&mut wqe).ok_or(DropReason::NoReceive)?;
    if taken.limit_reached && ep.srq {
        ep.events.push_async(AsyncEventKind::SrqLimitReached);
    }
    let l4_len = packet.row().header_len() + payload.len() + usize::from(packet.bth.pad_cnt) + UDP_AND_ICRC;
    let placed = wqe
        .write(mem, ep.pd, 0, &grh(from, l4_len))
        .and_then(|()| wqe.write(mem, ep.pd, GRH_LEN as u64, payload));
    if placed.is_err() {
        ep.fail_recv(wqe.wr_id, WcStatus::LocProtErr);
        return Ok(Received::Fatal);
    }
    let imm = packet.imm();
    let wc = Wc {
        wr_id: wqe.wr_id,
        opcode: WcOpcode::Recv,
        byte_len: (GRH_LEN + payload.len()) as u32,
        imm_data: imm.unwrap_or_default(),
        wc_flags: Wc::GRH | if imm.is_some() { Wc::WITH_IMM } else { 0 },
        qp_num: ep.qpn.value(),
        src_qp: deth.src_qp.value(),
        ..Wc::default()
    };
    ep.counters.rdma_recvs += 1;
    ep.counters.rcvd_bytes += payload.len() as u64;
    ep.events.push_recv(wc, packet.bth.solicited);
    Ok(Received::Delivered)
}

/// The GRH area: the IP header as received, an IPv4 one in the last 20 bytes. `l4_len` counts from the UDP header to the
/// ICRC. Programs tell the two apart by version, IHL and a correct IPv4 checksum (`ibv_init_ah_from_wc`).
pub(crate) fn grh(from: &PacketSource, l4_len: usize) -> [u8; GRH_LEN] {
    let mut area = [0; GRH_LEN];
    match (from.src.ip(), from.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            area[20..].copy_from_slice(&ipv4_header(src, dst, from.tos, from.ttl, l4_len));
        }
        _ => {
            area[0] = 0x60 | from.tos >> 4;
            area[1] = from.tos << 4;
            area[4..6].copy_from_slice(&(l4_len as u16).to_be_bytes());
            area[6] = PROTOCOL_UDP;
            area[7] = from.ttl;
            area[8..24].copy_from_slice(&from.src.0);
            area[24..].copy_from_slice(&from.dst.0);
        }
    }
    area
}

fn ipv4_header(src: Ipv4Addr, dst: Ipv4Addr, tos: u8, ttl: u8, l4_len: usize) -> [u8; 20] {
    let mut header = [0; 20];
    header[0] = 0x45;
    header[1] = tos;
    header[2..4].copy_from_slice(&((20 + l4_len) as u16).to_be_bytes());
    header[6] = 0x40; // do not fragment
    header[8] = ttl;
    header[9] = PROTOCOL_UDP;
    header[12..16].copy_from_slice(&src.octets());
    header[16..].copy_from_slice(&dst.octets());
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IPv4 header of test vector V3 with its checksum, but for the identification, which is 0 there too.
    #[test]
    fn the_ipv4_header_stands_in_the_second_half_with_its_checksum() {
        let from = PacketSource {
            src: Ipv4Addr::new(192, 0, 2, 2).into(),
            dst: Ipv4Addr::new(192, 0, 2, 1).into(),
            tos: 2,
            ttl: 64,
        };
        let area = grh(&from, 28);
        assert_eq!(area[..20], [0; 20]);
        let expected =
            [0x45, 0x02, 0x00, 0x30, 0, 0, 0x40, 0, 0x40, 0x11, 0xb6, 0xb7, 192, 0, 2, 2, 192, 0, 2, 1];
        assert_eq!(area[20..], expected);
    }

    #[test]
    fn the_ipv6_header_fills_the_area() {
        let (src, dst) = (Gid([0xfe; 16]), Gid([0x20; 16]));
        let area = grh(&PacketSource { src, dst, tos: 0x6a, ttl: 9 }, 0x30);
        assert_eq!(area[..8], [0x66, 0xa0, 0, 0, 0, 0x30, 17, 9]);
        assert_eq!(area[8..24], src.0);
        assert_eq!(area[24..], dst.0);
    }
}

//! Receives datagrams: checks keys, fills the 40-byte GRH area, takes one receive work request each (IBA
//! 9.8.3, Annex A17.4.5).

use core::net::{IpAddr, Ipv6Addr};

use wire::icrc::ICRC_LEN;
use wire::{DropReason, Gid, Ipv4, Ipv6, Packet, Udp};

use crate::cause::Cause;
use crate::endpoint::{Endpoint, Refused};
use crate::memory::Memory;
use crate::recv_queue::{RecvQueue, RecvWqe};
use crate::wc::{Wc, WcOpcode};

/// Bytes of the GRH area in front of the payload of every datagram received.
pub const GRH_LEN: usize = Ipv6::LEN;

/// Bytes of UDP header and ICRC around a packet, for the length fields of the IP header.
const UDP_AND_ICRC: usize = Udp::LEN + ICRC_LEN;

/// Where a packet came from, by its outer headers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PacketSource {
    /// Source address.
    pub src: Gid,
    /// UDP source port.
    pub src_port: u16,
    /// Destination address.
    pub dst: Gid,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
}

/// Result of a datagram that was received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Received {
    Delivered,
    /// The memory of the receive work request could not be written: it completed in error, and the queue pair
    /// enters ERR.
    Fatal,
}

/// Delivers a datagram, or drops it without taking a receive work request.
pub(crate) fn receive(
    packet: &Packet<'_>,
    from: &PacketSource,
    mem: &impl Memory,
    rq: &mut RecvQueue,
    ep: &mut Endpoint,
) -> Result<Received, DropReason> {
    let deth = packet.deth().ok_or(DropReason::WrongService)?;
    if deth.q_key != ep.attr.q_key {
        ep.refused = Some(Refused::QKey(deth.q_key, deth.src_qp));
        return Err(DropReason::BadQKey);
    }
    let payload = packet.payload();
    if payload.len() > ep.mtu {
        return Err(DropReason::BadLength);
    }
    let room = rq.next_room().filter(|_| ep.events.has_recv_room());
    let Some(room) = room else {
        ep.counters.rcvd_no_wqe += 1;
        ep.refused.get_or_insert(Refused::NoReceive(deth.src_qp));
        return Err(DropReason::NoReceive);
    };
    if room < (GRH_LEN + payload.len()) as u64 {
        ep.counters.rcvd_no_wqe += 1;
        ep.refused = Some(Refused::TooLong { needs: GRH_LEN + payload.len(), room, sender: deth.src_qp });
        return Err(DropReason::ReceiveTooSmall);
    }
    let mut wqe = RecvWqe::default();
    let taken = rq.take(&mut wqe).ok_or(DropReason::NoReceive)?;
    if taken.limit_reached && ep.srq {
        ep.events.push_limit(None);
    }
    let l4_len = packet.row().header_len() + payload.len() + usize::from(packet.bth.pad_cnt) + UDP_AND_ICRC;
    let placed = wqe.write(mem, 0, &grh(from, l4_len)).and_then(|()| wqe.write(mem, GRH_LEN as u64, payload));
    if let Err(fault) = placed {
        ep.fail_recv(None, wqe.wr_id, Cause::of_recv(fault));
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
        sl: if from.dst.ip().is_ipv4() { Wc::SL_IPV4 } else { Wc::SL_IPV6 },
        ..Wc::default()
    };
    ep.counters.rdma_recvs += 1;
    ep.counters.rcvd_bytes += payload.len() as u64;
    ep.complete_recv(None, wc, packet.bth.solicited);
    Ok(Received::Delivered)
}

/// The GRH area: the IP header as received, an IPv4 header in the last 20 bytes. `l4_len` counts from the UDP
/// header to the ICRC. Applications distinguish the two by version, IHL and a correct IPv4 checksum
/// (`ibv_init_ah_from_wc`).
pub(crate) fn grh(from: &PacketSource, l4_len: usize) -> [u8; GRH_LEN] {
    let mut area = [0; GRH_LEN];
    // The packet was received whole, so its length is below 64 KiB.
    let l4_len = l4_len as u16;
    match (from.src.ip(), from.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = Ipv4 { tos: from.tos, ..Ipv4::udp(src, dst, from.ttl, l4_len) }.with_checksum();
            if let Some(second_half) = area.last_chunk_mut() {
                header.emit(second_half);
            }
        }
        _ => {
            let (src, dst) = (Ipv6Addr::from(from.src.0), Ipv6Addr::from(from.dst.0));
            Ipv6 { traffic_class: from.tos, ..Ipv6::udp(src, dst, from.ttl, l4_len) }.emit(&mut area);
        }
    }
    area
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    /// The IPv4 header of test vector V3 with its checksum, but for the identification, which is 0 there too.
    #[test]
    fn the_ipv4_header_stands_in_the_second_half_with_its_checksum() {
        let from = PacketSource {
            src: Ipv4Addr::new(192, 0, 2, 2).into(),
            dst: Ipv4Addr::new(192, 0, 2, 1).into(),
            tos: 2,
            ttl: 64,
            ..PacketSource::default()
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
        let area = grh(&PacketSource { src, dst, tos: 0x6a, ttl: 9, ..PacketSource::default() }, 0x30);
        assert_eq!(area[..8], [0x66, 0xa0, 0, 0, 0, 0x30, 17, 9]);
        assert_eq!(area[8..24], src.0);
        assert_eq!(area[24..], dst.0);
    }
}

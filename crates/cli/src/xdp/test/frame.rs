//! Test packets: UDP to the discard port, as long as RoCE packets, so that the programs select them and
//! pass all other packets.

use std::net::Ipv4Addr;

use wire::{EtherType, Ethernet, Ipv4, Mac, Udp};

/// Discard (RFC 863): harmless where another host receives it.
pub(super) const PORT: u16 = 9;
/// The shortest Ethernet frame, without its checksum.
pub(super) const SHORT: usize = 60;
/// Longer than a page: several buffers when received.
pub(super) const LONG: usize = 8000;

const HEADERS_LEN: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN;

/// Addresses, from and to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) macs: [[u8; 6]; 2],
    pub(super) ips: [Ipv4Addr; 2],
}

/// A frame of `len` bytes, at least [`SHORT`].
pub(super) fn build(ends: &Ends, len: usize) -> Vec<u8> {
    let udp_len = (len - Ethernet::LEN - Ipv4::LEN) as u16;
    let mut headers = [0; HEADERS_LEN];
    let (ethernet, rest) = headers.split_at_mut(Ethernet::LEN);
    let (ip, udp) = rest.split_at_mut(Ipv4::LEN);
    let [src, dst] = ends.macs.map(Mac);
    if let (Some(ethernet), Some(ip), Some(udp)) =
        (ethernet.first_chunk_mut(), ip.first_chunk_mut(), udp.first_chunk_mut())
    {
        Ethernet { dst, src, ether_type: EtherType::IPV4 }.emit(ethernet);
        Ipv4::udp(ends.ips[0], ends.ips[1], 64, udp_len).with_checksum().emit(ip);
        // Without a UDP checksum.
        Udp { src_port: 49152, dst_port: PORT, length: udp_len, checksum: 0 }.emit(udp);
    }
    let mut frame = headers.to_vec();
    frame.extend((HEADERS_LEN..len).map(|at| at as u8));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_what_its_headers_say() {
        let ips = [Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1)];
        for len in [SHORT, LONG] {
            let frame = build(&Ends { macs: [[2; 6], [4; 6]], ips }, len);
            assert_eq!(frame.len(), len);
            let (_, _, ether_type, packet) = Ethernet::split(&frame).unwrap();
            let (ip, datagram) = wire::Ip::split(ether_type, packet).unwrap();
            assert_eq!((ip.src(), ip.dst()), (ips[0].into(), ips[1].into()));
            let udp = Udp::parse(datagram.first_chunk().unwrap());
            assert_eq!((udp.dst_port, usize::from(udp.length)), (PORT, datagram.len()));
        }
    }
}

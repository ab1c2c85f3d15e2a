//! Ethernet, IP and UDP headers: a template per flow, in which only lengths and the IPv4 checksum differ
//! from packet to packet; and parsing of a received frame.

use std::net::IpAddr;

use wire::{EtherType, Ethernet, Ip, Ipv4, Ipv6, Mac, Udp, ip::PROTOCOL_UDP};

use super::{FlowKey, Icrc, RxBatch, RxQueue};

/// The headers of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    key: FlowKey,
    src_port: u16,
    dst_port: u16,
    bytes: [u8; Headers::LEN_MAX],
    len: usize,
    /// Checksum of the IPv4 header with a total length of 0; `None` for IPv6, which has no header
    /// checksum.
    checksum: Option<u16>,
}

impl Headers {
    /// Bytes of the headers with IPv4.
    pub const LEN_V4: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN;
    /// Bytes of the longest headers, those of IPv6.
    pub const LEN_MAX: usize = Ethernet::LEN + Ipv6::LEN + Udp::LEN;

    /// Creates headers with zero Ethernet addresses, as on the loopback interface. `None` if the IP
    /// addresses are of different families.
    #[must_use]
    pub fn new(key: &FlowKey, src_port: u16, dst_port: u16) -> Option<Headers> {
        let ttl = if key.ttl == 0 { DEFAULT_TTL } else { key.ttl };
        let key = FlowKey { ttl, ..*key };
        let mut headers = Headers { key, src_port, dst_port, bytes: [0; _], len: 0, checksum: None };
        let ethernet = |ether_type| Ethernet { ether_type, ..Ethernet::default() };
        match (key.src, key.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                headers.put(|bytes| ethernet(EtherType::IPV4).emit(bytes));
                let ip = Ipv4 { tos: key.tos, total_len: 0, ..Ipv4::udp(src, dst, ttl, 0) }.with_checksum();
                headers.checksum = Some(ip.checksum);
                headers.put(|bytes| ip.emit(bytes));
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                headers.put(|bytes| ethernet(EtherType::IPV6).emit(bytes));
                let ip = Ipv6 { traffic_class: key.tos, ..Ipv6::udp(src, dst, ttl, 0) };
                headers.put(|bytes| ip.emit(bytes));
            }
            _ => return None,
        }
        // Checksum 0 means none: the ICRC protects more, and Annex A17.4.5.2 allows it with both versions
        // of IP.
        headers.put(|bytes| Udp { src_port, dst_port, length: 0, checksum: 0 }.emit(bytes));
        Some(headers)
    }

    fn put<const N: usize>(&mut self, emit: impl FnOnce(&mut [u8; N])) {
        if let Some(place) = self.bytes[self.len..].first_chunk_mut() {
            emit(place);
        }
        self.len += N;
    }

    /// Addresses, traffic class and hop limit.
    #[must_use]
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// UDP ports, source and destination.
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        (self.src_port, self.dst_port)
    }

    /// Sets the Ethernet addresses of sender and next hop.
    pub fn set_macs(&mut self, src: [u8; 6], dst: [u8; 6]) {
        let ether_type = if self.checksum.is_some() { EtherType::IPV4 } else { EtherType::IPV6 };
        let ethernet = Ethernet { src: Mac(src), dst: Mac(dst), ether_type };
        if let Some(place) = self.bytes.first_chunk_mut() {
            ethernet.emit(place);
        }
    }

    /// Bytes of the headers.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "headers are never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes the headers to the last [`len`](Headers::len) bytes of `room`, for a UDP payload of
    /// `payload_len` bytes.
    ///
    /// # Panics
    /// If `room` is shorter.
    #[inline]
    pub fn emit(&self, room: &mut [u8], payload_len: usize) {
        let start = room.len() - self.len;
        let out = &mut room[start..];
        out.copy_from_slice(&self.bytes[..self.len]);
        let udp_len = (Udp::LEN + payload_len) as u16;
        let udp = self.len - Udp::LEN;
        out[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        let ip = Ethernet::LEN;
        match self.checksum {
            Some(without_length) => {
                let total_len = udp_len + Ipv4::LEN as u16;
                out[ip + 2..ip + 4].copy_from_slice(&total_len.to_be_bytes());
                // Ones' complement: the sum grows by the length, its complement shrinks (RFC 1624).
                let sum = u32::from(!without_length) + u32::from(total_len);
                let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
                out[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            None => out[ip + 4..ip + 6].copy_from_slice(&udp_len.to_be_bytes()),
        }
    }

    /// As [`emit`](Headers::emit), with an IPv4 identification other than 0. IPv6 has none.
    ///
    /// # Panics
    /// If `room` is shorter than the headers.
    pub fn emit_with_id(&self, room: &mut [u8], payload_len: usize, id: u16) {
        self.emit(room, payload_len);
        let ip = room.len() - self.len + Ethernet::LEN;
        if id != 0
            && self.checksum.is_some()
            && let Some(bytes) = room[ip..].first_chunk_mut()
        {
            Ipv4 { id, ..Ipv4::parse(bytes) }.with_checksum().emit(bytes);
        }
    }
}

/// Returns the UDP payload of a frame to `udp_port`, as a batch of one packet; `None` if the frame is
/// another one, or truncated.
pub fn batch_of(frame: &[u8], udp_port: u16, queue: RxQueue) -> Option<RxBatch<'_>> {
    let (ethernet, _, ether_type, packet) = Ethernet::split(frame)?;
    let (ip, datagram) = Ip::split(ether_type, packet)?;
    if ip.protocol() != PROTOCOL_UDP {
        return None;
    }
    let (udp, payload) = datagram.split_first_chunk()?;
    let udp = Udp::parse(udp);
    let bytes = payload.get(..usize::from(udp.length).checked_sub(Udp::LEN)?).filter(|b| !b.is_empty())?;
    if udp.dst_port != udp_port {
        return None;
    }
    let (tos, ttl, ip_id) = match ip {
        Ip::V4(ip) => (ip.tos, ip.ttl, Some(ip.id)),
        Ip::V6(ip) => (ip.traffic_class, ip.hop_limit, None),
    };
    Some(RxBatch {
        src: ip.src(),
        src_port: udp.src_port,
        dst: ip.dst(),
        dst_port: udp_port,
        ifindex: 0,
        tos,
        ttl,
        segment: bytes.len(),
        macs: Some([ethernet.src, ethernet.dst]),
        ip_id,
        bytes,
        queue,
        icrc: Icrc::Present,
    })
}

/// The TTL of a [`FlowKey`] with TTL 0.
const DEFAULT_TTL: u8 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use wire::FlushIcrc;

    fn key(src: &str, dst: &str) -> FlowKey {
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        FlowKey { src, dst, dst_slot: 3, tos: 0xb8, ttl: 0, flush_icrc: FlushIcrc::Iba, above: 0 }
    }

    #[test]
    fn the_checksum_is_right_for_every_length() {
        let mut headers = Headers::new(&key("10.0.0.1", "10.255.3.2"), 0xc123, 4791).unwrap();
        headers.set_macs([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        for payload_len in [16, 20, 1040, 4156, 60_000] {
            let mut frame = vec![0xee; 5 + headers.len() + payload_len];
            headers.emit(&mut frame[..5 + headers.len()], payload_len);
            assert_eq!(frame[..5], [0xee; 5], "nothing is written in front");
            let (ethernet, tag, ether_type, packet) = Ethernet::split(&frame[5..]).unwrap();
            assert_eq!((ethernet.src.0[5], ethernet.dst.0[5], tag), (1, 2, None));
            let (ip, datagram) = Ip::split(ether_type, packet).unwrap();
            let Ip::V4(ip) = ip else { panic!("IPv4") };
            assert!(ip.checksum_ok(), "{payload_len}: {ip}");
            assert_eq!((ip.tos, ip.ttl, ip.id, ip.flags), (0xb8, 64, 0, Ipv4::DONT_FRAGMENT));
            let udp = Udp::parse(datagram.first_chunk().unwrap());
            assert_eq!((udp.src_port, udp.dst_port, udp.checksum), (0xc123, 4791, 0));
            assert_eq!(usize::from(udp.length), Udp::LEN + payload_len);
            let end = frame.len() - payload_len;
            headers.emit_with_id(&mut frame[..end], payload_len, 61);
            let ip = Ipv4::parse(frame[5 + Ethernet::LEN..].first_chunk().unwrap());
            assert!(ip.checksum_ok() && ip.id == 61, "{payload_len}: {ip}");
        }
    }

    #[test]
    fn an_ipv6_header_has_its_payload_length() {
        let headers = Headers::new(&key("fd00::1", "fd00::2"), 0xc123, 4791).unwrap();
        let mut frame = vec![0; headers.len() + 100];
        headers.emit(&mut frame[..headers.len()], 100);
        let (_, _, ether_type, packet) = Ethernet::split(&frame).unwrap();
        let (Ip::V6(ip), datagram) = Ip::split(ether_type, packet).unwrap() else { panic!("IPv6") };
        assert_eq!((ip.traffic_class, ip.hop_limit, datagram.len()), (0xb8, 64, 108));
        assert!(Headers::new(&key("10.0.0.1", "fd00::2"), 1, 2).is_none());
    }
    fn frame(src: &str, dst: &str, payload: &[u8]) -> Vec<u8> {
        let headers = Headers::new(&FlowKey { tos: 7, ttl: 9, ..key(src, dst) }, 0xc001, 4791).unwrap();
        let mut frame = vec![0; headers.len()];
        headers.emit(&mut frame, payload.len());
        frame.extend(payload);
        frame
    }

    #[test]
    fn addresses_and_payload_are_taken_from_the_frame() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let mut frame = frame(src, dst, &[0xab; 40]);
            // Short frames are padded on the wire.
            frame.extend([0; 6]);
            let batch = batch_of(&frame, 4791, RxQueue::Slot).unwrap();
            assert_eq!((batch.src.to_string(), batch.dst.to_string()), (src.to_owned(), dst.to_owned()));
            assert_eq!((batch.src_port, batch.dst_port, batch.tos, batch.ttl), (0xc001, 4791, 7, 9));
            assert_eq!((batch.bytes, batch.segment), (&[0xab; 40][..], 40));
            assert_eq!(batch.ip_id, dst.parse::<std::net::Ipv4Addr>().is_ok().then_some(0));
            assert!(batch_of(&frame, 4790, RxQueue::Slot).is_none());
        }
    }

    #[test]
    fn truncated_and_empty_frames_are_refused() {
        let whole = frame("10.0.0.1", "10.0.0.2", &[1; 40]);
        for len in 0..whole.len() {
            assert!(batch_of(&whole[..len], 4791, RxQueue::Slot).is_none(), "{len}");
        }
        assert!(batch_of(&frame("10.0.0.1", "10.0.0.2", &[]), 4791, RxQueue::Slot).is_none());
        let mut overlong = whole.clone();
        overlong[14 + 20 + 4..14 + 20 + 6].copy_from_slice(&100u16.to_be_bytes());
        assert!(batch_of(&overlong, 4791, RxQueue::Slot).is_none(), "UDP says more than IP has");
    }
}

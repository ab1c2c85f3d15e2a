//! Bytes of RoCEv2 packets, made by the tables of the specification alone: no code of the crate that reads
//! them again.

use flate2::Crc;

/// Bits 7 to 5 of an opcode.
pub(crate) const RC: u8 = 0x00;
pub(crate) const UC: u8 = 0x20;
pub(crate) const UD: u8 = 0x60;
pub(crate) const XRC: u8 = 0xa0;

/// Low five bits of an opcode.
pub(crate) const READ_REQUEST: u8 = 0x0c;
pub(crate) const READ_FIRST: u8 = 0x0d;
pub(crate) const READ_MIDDLE: u8 = 0x0e;
pub(crate) const READ_LAST: u8 = 0x0f;
pub(crate) const READ_ONLY: u8 = 0x10;
pub(crate) const ACKNOWLEDGE: u8 = 0x11;
pub(crate) const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
pub(crate) const COMPARE_SWAP: u8 = 0x13;
pub(crate) const FETCH_ADD: u8 = 0x14;
/// The whole opcode of a congestion notification.
pub(crate) const CNP: u8 = 0x81;

/// A packet from the BTH to the payload.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packet {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) p_key: u16,
    pub(crate) dest_qp: u32,
    pub(crate) becn: bool,
    pub(crate) ack_req: bool,
    pub(crate) psn: u32,
    /// Extended transport headers.
    pub(crate) headers: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// Headers around a packet.
#[derive(Clone, Debug)]
pub(crate) struct Outer {
    pub(crate) v6: bool,
    /// Last byte of the source's and of the destination's address.
    pub(crate) hosts: [u8; 2],
    pub(crate) id: u16,
    pub(crate) source_port: u16,
    /// Differentiated services and congestion bits.
    pub(crate) traffic_class: u8,
    pub(crate) ttl: u8,
    pub(crate) vlan: Option<u16>,
}

impl Packet {
    fn bytes(&self) -> Vec<u8> {
        let pad = (4 - self.payload.len() % 4) % 4;
        let mut out = vec![self.opcode, self.flags | (pad as u8) << 4];
        out.extend(self.p_key.to_be_bytes());
        out.push(u8::from(self.becn) << 6);
        out.extend(&self.dest_qp.to_be_bytes()[1..]);
        out.push(u8::from(self.ack_req) << 7);
        out.extend(&self.psn.to_be_bytes()[1..]);
        out.extend(&self.headers);
        out.extend(&self.payload);
        out.resize(out.len() + pad, 0);
        out
    }

    /// The frame, without padding of Ethernet.
    pub(crate) fn frame(&self, outer: &Outer) -> Vec<u8> {
        let mut roce = self.bytes();
        let mut ip = outer.ip(roce.len() + 4);
        roce.extend(outer.icrc(&ip, &roce).to_le_bytes());
        let mut frame = vec![2, 0, 0, 0, 0, outer.hosts[1], 2, 0, 0, 0, 0, outer.hosts[0]];
        if let Some(vlan) = outer.vlan {
            frame.extend([0x81, 0]);
            frame.extend(vlan.to_be_bytes());
        }
        frame.extend(if outer.v6 { [0x86, 0xdd] } else { [8, 0] });
        frame.append(&mut ip);
        frame.append(&mut roce);
        frame
    }
}

impl Outer {
    /// Bytes before the BTH.
    pub(crate) fn len(&self) -> usize {
        14 + usize::from(self.vlan.is_some()) * 4 + if self.v6 { 40 } else { 20 } + 8
    }

    /// IP and UDP headers for `len` bytes from the BTH to the ICRC.
    fn ip(&self, len: usize) -> Vec<u8> {
        let udp_len = len as u16 + 8;
        let mut out = Vec::new();
        if self.v6 {
            out.extend([0x60 | self.traffic_class >> 4, self.traffic_class << 4, 0, 0]);
            out.extend(udp_len.to_be_bytes());
            out.extend([17, self.ttl]);
            for host in self.hosts {
                out.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
            }
        } else {
            out.extend([0x45, self.traffic_class]);
            out.extend((udp_len + 20).to_be_bytes());
            out.extend(self.id.to_be_bytes());
            out.extend([0x40, 0, self.ttl, 17, 0, 0]);
            for host in self.hosts {
                out.extend([10, 0, 0, host]);
            }
            let sum: u32 = out.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            out[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        out.extend(self.source_port.to_be_bytes());
        out.extend(4791_u16.to_be_bytes());
        out.extend(udp_len.to_be_bytes());
        // No UDP checksum over IPv4; over IPv6 a value of its own, which no receiver of RoCE needs.
        out.extend(if self.v6 { [0x12, 0x34] } else { [0, 0] });
        out
    }

    fn icrc(&self, ip: &[u8], roce: &[u8]) -> u32 {
        let mut covered = vec![0xff; 8];
        covered.extend(ip);
        covered.extend(roce);
        let ip = &mut covered[8..];
        if self.v6 {
            ip[0] |= 0x0f;
            ip[1..4].fill(0xff);
            ip[7] = 0xff;
        } else {
            ip[1] = 0xff;
            ip[8] = 0xff;
            ip[10..12].fill(0xff);
        }
        let udp = if self.v6 { 40 } else { 20 };
        ip[udp + 6..udp + 8].fill(0xff);
        ip[udp + 8 + 4] = 0xff;
        let mut crc = Crc::new();
        crc.update(&covered);
        crc.sum()
    }
}

/// RETH: address, key, length.
pub(crate) fn reth(address: u64, key: u32, len: u32) -> Vec<u8> {
    [&address.to_be_bytes()[..], &key.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// AETH: syndrome, message sequence number.
pub(crate) fn aeth(syndrome: u8, msn: u32) -> Vec<u8> {
    (u32::from(syndrome) << 24 | msn & 0xff_ffff).to_be_bytes().to_vec()
}

/// DETH: Q_Key, source queue pair.
pub(crate) fn deth(q_key: u32, source_qp: u32) -> Vec<u8> {
    [q_key.to_be_bytes(), source_qp.to_be_bytes()].concat()
}

/// A pause frame of priority flow control (802.1Qbb) for a class, or of the link (802.3x) for class 8; quanta
/// of 512 bit times.
pub(crate) fn pause(host: u8, class: u8, quanta: u16) -> Vec<u8> {
    let mut frame = vec![1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, host, 0x88, 8];
    if class == 8 {
        frame.extend([0, 1]);
        frame.extend(quanta.to_be_bytes());
    } else {
        frame.extend([1, 1, 0, 1 << class]);
        (0..8).for_each(|each| frame.extend(if each == class { quanta } else { 0 }.to_be_bytes()));
    }
    frame.resize(60, 0);
    frame
}

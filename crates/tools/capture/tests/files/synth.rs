//! Captures made packet by packet: a requester at 10.0.0.1 and a responder at 10.0.0.2.

use std::net::Ipv4Addr;

use roxie_capture::write::{NewInterface, NewPacket, Writer};
use wire::capture::LinkType;
use wire::icrc::IcrcHeader;
use wire::{Bth, Opcode, Psn, Qpn};

use crate::build::TIME_NS;

/// Bytes of Ethernet, IPv4 and UDP headers.
pub(crate) const OUTER: usize = 14 + 20 + 8;
const PORT: u16 = 0xc001;
/// Queue pair of the requester and of the responder.
const QPS: [u32; 2] = [0x11, 0x22];
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// Syndromes of an AETH.
pub(crate) const ACK: u8 = 0x1f;
pub(crate) const NAK_SEQUENCE: u8 = 0x60;
pub(crate) const RNR_10_MS: u8 = 0x34;

/// A capture being made.
#[derive(Clone)]
pub(crate) struct Talk {
    pub(crate) packets: Vec<Captured>,
    /// Time of the next packet.
    ns: u64,
    /// IPv4 identification of the next packet, and what is added to it for the one after.
    id: u16,
    id_step: u16,
    /// Queue pair of the requester and of the responder.
    qps: [u32; 2],
    /// What the devices tell before the first packet.
    told: Vec<String>,
}

/// A packet of a capture.
#[derive(Clone)]
pub(crate) struct Captured {
    pub(crate) ns: u64,
    pub(crate) interface: usize,
    pub(crate) outbound: Option<bool>,
    pub(crate) frame: Vec<u8>,
}

impl Talk {
    pub(crate) fn new() -> Self {
        Self { packets: Vec::new(), ns: TIME_NS, id: 1, id_step: 1, qps: QPS, told: Vec::new() }
    }

    /// All packets have identification 0, like those of unconnected UDP sockets.
    pub(crate) fn without_ids(self) -> Self {
        self.with_ids(0, 0)
    }

    /// The packets have the identifications `id`, `id + step` and so on.
    pub(crate) fn with_ids(self, id: u16, step: u16) -> Self {
        Self { id, id_step: step, ..self }
    }

    /// Changes the last packet, from its BTH on, and its ICRC.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut [u8])) -> &mut Self {
        let frame = &mut self.packets.last_mut().expect("a packet").frame;
        change(&mut frame[OUTER..]);
        let icrc = wire::icrc_of_frame(&frame[14..]).expect("a whole packet").to_le_bytes();
        let end = frame.len();
        frame[end - 4..].copy_from_slice(&icrc);
        self
    }

    /// The next packets are those of another connection.
    pub(crate) fn between(&mut self, qps: [u32; 2]) -> &mut Self {
        self.qps = qps;
        self
    }

    /// The device of a captured process tells this before the first packet.
    pub(crate) fn tell(&mut self, text: &str) -> &mut Self {
        self.told.push(text.to_owned());
        self
    }

    /// Lets time pass before the next packet.
    pub(crate) fn wait_us(&mut self, us: u64) -> &mut Self {
        self.ns += us * 1000;
        self
    }

    /// A packet of the requester: opcode, PSN, AckReq, extension headers, payload.
    pub(crate) fn request(
        &mut self,
        opcode: Opcode,
        psn: u32,
        ack_req: bool,
        headers: &[u8],
        payload: &[u8],
    ) -> &mut Self {
        self.packet([0, 1], opcode, psn, ack_req, headers, payload)
    }

    /// A packet of the responder.
    pub(crate) fn answer(&mut self, opcode: Opcode, psn: u32, headers: &[u8], payload: &[u8]) -> &mut Self {
        self.packet([1, 0], opcode, psn, false, headers, payload)
    }

    /// An ACK, NAK or RNR NAK.
    pub(crate) fn ack(&mut self, psn: u32, syndrome: u8, msn: u32) -> &mut Self {
        self.answer(Opcode::RC_ACKNOWLEDGE, psn, &aeth(syndrome, msn), &[])
    }

    /// A SEND of 100 bytes in one packet, with AckReq.
    pub(crate) fn send(&mut self, psn: u32) -> &mut Self {
        self.request(Opcode::RC_SEND_ONLY, psn, true, &[], &[psn as u8; 100])
    }

    /// `count` SENDs from `psn` on, each acknowledged.
    pub(crate) fn sends(&mut self, psn: u32, count: u32) -> &mut Self {
        for n in 0..count {
            self.send(psn + n).ack(psn + n, ACK, n + 1);
        }
        self
    }

    fn packet(
        &mut self,
        [from, to]: [usize; 2],
        opcode: Opcode,
        psn: u32,
        ack_req: bool,
        headers: &[u8],
        payload: &[u8],
    ) -> &mut Self {
        let pad = payload.len().next_multiple_of(4) - payload.len();
        let bth = Bth {
            opcode,
            pad_cnt: pad as u8,
            dest_qp: Qpn::new(self.qps[to]),
            psn: Psn::new(psn),
            ack_req,
            p_key: wire::PKey::DEFAULT,
            ..Bth::default()
        };
        let mut front = [0; Bth::LEN];
        bth.emit(&mut front);
        let packet = [&front, headers, payload, &[0; 3][..pad]].concat();
        let frame = datagram(HOSTS[from], HOSTS[to], self.id, &packet);
        self.packets.push(Captured { ns: self.ns, interface: 0, outbound: None, frame });
        self.ns += 5000;
        self.id = self.id.wrapping_add(self.id_step);
        self
    }

    /// An Ethernet frame of the port 02:00:00:00:00:`port` to a group address.
    pub(crate) fn control(&mut self, port: u8, ether_type: u16, body: &[u8]) -> &mut Self {
        let header = [1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, port];
        let frame = [&header[..], &ether_type.to_be_bytes(), body].concat();
        self.packets.push(Captured { ns: self.ns, interface: 0, outbound: None, frame });
        self.ns += 5000;
        self
    }

    /// The last packet once more, some time later, as captured elsewhere or duplicated in transit.
    pub(crate) fn again(&mut self, interface: usize, outbound: Option<bool>) -> &mut Self {
        let last = self.packets.last().expect("a packet").clone();
        self.packets.push(Captured { ns: self.ns, interface, outbound, ..last });
        self.ns += 5000;
        self
    }

    /// Marks the last packet as sent.
    pub(crate) fn out(&mut self) -> &mut Self {
        self.packets.last_mut().expect("a packet").outbound = Some(true);
        self
    }

    /// Damages a byte of the last packet, counted from its end.
    pub(crate) fn damage(&mut self, from_end: usize) -> &mut Self {
        let frame = &mut self.packets.last_mut().expect("a packet").frame;
        let at = frame.len() - from_end;
        frame[at] ^= 0xff;
        self
    }

    /// Puts the IPv4 option "router alert" into the last packet. Its ICRC covers the header without it.
    pub(crate) fn with_ip_options(&mut self) -> &mut Self {
        let frame = &mut self.packets.last_mut().expect("a packet").frame;
        frame[14] = 0x46;
        let total = u16::from_be_bytes([frame[16], frame[17]]) + 4;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        let icrc = frame.len() - 4;
        let identification = [frame[18], frame[19]];
        frame[icrc] ^= identification[0];
        frame[icrc + 1] ^= identification[1];
        frame.splice(34..34, [0x94, 4, 0, 0]);
        self
    }

    /// Removes the last packet: the capture does not have it.
    pub(crate) fn unseen(&mut self) -> &mut Self {
        self.packets.pop();
        self
    }

    /// The capture as a pcapng file.
    pub(crate) fn file(&self) -> Vec<u8> {
        self.file_cut(usize::MAX)
    }

    /// The same with at most `snap` bytes of each packet.
    pub(crate) fn file_cut(&self, snap: usize) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).expect("memory");
        for name in ["eth0", "eth1"] {
            let link_type = LinkType::ETHERNET;
            let interface = NewInterface { name: Some(name), left_out: None, times: None, link_type };
            writer.interface(&interface).expect("memory");
        }
        if !self.told.is_empty() {
            writer.statistics(0, 0, &self.told).expect("memory");
        }
        for packet in &self.packets {
            let data = &packet.frame[..snap.min(packet.frame.len())];
            let new = NewPacket {
                interface: packet.interface,
                time_ns: packet.ns,
                original_len: packet.frame.len(),
                data,
                outbound: packet.outbound,
                verdict: None,
            };
            writer.packet(&new, []).expect("memory");
        }
        writer.output().clone()
    }
}

/// An ACK extended transport header.
pub(crate) fn aeth(syndrome: u8, msn: u32) -> [u8; 4] {
    (u32::from(syndrome) << 24 | msn).to_be_bytes()
}

/// An RDMA extended transport header for R_Key 7.
pub(crate) fn reth(va: u64, len: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&va.to_be_bytes());
    bytes[8..12].copy_from_slice(&7_u32.to_be_bytes());
    bytes[12..].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// An Ethernet frame with a RoCEv2 datagram.
fn datagram(src: Ipv4Addr, dst: Ipv4Addr, id: u16, packet: &[u8]) -> Vec<u8> {
    let icrc = IcrcHeader::v4(src, dst, PORT, wire::ROCE_PORT).icrc(id, packet);
    let udp_len = (8 + packet.len() + 4) as u16;
    let ip = wire::Ipv4 { id, ..wire::Ipv4::udp(src, dst, 64, udp_len) }.with_checksum();
    let mut header = [0; 20];
    ip.emit(&mut header);
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend(header);
    frame.extend(PORT.to_be_bytes());
    frame.extend(wire::ROCE_PORT.to_be_bytes());
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(packet);
    frame.extend(icrc.to_le_bytes());
    frame
}

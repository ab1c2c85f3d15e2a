//! The hostile peer: sockets on 127.0.0.2, which is whom the victims are connected to, and one on 127.0.0.1.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use roxie::wire::{Gid, IcrcHeader, Packet, Qpn};
use sys::{Opt, SockAddr};

use crate::arena;

const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const DEVICE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const RECEIVE_BUFFER: i32 = 8 << 20;

/// The address that the victims know.
pub(crate) fn gid() -> Gid {
    PEER.into()
}

/// A socket to send from, with what its ICRCs need.
struct Sender {
    socket: UdpSocket,
    icrc: IcrcHeader,
}

pub(crate) struct Peer {
    /// Bound to the domain's port at an address of its own, which wins over the domain's wildcard.
    inbox: UdpSocket,
    own: Sender,
    /// Another process of the device's host.
    neighbour: Sender,
    port: u16,
    /// See [`Peer::spare`].
    spared: Option<Qpn>,
    replies: VecDeque<Vec<u8>>,
    pub(crate) received: u64,
}

impl Peer {
    pub(crate) fn new(port: u16) -> io::Result<Self> {
        let inbox = sys::udp_socket(false)?;
        sys::set_opt(inbox.as_fd(), Opt::REUSE_PORT, 1)?;
        sys::set_receive_buffer(inbox.as_fd(), RECEIVE_BUFFER)?;
        sys::bind(inbox.as_fd(), &SockAddr::ip(IpAddr::V4(PEER), port, 0))?;
        let inbox = UdpSocket::from(inbox);
        inbox.set_nonblocking(true)?;
        let (own, neighbour) = (Sender::new(PEER, port)?, Sender::new(DEVICE, port)?);
        Ok(Self { inbox, own, neighbour, port, spared: None, replies: VecDeque::new(), received: 0 })
    }

    /// From now on nothing but barriers goes to this queue pair. A packet for another one with the wrong bit flipped could be
    /// what it expects next, or soon: it would be ahead of its barriers, or dead, and say nothing about the device.
    pub(crate) fn spare(&mut self, qpn: Qpn) {
        self.spared = Some(qpn);
    }

    /// Sends `packet`, BTH to pad, with its ICRC.
    pub(crate) fn send(&self, packet: &[u8]) {
        let is_spared = |qpn: Qpn| packet.get(5..8) == Some(&qpn.value().to_be_bytes()[1..]);
        if !self.spared.is_some_and(is_spared) {
            self.own.send(packet, 0, self.port);
        }
    }

    /// The same for the queue pair that is spared.
    pub(crate) fn send_barrier(&self, packet: &[u8]) {
        self.own.send(packet, 0, self.port);
    }

    /// The same with another ICRC; an error of up to 16 bits in the right place could pass as another IPv4 id.
    pub(crate) fn send_damaged(&self, packet: &[u8]) {
        self.own.send(packet, 0x0001_8000, self.port);
    }

    /// From 127.0.0.1, which is not whom the victims know.
    pub(crate) fn send_as_neighbour(&self, packet: &[u8]) {
        self.neighbour.send(packet, 0, self.port);
    }

    /// Anything, as it is.
    pub(crate) fn send_raw(&self, datagram: &[u8]) {
        self.own.raw(datagram, self.port);
    }

    /// The next packet that was sent to us, ICRC included.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        self.receive();
        self.replies.pop_front()
    }

    /// Everything that was sent to us and not looked at.
    pub(crate) fn drain(&mut self) -> Vec<Vec<u8>> {
        self.receive();
        self.replies.drain(..).collect()
    }

    fn receive(&mut self) {
        let mut buf = [0; 8192];
        loop {
            match self.inbox.recv_from(&mut buf) {
                Ok((len, from)) => self.accept(&buf[..len], from),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) => panic!("receive: {e}"),
            }
        }
    }

    /// Whatever the device says to a hostile peer is well-formed and tells nothing it must not.
    fn accept(&mut self, bytes: &[u8], from: SocketAddr) {
        assert_eq!(from.ip(), IpAddr::V4(DEVICE));
        let packet =
            Packet::parse(bytes).unwrap_or_else(|reason| panic!("the device sent {bytes:02x?}: {reason}"));
        let icrc = IcrcHeader::v4(DEVICE, PEER, from.port(), self.port);
        icrc.verify(0, bytes).expect("the device's ICRCs are right");
        assert!(!arena::tells_a_secret(packet.payload()), "{packet} tells a secret");
        self.received += 1;
        self.replies.push_back(bytes.to_vec());
    }
}

impl Sender {
    fn new(from: Ipv4Addr, port: u16) -> io::Result<Self> {
        let socket = UdpSocket::bind((from, 0))?;
        // The IPv4 id of what is sent is then 0.
        sys::set_opt(socket.as_fd(), Opt::MTU_DISCOVER, Opt::PMTU_PROBE)?;
        let icrc = IcrcHeader::v4(from, DEVICE, socket.local_addr()?.port(), port);
        Ok(Self { socket, icrc })
    }

    fn send(&self, packet: &[u8], difference: u32, port: u16) {
        let mut datagram = packet.to_vec();
        // Too short for a BTH is too short for an ICRC that means something.
        let icrc = if packet.len() < 12 { 0 } else { self.icrc.icrc(0, packet) };
        datagram.extend((icrc ^ difference).to_le_bytes());
        self.raw(&datagram, port);
    }

    fn raw(&self, datagram: &[u8], port: u16) {
        match self.socket.send_to(datagram, (DEVICE, port)) {
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) => {}
            Err(e) => panic!("send {} bytes: {e}", datagram.len()),
        }
    }
}

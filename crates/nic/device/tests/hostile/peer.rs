//! The hostile peer: sockets on 127.0.0.2, to which the victims are connected, and one on 127.0.0.1.

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

/// The address to which the victims are connected.
pub(crate) fn gid() -> Gid {
    PEER.into()
}

/// A sending socket and its ICRC parameters.
struct Sender {
    socket: UdpSocket,
    icrc: IcrcHeader,
}

pub(crate) struct Peer {
    /// Bound to the domain's port at the peer's address, which takes precedence over the domain's wildcard.
    inbox: UdpSocket,
    own: Sender,
    /// Sends from the device's address, as another process of its host could.
    neighbour: Sender,
    port: u16,
    /// See [`Peer::exclude`].
    excluded: Option<Qpn>,
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
        Ok(Self { inbox, own, neighbour, port, excluded: None, replies: VecDeque::new(), received: 0 })
    }

    /// Excludes a queue pair from attacks: it only gets barriers. A mutated packet could otherwise have its
    /// QPN and the PSN that it expects; then the barriers would fail without a fault of the device.
    pub(crate) fn exclude(&mut self, qpn: Qpn) {
        self.excluded = Some(qpn);
    }

    /// Sends `packet` (BTH to pad) with its ICRC.
    pub(crate) fn send(&self, packet: &[u8]) {
        let is_excluded = |qpn: Qpn| packet.get(5..8) == Some(&qpn.value().to_be_bytes()[1..]);
        if !self.excluded.is_some_and(is_excluded) {
            self.own.send(packet, 0, self.port);
        }
    }

    /// Sends to the excluded queue pair.
    pub(crate) fn send_barrier(&self, packet: &[u8]) {
        self.own.send(packet, 0, self.port);
    }

    /// Sends with a wrong ICRC. A difference of only 16 bits in the right place could be valid for another
    /// IPv4 id.
    pub(crate) fn send_damaged(&self, packet: &[u8]) {
        self.own.send(packet, 0x0001_8000, self.port);
    }

    /// Sends from 127.0.0.1, to which no victim is connected.
    pub(crate) fn send_as_neighbour(&self, packet: &[u8]) {
        self.neighbour.send(packet, 0, self.port);
    }

    /// Sends the bytes unchanged.
    pub(crate) fn send_raw(&self, datagram: &[u8]) {
        self.own.raw(datagram, self.port);
    }

    /// Returns the next received packet, ICRC included.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        self.receive();
        self.replies.pop_front()
    }

    /// Returns all received packets that were not returned yet.
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

    /// Checks that a packet of the device is well-formed and contains no secret data.
    fn accept(&mut self, bytes: &[u8], from: SocketAddr) {
        assert_eq!(from.ip(), IpAddr::V4(DEVICE));
        let packet =
            Packet::parse(bytes).unwrap_or_else(|reason| panic!("the device sent {bytes:02x?}: {reason}"));
        let icrc = IcrcHeader::v4(DEVICE, PEER, from.port(), self.port);
        icrc.verify(0, bytes).expect("the device's ICRC is valid");
        assert!(!arena::contains_secret(packet.payload()), "{packet} contains secret data");
        self.received += 1;
        self.replies.push_back(bytes.to_vec());
    }
}

impl Sender {
    fn new(from: Ipv4Addr, port: u16) -> io::Result<Self> {
        let socket = UdpSocket::bind((from, 0))?;
        // With this option the IPv4 id of sent packets is 0.
        sys::set_opt(socket.as_fd(), Opt::MTU_DISCOVER, Opt::PMTU_PROBE)?;
        let icrc = IcrcHeader::v4(from, DEVICE, socket.local_addr()?.port(), port);
        Ok(Self { socket, icrc })
    }

    fn send(&self, packet: &[u8], difference: u32, port: u16) {
        let mut datagram = packet.to_vec();
        // A packet shorter than a BTH has no meaningful ICRC.
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

//! Ports: what moves packets between the engine and the network, in batches.
//!
//! A port knows addresses, sockets and bursts; it does not know queue pairs. On the way out it is handed
//! packets that end before the ICRC (`BTH .. pad`), appends the ICRC and sends. On the way in it hands over
//! *trains*: one or more equal-size UDP payloads (the last may be shorter) that arrived as one datagram
//! burst of one sender. Invariant: within a flow, packets leave in the order they were committed.
//!
//! Adding a port: one file here, one line below.

pub(crate) mod choice;
mod dead;
mod flow_table;
mod headers;
mod outlook;
mod shm;
mod udp;
mod xsk;

pub use choice::{BadVariable, LocalPath, PortChoice, PortKind};
pub(crate) use dead::DeadPort;
pub use headers::Headers;
pub(crate) use headers::train_of;
pub use outlook::Outlook;
pub(crate) use shm::ShmPort;
pub use udp::{RECEIVE_BUFFER, UdpPort, UdpPortConfig, receive_socket};
pub use xsk::{Teardown, XskError, XskPort, XskPortConfig};

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use wire::icrc::ICRC_LEN;
use wire::{FlushIcrc, IcrcHeader, Mac};

/// Most bytes of one packet, ICRC included: 4096 of payload and every header a packet can have.
pub const MAX_PACKET: usize = 4096 + 64;

/// Stands in for the destination slot of QP1 traffic, so that no data train carries it.
pub(crate) const GSI_FLOW_SLOT: u8 = 0xff;

/// Request bytes in flight towards one destination process. The peer's socket buffer is what overflows: an
/// unprivileged one holds about six 64 KiB trains (rmem_max 212992, doubled by the kernel).
pub(crate) const SOCKET_WINDOW_BYTES: usize = 320 * 1024;

/// Where a flow goes and how its IP header looks. Packets of one flow are sent in order and may share bursts.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FlowKey {
    /// Local address, which must be one of this host's.
    pub src: IpAddr,
    /// Remote address.
    pub dst: IpAddr,
    /// Bits 23..16 of the destination QPN. Each value gets its own source port, so that no receiver merges
    /// packets for different processes into one train.
    pub dst_slot: u8,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// TTL or hop limit; 0 means 64.
    pub ttl: u8,
    /// The ICRC of its FLUSHes.
    pub flush_icrc: FlushIcrc,
}

/// A flow opened on a port.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FlowId(pub u32);

/// Which queue a train came from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RxQueue {
    /// The queue shared by all processes of the domain: QP 1, first messages of connections.
    Gsi,
    /// This process's own slot.
    Slot,
    /// Handed over by another process of the domain.
    Forwarded,
    /// Memory that is shared with the sender: the packets have room for their ICRCs, but nothing there.
    Ring,
}

/// The queues one [`Port::recv`] call looks at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RxQueues {
    /// The queue shared by all processes.
    pub gsi: bool,
    /// This process's own queue.
    pub slot: bool,
}

impl RxQueues {
    /// Both queues.
    pub const ALL: RxQueues = RxQueues { gsi: true, slot: true };
    /// Only the shared queue.
    pub const GSI: RxQueues = RxQueues { gsi: true, slot: false };
    /// Only this process's queue.
    pub const SLOT: RxQueues = RxQueues { gsi: false, slot: true };
    /// Neither.
    pub(crate) const NONE: RxQueues = RxQueues { gsi: false, slot: false };
}

/// UDP payloads received together: all `segment` bytes long, but the last, which may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct RxTrain<'a> {
    /// Source address; an IPv4-mapped one is given as IPv4.
    pub src: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// The local address the train was sent to; an IPv4-mapped one is given as IPv4.
    pub dst: IpAddr,
    /// UDP destination port (4791 except in private domains).
    pub dst_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// TTL or hop limit as received.
    pub ttl: u8,
    /// Length of each packet but the last; never 0.
    pub segment: usize,
    /// Ethernet addresses, source and destination; `None` where the port does not see them.
    pub macs: Option<[Mac; 2]>,
    /// IPv4 identification of the first packet, the others have the following ones; `None` where the port does not see it.
    pub ip_id: Option<u16>,
    /// The packets, BTH to ICRC, one behind the other.
    pub bytes: &'a [u8],
    /// Where the train was received.
    pub queue: RxQueue,
}

impl<'a> RxTrain<'a> {
    /// The packets in order; packet `i` was most likely sent with IPv4 id `i`.
    pub fn packets(&self) -> std::slice::Chunks<'a, u8> {
        self.bytes.chunks(self.segment.max(1))
    }

    /// The flow that the train is of, but for its slot and for its sender's choices, which no header shows.
    pub(crate) fn flow_key(&self) -> FlowKey {
        let RxTrain { src, dst, tos, ttl, .. } = *self;
        FlowKey { src, dst, dst_slot: 0, tos, ttl, flush_icrc: FlushIcrc::Iba }
    }

    /// The ICRC pseudo header that all packets of the train share; `None` if the two addresses are of
    /// different families.
    #[must_use]
    pub fn icrc_header(&self) -> Option<IcrcHeader> {
        icrc_header(self.src, self.dst, self.src_port, self.dst_port)
    }
}

/// Moves packets, unprivileged or not. Called once per batch, hence used as `Box<dyn Port>`.
pub trait Port: Send {
    /// Makes a flow ready for sending, until [`close_flow`](Port::close_flow) was called as often as this. The same
    /// key gives the same id.
    ///
    /// # Errors
    /// What the kernel says about the local address (`EADDRNOTAVAIL`), `EINVAL` for addresses of different
    /// families, `ENOBUFS` if there are too many flows.
    fn open_flow(&mut self, key: &FlowKey) -> io::Result<FlowId>;

    /// Gives up a flow; what is queued for it still leaves.
    fn close_flow(&mut self, flow: FlowId);

    /// A flow for the next [`tx_commit`](Port::tx_commit) only. Any number of destinations can be sent to in this way.
    ///
    /// # Errors
    /// Those of [`open_flow`](Port::open_flow).
    fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId>;

    /// What a packet of this flow has in front of it on the network, as far as the port knows; `None` if there is no such
    /// flow.
    fn headers(&mut self, flow: FlowId) -> Option<Headers>;

    /// Space for the next packet, at least [`MAX_PACKET`] bytes. Write `BTH .. pad` to its start, then
    /// call [`tx_commit`](Port::tx_commit); without a commit nothing is sent.
    fn tx_slot(&mut self) -> &mut [u8];

    /// The IPv4 identification of a packet of `len` bytes if it is committed to `flow` next. Should the kernel refuse to cut a
    /// burst apart, it leaves with another one.
    fn identification(&mut self, flow: FlowId, len: usize) -> u16 {
        let _alone = (flow, len);
        0
    }

    /// Queues the `len` bytes at the start of [`tx_slot`](Port::tx_slot) for `flow` and appends the ICRC.
    /// Sends by itself when out of space, else at [`flush`](Port::flush).
    fn tx_commit(&mut self, flow: FlowId, len: usize);

    /// Whether more should be committed now. False while as many bytes as the port's limit allows have left us and are not
    /// on the wire yet, as a NIC's byte queue limit would have it: what is committed all the same may be lost here.
    fn has_room(&mut self) -> bool {
        true
    }

    /// Request bytes that may be unacknowledged on a flow: what a receiver has room for who looks late, unless the port waits for it
    /// by [`has_room`](Port::has_room).
    fn window_bytes(&self, flow: FlowId) -> usize {
        let _any = flow;
        SOCKET_WINDOW_BYTES
    }

    /// Sends everything queued; returns the packets the kernel took. The others are lost and counted, as
    /// packets lost on the network are.
    fn flush(&mut self) -> usize;

    /// Hands over one batch of what has arrived, without waiting; returns the number of trains.
    fn recv(&mut self, queues: RxQueues, f: &mut dyn FnMut(&RxTrain<'_>)) -> usize;

    /// Whether there is nothing to receive, where that is known for much less than [`recv`](Port::recv) costs. Whoever is told so may
    /// leave out that call, which is allowed to say nothing of what only comes now and then.
    fn is_quiet(&mut self) -> bool {
        false
    }

    /// The next [`recv`](Port::recv) leaves out nothing that has arrived, not even what it only looks at from time to time.
    fn look_everywhere(&mut self) {}

    /// Others than the transport look at what the next [`recv`](Port::recv) hands over: no packet is without its ICRC.
    fn will_be_watched(&mut self) {}

    /// Somebody is about to wait for [`poll_fds`](Port::poll_fds) and the members' listener. False if there is something to
    /// receive that they do not tell of.
    fn may_wait(&mut self) -> bool {
        true
    }

    /// The wait is over.
    fn has_waited(&mut self) {}

    /// Whether [`recv`](Port::recv) hands over packets to multicast groups that this host is a member of. Nothing to do for
    /// a port that does so in any case.
    ///
    /// # Errors
    /// What the kernel says.
    fn hear_groups(&mut self, hear: bool) -> io::Result<()> {
        let _always = hear;
        Ok(())
    }

    /// Whether equal packets in a row are cheaper than others, because they leave as one burst.
    fn prefers_equal_packets(&self) -> bool {
        false
    }

    /// Descriptors that become readable when `recv` has something to do.
    fn poll_fds(&self) -> Vec<RawFd>;

    /// What has happened so far.
    fn counters(&self) -> PortCounters;

    /// Counters that only this kind of port has.
    fn rows(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Kind and mode of the port, for people.
    fn describe(&self) -> String;
}

/// Counts of one port since it was opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortCounters {
    /// Trains received.
    pub rx_trains: u64,
    /// Packets in them.
    pub rx_packets: u64,
    /// Bytes in them (UDP payload).
    pub rx_bytes: u64,
    /// Datagrams refused before they became a train: truncated, empty, or without addresses.
    pub rx_malformed: u64,
    /// Packets that came when the process's socket had no room; Linux before 6.9 counts a train of them as one.
    pub rx_no_buffer: u64,
    /// Failed receive calls, other than `nothing there`.
    pub rx_errors: u64,
    /// Bursts handed to the kernel.
    pub tx_bursts: u64,
    /// Packets in them.
    pub tx_packets: u64,
    /// Bytes in them (UDP payload).
    pub tx_bytes: u64,
    /// Packets lost because the send buffer was full (`EAGAIN`, `ENOBUFS`).
    pub tx_no_buffer: u64,
    /// Times the port waited for the send buffer.
    pub tx_waits: u64,
    /// Packets lost because they exceed the path's MTU (`EMSGSIZE`).
    pub tx_too_long: u64,
    /// Packets lost because there is no way to the destination (`ENETUNREACH`, `EHOSTUNREACH`).
    pub tx_unreachable: u64,
    /// Packets lost because sending was forbidden (`EPERM`, `EACCES`).
    pub tx_forbidden: u64,
    /// Packets lost for any other error.
    pub tx_errors: u64,
    /// Bursts the kernel refused to segment, which were sent packet by packet.
    pub tx_gso_refused: u64,
    /// Times a commit had to send by itself because staging space was used up.
    pub tx_full: u64,
    /// The last error number a send call returned, 0 if none did.
    pub tx_last_errno: i32,
    /// The last error number a receive call returned, 0 if none did.
    pub rx_last_errno: i32,
}

impl PortCounters {
    /// The sum of two ports' counts; of the error numbers, those of `self` if it has any.
    #[must_use]
    pub fn plus(&self, other: &PortCounters) -> PortCounters {
        let either = |a, b| if a == 0 { b } else { a };
        PortCounters {
            rx_trains: self.rx_trains + other.rx_trains,
            rx_packets: self.rx_packets + other.rx_packets,
            rx_bytes: self.rx_bytes + other.rx_bytes,
            rx_malformed: self.rx_malformed + other.rx_malformed,
            rx_no_buffer: self.rx_no_buffer + other.rx_no_buffer,
            rx_errors: self.rx_errors + other.rx_errors,
            tx_bursts: self.tx_bursts + other.tx_bursts,
            tx_packets: self.tx_packets + other.tx_packets,
            tx_bytes: self.tx_bytes + other.tx_bytes,
            tx_no_buffer: self.tx_no_buffer + other.tx_no_buffer,
            tx_waits: self.tx_waits + other.tx_waits,
            tx_too_long: self.tx_too_long + other.tx_too_long,
            tx_unreachable: self.tx_unreachable + other.tx_unreachable,
            tx_forbidden: self.tx_forbidden + other.tx_forbidden,
            tx_errors: self.tx_errors + other.tx_errors,
            tx_gso_refused: self.tx_gso_refused + other.tx_gso_refused,
            tx_full: self.tx_full + other.tx_full,
            tx_last_errno: either(self.tx_last_errno, other.tx_last_errno),
            rx_last_errno: either(self.rx_last_errno, other.rx_last_errno),
        }
    }
}

/// The ICRC pseudo header of a flow; `None` for addresses of different families.
pub(crate) fn icrc_header(src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16) -> Option<IcrcHeader> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(IcrcHeader::v4(src, dst, src_port, dst_port)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(IcrcHeader::v6(src, dst, src_port, dst_port)),
        _ => None,
    }
}

/// Writes the ICRC of a packet to its last four bytes, least significant byte first (IBA 7.8.1).
#[inline]
pub(crate) fn put_icrc(header: &IcrcHeader, id: u16, packet: &mut [u8]) {
    if let Some((body, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
        *icrc = header.icrc(id, body).to_le_bytes();
    }
}

//! Ports: they move packets between the engine and the network, in batches.
//!
//! A port knows addresses, sockets and bursts; it does not know queue pairs. For sending it gets packets
//! that end before the ICRC (`BTH .. pad`), appends the ICRC and sends them. Received packets it hands
//! over as [`RxBatch`]es: one or more equal-size UDP payloads (the last may be shorter) of one sender,
//! that arrived as one GRO batch. Invariant: within a flow, packets leave in the order in which they were
//! committed.
//!
//! To add a port, add one file here, one line below, and an arm in `open_port.rs`.

mod choice;
mod dead;
mod flow_table;
mod headers;
mod outlook;
mod owned;
mod udp;
mod xsk;

pub use choice::{LocalPath, PortChoice, PortKind};
pub(crate) use dead::DeadPort;
pub use headers::{Headers, batch_of};
pub use outlook::Outlook;
pub use owned::OwnedPacket;
pub use udp::{RECEIVE_BUFFER, UdpPort, UdpPortConfig, receive_socket};
pub use xsk::{BurstPath, Teardown, XskError, XskPort, XskPortConfig, XskStep};

use std::io;
use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};

use wire::icrc::ICRC_LEN;
use wire::{FlushIcrc, IcrcHeader, Mac};

/// Most bytes of one packet, ICRC included: 4096 of payload and every header a packet can have.
pub const MAX_PACKET: usize = 4096 + 64;

/// Replaces the destination slot in flows of QP1, so that no burst contains QP1 and data packets.
pub const GSI_FLOW_SLOT: u16 = u16::MAX;

/// Request bytes in flight to one slot of a peer, which has a socket of its own. The limit is the buffer of
/// that socket: an unprivileged one holds about six 64 KiB GRO batches (rmem_max 212992, doubled by the
/// kernel).
pub(crate) const SOCKET_WINDOW_BYTES: usize = 320 * 1024;

/// Addresses and IP header fields of a flow. Packets of one flow are sent in order and may share bursts.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FlowKey {
    /// Local address, which must be one of this host's.
    pub src: IpAddr,
    /// Remote address.
    pub dst: IpAddr,
    /// Bits 23..12 of the destination QPN. Values of different classes get different source ports, so that a
    /// receiver rarely merges packets for different processes into one GRO batch.
    pub dst_slot: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// TTL or hop limit; 0 means 64.
    pub ttl: u8,
    /// The ICRC variant of its FLUSH packets.
    pub flush_icrc: FlushIcrc,
    /// Interface of the local address, if that is above the port's netdev (a VLAN, macvlan, bond or bridge);
    /// otherwise 0.
    pub above: u32,
}

/// A flow opened on a port.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FlowId(pub u32);

/// The queue that a batch came from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RxQueue {
    /// The queue shared by all processes of the domain: QP 1, first messages of connections.
    Gsi,
    /// The queue of this process's own slot.
    Slot,
    /// Handed over by another process of the domain.
    Forwarded,
}

/// The last four bytes of each packet of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Icrc {
    /// The ICRC, which the transport verifies.
    Present,
    /// Zeros: nothing can damage a packet in memory that a process of this host shares.
    Omitted,
}

/// The queues that one [`Port::recv`] call reads.
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

/// Packets (UDP payloads) received together: all have `segment` bytes, except the last, which may be
/// shorter.
#[derive(Clone, Copy, Debug)]
pub struct RxBatch<'a> {
    /// Source address; an IPv4-mapped one is given as IPv4.
    pub src: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// The local address the batch was sent to; an IPv4-mapped one is given as IPv4.
    pub dst: IpAddr,
    /// UDP destination port (4791 except in private domains).
    pub dst_port: u16,
    /// The interface that it came through; 0 if the port does not know.
    pub ifindex: u32,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// TTL or hop limit as received.
    pub ttl: u8,
    /// Length of each packet but the last; never 0.
    pub segment: usize,
    /// Ethernet addresses, source and destination; `None` where the port does not see them.
    pub macs: Option<[Mac; 2]>,
    /// IPv4 identification of the first packet; those of the others follow. `None` where the port does
    /// not see it.
    pub ip_id: Option<u16>,
    /// The packets, BTH to ICRC, one after the other.
    pub bytes: &'a [u8],
    /// The queue that it came from.
    pub queue: RxQueue,
    /// Whether its packets end with their ICRCs.
    pub icrc: Icrc,
}

#[cfg(test)]
impl<'a> RxBatch<'a> {
    /// Returns a batch of 8-byte packets from another host, for tests to vary.
    pub(crate) fn of_test(bytes: &'a [u8]) -> RxBatch<'a> {
        RxBatch {
            src: [192, 0, 2, 1].into(),
            src_port: 0xc123,
            dst: [192, 0, 2, 2].into(),
            dst_port: 1,
            ifindex: 0,
            tos: 2,
            ttl: 64,
            segment: 8,
            macs: None,
            ip_id: None,
            bytes,
            queue: RxQueue::Gsi,
            icrc: Icrc::Present,
        }
    }
}

impl<'a> RxBatch<'a> {
    /// Returns the packets in order; packet `i` was most likely sent with IPv4 id `i`.
    pub fn packets(&self) -> std::slice::Chunks<'a, u8> {
        self.bytes.chunks(self.segment.max(1))
    }

    /// Returns the flow of the batch, except for its slot and for the sender's choices that no header
    /// shows.
    #[must_use]
    pub fn flow_key(&self) -> FlowKey {
        let RxBatch { src, dst, tos, ttl, .. } = *self;
        FlowKey { src, dst, dst_slot: 0, tos, ttl, flush_icrc: FlushIcrc::Iba, above: 0 }
    }

    /// Returns the ICRC pseudo header that all packets of the batch share; `None` if the addresses are of
    /// different families.
    #[must_use]
    pub fn icrc_header(&self) -> Option<IcrcHeader> {
        icrc_header(self.src, self.dst, self.src_port, self.dst_port)
    }
}

/// Where a destination address is, as the kernel's routes say when a flow is opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Destination {
    /// On this host: the process there may be reached without the kernel.
    ThisHost,
    /// On another host, or the kernel does not say.
    Elsewhere,
}

/// What one [`Port::recv`] call reads, and in which form.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RxScope {
    /// The queues to read.
    pub queues: RxQueues,
    /// Reads every source of these queues. Without it a port may skip a source that it reads only from time
    /// to time.
    pub everything: bool,
    /// Hooks or taps read the packets before the transport does: every packet carries its ICRC.
    pub with_icrc: bool,
}

impl From<RxQueues> for RxScope {
    /// An ordinary poll of `queues` by the transport alone.
    fn from(queues: RxQueues) -> RxScope {
        RxScope { queues, everything: false, with_icrc: false }
    }
}

/// Whether a port accepts packets. A packet that is committed to a full one all the same may be dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TxRoom {
    /// It does.
    Open,
    /// The transmit queue of the flow is full. Other flows may have another queue.
    FlowFull,
    /// The port holds as many bytes as its limit allows that are not on the wire yet (the byte queue limit of
    /// a NIC).
    PortFull,
}

impl TxRoom {
    /// The room of a port with one transmit queue.
    #[must_use]
    pub fn of_port(has_room: bool) -> TxRoom {
        if has_room { TxRoom::Open } else { TxRoom::PortFull }
    }
}

/// How much a port accepts for a flow at this moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TxState {
    /// Whether packets of the flow may be committed.
    pub room: TxRoom,
    /// Request bytes that may be unacknowledged on the flow, so that the receiver's buffer does not overflow
    /// while the receiving process is busy.
    pub window_bytes: usize,
}

impl Default for TxState {
    /// Room, and the window that an unprivileged socket buffer holds.
    fn default() -> TxState {
        TxState { room: TxRoom::Open, window_bytes: SOCKET_WINDOW_BYTES }
    }
}

/// Whether a thread may sleep on a port's descriptors.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Readiness {
    /// A descriptor becomes readable when there is something to receive.
    Idle,
    /// There is something to receive that no descriptor announces.
    Pending,
}

/// The packets that [`Port::take_refused`] is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RefusedKind {
    /// Management datagrams, from QP 1.
    Mads,
    /// Packets of all other queue pairs.
    Packets,
}

/// Properties of a port that change only when a slot is added.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PortProperties {
    /// Descriptors that become readable when [`Port::recv`] has something to do.
    pub poll_fds: Vec<RawFd>,
    /// Consecutive packets of equal length are cheaper than others, because they leave as one burst.
    pub prefers_equal_packets: bool,
    /// [`Port::open_flow`] sends to [`Destination::ThisHost`] in another way, so the caller finds out where a
    /// destination is.
    pub tells_destinations_apart: bool,
}

/// The state of a port for status output.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PortReport {
    /// Kind and mode of the port, for people.
    pub description: String,
    /// Counters that every port has.
    pub counters: PortCounters,
    /// Name and value of the counters that only this kind of port has.
    pub rows: Vec<(&'static str, u64)>,
}

/// Moves packets between the engine and a network. Called once per batch, hence used as `Box<dyn Port>`.
pub trait Port: Send {
    /// Opens a flow for sending to `to`. The same key gives the same id; the flow stays open until
    /// [`close_flow`](Port::close_flow) was called as often as this.
    ///
    /// # Errors
    /// What the kernel says about the local address (`EADDRNOTAVAIL`), `EINVAL` for addresses of different
    /// families, `ENOBUFS` if there are too many flows.
    fn open_flow(&mut self, key: &FlowKey, to: Destination) -> io::Result<FlowId>;

    /// Closes a flow once; packets queued for it still leave.
    fn close_flow(&mut self, flow: FlowId);

    /// Returns a flow that is valid for the next [`tx_commit`](Port::tx_commit) only. The number of
    /// destinations reached in this way is not limited.
    ///
    /// # Errors
    /// Those of [`open_flow`](Port::open_flow).
    fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId>;

    /// Returns the network headers of this flow's packets, as far as the port knows them; `None` if there is
    /// no such flow.
    fn headers(&mut self, flow: FlowId) -> Option<Headers>;

    /// Returns the IPv4 identification that a packet of `len` bytes gets if it is committed to `flow` next.
    /// The packet leaves with another one if the kernel refuses to segment its burst.
    fn identification(&mut self, flow: FlowId, len: usize) -> u16 {
        let _single_packet = (flow, len);
        0
    }

    /// Returns what the port accepts now, for `flow` if one is given. Called once per transmit quantum.
    fn tx_state(&mut self, flow: Option<FlowId>) -> TxState {
        let _any = flow;
        TxState::default()
    }

    /// Returns space for the next packet, at least [`MAX_PACKET`] bytes. The caller writes `BTH .. pad`
    /// to its start and calls [`tx_commit`](Port::tx_commit); without a commit nothing is sent.
    fn tx_slot(&mut self) -> &mut [u8];

    /// Queues the `len` bytes at the start of [`tx_slot`](Port::tx_slot) for `flow` and appends the ICRC.
    /// The port sends them when it is out of space, else at [`flush`](Port::flush).
    fn tx_commit(&mut self, flow: FlowId, len: usize);

    /// Sends everything queued; returns the number of packets the kernel took. Packets that it refuses are
    /// lost and counted, as packets lost on the network are. Without space in a send buffer, packets stay
    /// queued ([`has_unsent`](Port::has_unsent)). Never waits.
    fn flush(&mut self) -> usize;

    /// Whether packets are queued that the last [`flush`](Port::flush) could not send. The next
    /// [`tx_state`](Port::tx_state), or a later [`recv`](Port::recv), tries again.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Gives `f` one round of what has arrived, without waiting; returns the number of [`RxBatch`]es.
    fn recv(&mut self, scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize;

    /// Whether there is nothing to receive, where the port knows that at much lower cost than
    /// [`recv`](Port::recv) has. The answer may leave out sources that are read only from time to time.
    fn is_quiet(&mut self) -> bool {
        false
    }

    /// Sets whether local senders have to wake a thread that sleeps on the descriptors (as in AF_XDP's
    /// `need_wakeup`). A thread sets it before it sleeps, and sleeps only if the result is
    /// [`Readiness::Idle`]; it clears it afterwards.
    fn set_need_wakeup(&mut self, needed: bool) -> Readiness {
        let _descriptors_announce_all = needed;
        Readiness::Idle
    }

    /// Sets whether [`recv`](Port::recv) hands over packets to multicast groups that this host is a
    /// member of. A port that always does so ignores it.
    ///
    /// # Errors
    /// What the kernel says.
    fn hear_groups(&mut self, hear: bool) -> io::Result<()> {
        let _always = hear;
        Ok(())
    }

    /// Passes the packets that their destination host has refused by ICMP, because no socket there has the
    /// port, to `f`: the destination, and what the ICMP message quotes of `BTH .. ICRC`.
    fn take_refused(&mut self, kind: RefusedKind, f: &mut dyn FnMut(IpAddr, &[u8])) {
        let _hears_no_icmp = (kind, f);
    }

    /// Also receives the packets for the QPNs of a further slot, from `queue`.
    ///
    /// # Errors
    /// `EMFILE`; `EOPNOTSUPP` in a simulation.
    fn add_slot(&mut self, slot: u16, queue: OwnedFd) -> io::Result<()> {
        let _unsupported = (slot, queue);
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Returns what changes only when a slot is added.
    fn properties(&self) -> PortProperties;

    /// Returns description and counters; costs system calls.
    fn report(&self) -> PortReport;
}

/// Counts of one port since it was opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortCounters {
    /// Batches received.
    pub rx_batches: u64,
    /// Packets in them.
    pub rx_packets: u64,
    /// Bytes in them (UDP payload).
    pub rx_bytes: u64,
    /// Datagrams refused before they became a batch: truncated, empty, or without addresses.
    pub rx_malformed: u64,
    /// Packets dropped because the process's socket buffer was full; Linux before 6.9 counts a GRO batch
    /// of them as one.
    pub rx_no_buffer: u64,
    /// Failed receive calls, except those that found nothing.
    pub rx_errors: u64,
    /// Bursts handed to the kernel.
    pub tx_bursts: u64,
    /// Packets in them.
    pub tx_packets: u64,
    /// Bytes in them (UDP payload).
    pub tx_bytes: u64,
    /// Packets lost because the send buffer was full (`EAGAIN`, `ENOBUFS`).
    pub tx_no_buffer: u64,
    /// Flushes after which packets waited for a send buffer.
    pub tx_waits: u64,
    /// Packets lost because they exceed the path's MTU (`EMSGSIZE`).
    pub tx_too_long: u64,
    /// Packets lost because there is no route to the destination (`ENETUNREACH`, `EHOSTUNREACH`).
    pub tx_unreachable: u64,
    /// Packets lost because sending was forbidden (`EPERM`, `EACCES`).
    pub tx_forbidden: u64,
    /// Packets lost for any other error.
    pub tx_errors: u64,
    /// Bursts that the kernel refused to segment, which were sent packet by packet.
    pub tx_gso_refused: u64,
    /// Commits that had to send because the staging space was used up.
    pub tx_full: u64,
    /// The last error number a send call returned, 0 if none did.
    pub tx_last_errno: i32,
    /// The last error number a receive call returned, 0 if none did.
    pub rx_last_errno: i32,
}

impl PortCounters {
    /// Returns the sum of two ports' counts; of the error numbers, those of `self` if it has any.
    #[must_use]
    pub fn plus(&self, other: &PortCounters) -> PortCounters {
        let either = |a, b| if a == 0 { b } else { a };
        PortCounters {
            rx_batches: self.rx_batches + other.rx_batches,
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

/// Returns the ICRC pseudo header of a flow; `None` for addresses of different families.
pub fn icrc_header(src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16) -> Option<IcrcHeader> {
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

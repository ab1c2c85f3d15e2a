//! Sending: staging area, bursts, one system call per socket and flush.
//!
//! Packets are written one after the other into the staging area. Each joins the open *burst* of its flow
//! if the kernel can segment that burst again: all packets equal, the last may be shorter.

mod flow;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use wire::IcrcHeader;
use wire::icrc::ICRC_LEN;

use super::super::flow_table::FlowTable;
use super::super::{FlowId, MAX_PACKET, PortCounters, RefusedKind, put_icrc};
use flow::GSI_CLASS;
use sys::{Control, Phase, PollFd, SendBatch, SockAddr};

/// The sending half of a port.
#[derive(Debug)]
pub(super) struct Transmitter {
    udp_port: u16,
    ifindex: u32,
    pub(super) flows: Vec<Flow>,
    table: FlowTable,
    pub(super) sockets: Vec<TxSocket>,
    /// Sockets with queued bursts.
    dirty: Vec<u32>,
    staging: Box<[u8]>,
    phase: Phase,
    /// End of the committed packets in `staging`.
    end: usize,
    pieces: Vec<Piece>,
    pub(super) bursts: Vec<Burst>,
    /// Most packets in one burst, which depends on the kernel.
    pub(super) segments_max: u16,
    batch: SendBatch,
    /// Sum of `TxSocket::unchecked` over all sockets.
    unchecked: usize,
    /// The last flush found a full send buffer: the bursts of the dirty sockets are left.
    has_unsent: bool,
    pub(super) counters: PortCounters,
}

/// A destination, with everything that can be computed once.
#[derive(Debug)]
pub(super) struct Flow {
    to: SockAddr,
    control: Control,
    icrc: IcrcHeader,
    socket: u32,
    /// The burst that takes further packets, or [`NONE`].
    open: u32,
    /// Most bytes in one burst.
    burst_bytes_max: u32,
    /// Most packets in one burst: 1 if the kernel does not segment for this destination.
    pub(super) segments_max: u16,
}

#[derive(Debug)]
pub(super) struct TxSocket {
    fd: OwnedFd,
    src: IpAddr,
    /// Interface of the source address, as in [`FlowKey`](crate::port::FlowKey).
    above: u32,
    class: u8,
    tos: u8,
    ttl: u8,
    port: u16,
    is_dirty: bool,
    /// Bytes sent since the fill level of the send buffer was last checked.
    unchecked: usize,
}

/// Packets that leave as one datagram and are segmented by the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    flow: u32,
    socket: u32,
    first_piece: u32,
    last_piece: u32,
    /// Length of each packet but the last.
    segment: u32,
    total: u32,
    pub(super) count: u16,
}

/// Consecutive bytes of the staging area that belong to one burst; a list, because packets of several flows
/// may alternate.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u32,
    len: u32,
    next: u32,
}

/// No burst, or no piece.
const NONE: u32 = u32::MAX;
/// Bytes of four full bursts; more would leave the second-level cache before the kernel copies them.
const STAGING_LEN: usize = 256 * 1024;
/// When a full burst ends beyond this many bytes it is sent at once, so that the peer works while the
/// next one is written.
const FLUSH_AT: usize = 64 * 1024;
/// Bursts between two flushes; without segmentation each packet is one.
const BURSTS_MAX: usize = 256;
/// Pieces between two flushes; only alternating flows need more than one per burst.
const PIECES_MAX: usize = 1024;
/// UDP_MAX_SEGMENTS of linux/udp.h: 128 since 6.9, 64 before.
const SEGMENTS_MAX: u16 = 128;
const SEGMENTS_MAX_OLD: u16 = 64;
/// Bytes between two checks of the send buffer's fill level: often enough for an unprivileged buffer of
/// 416 KiB, and 0.3 us every 100 us at 2.5 GB/s. The limit of unsent bytes is half a buffer, below which
/// the kernel reports a socket as writable.
const CHECK_BYTES: usize = 256 * 1024;
/// Bytes that are read of a quoted datagram: a management datagram is 280 bytes long.
const QUOTED_MAX: usize = 512;
/// ICMP messages that are read at once from one socket.
const REFUSED_MAX: usize = 64;
/// Failed sends that one flush repeats for one socket. One is enough unless a stranger floods the socket with
/// ICMP messages. Double: a flush to an unreachable host makes more system calls. Half: a flood loses more.
const REPEATS_MAX: u32 = 2;

impl Transmitter {
    pub(super) fn new(udp_port: u16, ifindex: u32) -> Transmitter {
        Transmitter {
            udp_port,
            ifindex,
            flows: Vec::new(),
            table: FlowTable::default(),
            sockets: Vec::new(),
            dirty: Vec::new(),
            staging: vec![0; STAGING_LEN].into_boxed_slice(),
            phase: Phase::default(),
            end: 0,
            pieces: Vec::with_capacity(PIECES_MAX),
            bursts: Vec::with_capacity(BURSTS_MAX),
            segments_max: SEGMENTS_MAX,
            batch: SendBatch::new(BURSTS_MAX, PIECES_MAX),
            unchecked: 0,
            has_unsent: false,
            counters: PortCounters::default(),
        }
    }

    /// The sockets send through `fd` from now on.
    #[cfg(test)]
    pub(super) fn set_sockets(&mut self, fd: &OwnedFd) {
        self.sockets.iter_mut().for_each(|socket| socket.fd = fd.try_clone().expect("a descriptor"));
    }

    /// Sends to another port from now on.
    #[cfg(test)]
    pub(super) fn set_udp_port(&mut self, udp_port: u16) {
        self.udp_port = udp_port;
    }

    pub(super) fn tx_slot(&mut self) -> &mut [u8] {
        // `tx_commit` and `flush` leave room for one packet of the largest size.
        &mut self.staging[self.end..self.end + MAX_PACKET]
    }

    /// See [`Port::identification`](super::super::Port::identification).
    pub(super) fn identification(&self, flow: FlowId, len: usize) -> u16 {
        let Some(state) = self.flows.get(flow.0 as usize) else { return 0 };
        let open = self.bursts.get(state.open as usize);
        open.filter(|burst| burst.takes(state, (len + ICRC_LEN) as u32)).map_or(0, |burst| burst.count)
    }

    pub(super) fn tx_commit(&mut self, flow: FlowId, len: usize) {
        let Some(state) = self.flows.get_mut(flow.0 as usize) else {
            debug_assert!(false, "no such flow");
            return;
        };
        let with_icrc = len + ICRC_LEN;
        if len == 0 || with_icrc > MAX_PACKET {
            debug_assert!(false, "packet of {len} bytes");
            return;
        }
        let (start, len) = (self.end as u32, with_icrc as u32);
        let packet = &mut self.staging[self.end..self.end + with_icrc];
        self.end += with_icrc;
        match self.bursts.get_mut(state.open as usize).filter(|burst| burst.takes(state, len)) {
            Some(burst) => {
                put_icrc(&state.icrc, burst.count, packet);
                burst.count += 1;
                burst.total += len;
                let is_full = burst.count == state.segments_max || burst.total + len > state.burst_bytes_max;
                // A shorter packet can only be the last one.
                if len < burst.segment || is_full {
                    state.open = NONE;
                }
                let last = &mut self.pieces[burst.last_piece as usize];
                if last.start + last.len == start {
                    last.len += len;
                } else {
                    let new = self.pieces.len() as u32;
                    self.pieces[burst.last_piece as usize].next = new;
                    burst.last_piece = new;
                    self.pieces.push(Piece { start, len, next: NONE });
                }
                if is_full {
                    self.end = self.phase.next_from(self.end);
                    if self.end > FLUSH_AT {
                        self.flush();
                    }
                }
            }
            None => {
                put_icrc(&state.icrc, 0, packet);
                self.open_burst(flow, start, len);
            }
        }
        if self.is_staging_full() {
            self.counters.tx_full += 1;
            self.flush();
            if self.is_staging_full() {
                self.lose_unsent();
            }
        }
    }

    /// Whether there may be no space for another packet.
    #[inline]
    fn is_staging_full(&self) -> bool {
        self.end + MAX_PACKET > STAGING_LEN
            || self.bursts.len() == BURSTS_MAX
            || self.pieces.len() == PIECES_MAX
    }

    /// Whether packets wait for a send buffer. Each call of [`has_room`](Self::has_room) and of
    /// [`resume`](Self::resume) tries to send them.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        self.has_unsent
    }

    /// Tries to send the packets that wait for a send buffer.
    #[inline]
    pub(super) fn resume(&mut self) {
        if self.has_unsent {
            self.flush();
        }
    }

    /// Whether no send buffer is more than half full; see
    /// [`Port::tx_state`](super::super::Port::tx_state).
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        self.unchecked < CHECK_BYTES && !self.has_unsent || self.finds_room()
    }

    #[cold]
    fn finds_room(&mut self) -> bool {
        self.resume();
        if self.has_unsent {
            return false;
        }
        let mut left = 0;
        for socket in self.sockets.iter_mut().filter(|socket| socket.unchecked > 0) {
            let mut fds = [PollFd::writable(socket.fd.as_raw_fd())];
            // Other errors of the socket show when sending.
            if sys::poll(&mut fds, Some(0)).is_ok_and(|ready| ready == 0) {
                left += socket.unchecked;
            } else {
                socket.unchecked = 0;
            }
        }
        let has_room = left == 0;
        // While there is no space, every call checks again.
        self.unchecked = if has_room { 0 } else { left.max(CHECK_BYTES) };
        has_room
    }

    pub(super) fn flush(&mut self) -> usize {
        if self.bursts.is_empty() {
            return 0;
        }
        for burst in &self.bursts {
            self.flows[burst.flow as usize].open = NONE;
        }
        let (mut packets, mut left) = (0, 0);
        for i in 0..self.dirty.len() {
            let socket = self.dirty[i];
            packets += self.send_socket(socket);
            if self.sockets[socket as usize].is_dirty {
                self.dirty[left] = socket;
                left += 1;
            }
        }
        self.dirty.truncate(left);
        self.has_unsent = left > 0;
        if self.has_unsent {
            self.counters.tx_waits += 1;
            let sockets = &self.sockets;
            self.bursts.retain(|burst| sockets[burst.socket as usize].is_dirty);
        } else {
            self.empty_staging();
        }
        packets
    }

    fn empty_staging(&mut self) {
        self.bursts.clear();
        self.pieces.clear();
        self.end = self.phase.next_from(0);
    }

    /// Gives up the packets that wait for a send buffer.
    #[cold]
    fn lose_unsent(&mut self) {
        let lost = self.bursts.iter().map(|burst| u64::from(burst.count)).sum();
        self.count_lost(libc::EAGAIN, lost);
        for socket in self.dirty.drain(..) {
            self.sockets[socket as usize].is_dirty = false;
        }
        self.has_unsent = false;
        self.empty_staging();
    }

    /// Starts a burst with the packet at `start`.
    fn open_burst(&mut self, flow: FlowId, start: u32, len: u32) {
        let index = self.bursts.len() as u32;
        let piece = self.pieces.len() as u32;
        let Flow { socket, .. } = self.flows[flow.0 as usize];
        self.pieces.push(Piece { start, len, next: NONE });
        self.bursts.push(Burst {
            flow: flow.0,
            socket,
            first_piece: piece,
            last_piece: piece,
            segment: len,
            total: len,
            count: 1,
        });
        self.flows[flow.0 as usize].open = index;
        let sender = &mut self.sockets[socket as usize];
        if !sender.is_dirty {
            sender.is_dirty = true;
            self.dirty.push(socket);
        }
    }

    /// Sends the bursts of a dirty socket; returns the packets sent. The socket stays dirty if its send
    /// buffer is full, and only its other bursts are left then.
    fn send_socket(&mut self, socket: u32) -> usize {
        let (mut packets, mut next) = (0, 0);
        self.sockets[socket as usize].is_dirty = false;
        // An ICMP message about an earlier datagram fails the next one, once.
        let mut repeats = 0;
        loop {
            // (Re)build the list from burst `next` on: normally once, again after a burst that failed.
            let mut batch = self.batch.fill();
            let mut count = 0;
            for burst in self.bursts[next..].iter().filter(|b| b.socket == socket) {
                let flow = &self.flows[burst.flow as usize];
                batch.message(&flow.to, &flow.control, (burst.count > 1).then_some(burst.segment as u16));
                let mut piece = burst.first_piece;
                while let Some(p) = self.pieces.get(piece as usize) {
                    batch.piece(&self.staging[p.start as usize..(p.start + p.len) as usize]);
                    piece = p.next;
                }
                count += 1;
            }
            let mut sent = 0;
            let error = loop {
                if sent == count {
                    break None;
                }
                match batch.send(self.sockets[socket as usize].fd.as_fd(), sent) {
                    Ok(n) => sent += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => break Some(e),
                }
            };
            // Count what was sent and find the burst after it.
            let mut left = sent;
            while next < self.bursts.len() && (left > 0 || self.bursts[next].socket != socket) {
                let burst = self.bursts[next];
                next += 1;
                if burst.socket == socket {
                    left -= 1;
                    packets += usize::from(burst.count);
                    self.counters.tx_bytes += u64::from(burst.total);
                    self.counters.tx_bursts += 1;
                    self.sockets[socket as usize].unchecked += burst.total as usize;
                    self.unchecked += burst.total as usize;
                }
            }
            let Some(error) = error else { break };
            match error.raw_os_error().unwrap_or(0) {
                libc::EAGAIN => {
                    let mut at = 0;
                    self.bursts.retain(|burst| {
                        at += 1;
                        burst.socket != socket || at > next
                    });
                    self.sockets[socket as usize].is_dirty = true;
                    break;
                }
                libc::EINVAL | libc::EIO if self.bursts[next].count > 1 => {
                    packets += self.resend_in_parts(next);
                    next += 1;
                }
                errno if errno != libc::ENOBUFS && repeats < REPEATS_MAX => repeats += 1,
                errno => {
                    // The network device has dropped the packets of this burst only, if it is ENOBUFS.
                    self.count_lost(errno, u64::from(self.bursts[next].count));
                    next += 1;
                }
            }
        }
        self.counters.tx_packets += packets as u64;
        packets
    }

    /// See [`Port::take_refused`](super::super::Port::take_refused).
    pub(super) fn take_refused(&mut self, kind: RefusedKind, f: &mut dyn FnMut(IpAddr, &[u8])) {
        let mut quoted = [0; QUOTED_MAX];
        let is_gsi = kind == RefusedKind::Mads;
        for socket in self.sockets.iter().filter(|socket| (socket.class == GSI_CLASS) == is_gsi) {
            for _ in 0..REFUSED_MAX {
                match sys::receive_error(socket.fd.as_fd(), &mut quoted) {
                    Ok(Some(error)) if error.is_port_unreachable => f(error.to, &quoted[..error.len]),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }

    /// Sends a burst that the kernel refused to segment in smaller ones, or packet by packet. That
    /// changes the identifications of its packets, hence their ICRCs. Returns the packets sent.
    #[cold]
    pub(super) fn resend_in_parts(&mut self, index: usize) -> usize {
        self.counters.tx_gso_refused += 1;
        let burst = self.bursts[index];
        let mut bytes = Vec::with_capacity(burst.total as usize);
        let mut piece = burst.first_piece;
        while let Some(p) = self.pieces.get(piece as usize) {
            bytes.extend_from_slice(&self.staging[p.start as usize..(p.start + p.len) as usize]);
            piece = p.next;
        }
        let segment = burst.segment as usize;
        let mut per_send = if burst.count > SEGMENTS_MAX_OLD { SEGMENTS_MAX_OLD } else { 1 };
        let (mut sent, mut done) = (0, 0);
        while done < bytes.len() {
            let part_len = (usize::from(per_send) * segment).min(bytes.len() - done);
            let part = &mut bytes[done..done + part_len];
            let flow = &self.flows[burst.flow as usize];
            for (id, packet) in part.chunks_mut(segment).enumerate() {
                put_icrc(&flow.icrc, id as u16, packet);
            }
            let count = part_len.div_ceil(segment);
            let mut batch = self.batch.fill();
            batch.message(&flow.to, &flow.control, (count > 1).then_some(burst.segment as u16));
            batch.piece(part);
            match batch.send(self.sockets[burst.socket as usize].fd.as_fd(), 0) {
                Ok(_) => {
                    sent += count;
                    self.counters.tx_bytes += part_len as u64;
                    self.counters.tx_bursts += 1;
                    // Remember what worked: for all flows if it is the kernel's limit, else for this
                    // flow.
                    if per_send == SEGMENTS_MAX_OLD {
                        self.segments_max = SEGMENTS_MAX_OLD;
                        self.flows.iter_mut().for_each(|f| f.segments_max = f.segments_max.min(per_send));
                    } else {
                        self.flows[burst.flow as usize].segments_max = 1;
                    }
                }
                Err(_) if per_send > 1 => {
                    per_send = 1;
                    continue;
                }
                Err(e) => self.count_lost(e.raw_os_error().unwrap_or(0), count as u64),
            }
            done += part_len;
        }
        sent
    }

    #[cold]
    fn count_lost(&mut self, errno: i32, packets: u64) {
        let counters = &mut self.counters;
        counters.tx_last_errno = errno;
        *match errno {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => &mut counters.tx_no_buffer,
            libc::EMSGSIZE => &mut counters.tx_too_long,
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EADDRNOTAVAIL => {
                &mut counters.tx_unreachable
            }
            libc::EPERM | libc::EACCES => &mut counters.tx_forbidden,
            _ => &mut counters.tx_errors,
        } += packets;
    }
}

impl Burst {
    /// Whether a packet of `len` bytes, ICRC included, may join the burst.
    #[inline]
    fn takes(&self, flow: &Flow, len: u32) -> bool {
        len <= self.segment && self.total + len <= flow.burst_bytes_max && self.count < flow.segments_max
    }
}

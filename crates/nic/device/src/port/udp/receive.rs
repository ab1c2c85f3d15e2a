//! Receiving: one system call per queue, into buffers that hold the largest GRO batch.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use super::super::{Icrc, PortCounters, RxBatch, RxQueue};
use sys::{Datagram, Epoll, Opt, RecvBatch};

/// Creates a UDP socket with all options that a port needs for received datagrams. It is not bound yet,
/// so that a reuseport program can be attached first. The second value tells whether it is an IPv6
/// (dual-stack) socket or, on systems without IPv6, an IPv4 one.
///
/// # Errors
/// What the kernel says: `EMFILE`, or a kernel older than 5.0, which lacks UDP_GRO.
pub fn receive_socket() -> io::Result<(OwnedFd, bool)> {
    let (fd, v6) = match sys::udp_socket(true) {
        Ok(fd) => (fd, true),
        Err(e) if e.raw_os_error() == Some(libc::EAFNOSUPPORT) => (sys::udp_socket(false)?, false),
        Err(e) => return Err(e),
    };
    if v6 {
        for (opt, value) in [
            (Opt::V6_ONLY, 0),
            (Opt::RECV_PKTINFO6, 1),
            (Opt::RECV_TCLASS, 1),
            (Opt::RECV_HOP_LIMIT, 1),
            (Opt::NO_CHECK6_RX, 1),
        ] {
            sys::set_opt(fd.as_fd(), opt, value)?;
        }
    } else {
        sys::set_opt(fd.as_fd(), Opt::RECV_PKTINFO, 1)?;
    }
    for opt in [Opt::RECV_TOS, Opt::RECV_TTL, Opt::GRO] {
        sys::set_opt(fd.as_fd(), opt, 1)?;
    }
    // Otherwise every socket of the group would get a copy of every multicast packet.
    sys::hear_all_groups(fd.as_fd(), false)?;
    sys::set_receive_buffer(fd.as_fd(), RECEIVE_BUFFER)?;
    Ok((fd, v6))
}

/// The receiving half of a port.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) gsi: OwnedFd,
    pub(super) slot: OwnedFd,
    udp_port: u16,
    batch: RecvBatch,
    /// How many datagrams to request per call, by queue: slot, GSI.
    pace: [Pace; 2],
    /// The sockets of further slots; almost every process has none.
    further: Option<Box<Further>>,
    pub(super) counters: PortCounters,
}

/// Sockets of further slots. One call says which of them have datagrams.
#[derive(Debug)]
struct Further {
    epoll: Epoll,
    sockets: Vec<(OwnedFd, Pace)>,
}

impl Receiver {
    pub(super) fn new(gsi: OwnedFd, slot: OwnedFd, udp_port: u16) -> Receiver {
        Receiver {
            gsi,
            slot,
            udp_port,
            batch: RecvBatch::new(RX_BATCH_MAX),
            pace: [Pace::NEW; 2],
            further: None,
            counters: PortCounters::default(),
        }
    }

    /// Also receives from the socket of a further slot.
    pub(super) fn add_slot(&mut self, socket: OwnedFd) -> io::Result<()> {
        if self.further.is_none() {
            self.further = Some(Box::new(Further { epoll: Epoll::new()?, sockets: Vec::new() }));
        }
        if let Some(further) = &mut self.further {
            further.epoll.add(socket.as_fd(), further.sockets.len() as u64)?;
            further.sockets.push((socket, Pace::NEW));
        }
        Ok(())
    }

    /// The descriptors that become readable when a datagram has arrived.
    pub(super) fn poll_fds(&self) -> Vec<RawFd> {
        let further = self.further.iter().map(|further| further.epoll.as_raw_fd());
        [self.slot.as_raw_fd(), self.gsi.as_raw_fd()].into_iter().chain(further).collect()
    }

    /// Datagrams that the kernel dropped because a buffer of this process was full.
    pub(super) fn drops(&self) -> u64 {
        let further = self.further.iter().flat_map(|further| &further.sockets).map(|(socket, _)| socket);
        let drops = |socket: &OwnedFd| sys::receive_buffer_drops(socket.as_fd()).map_or(0, u64::from);
        [&self.slot].into_iter().chain(further).map(drops).sum()
    }

    /// Receives once from one queue.
    #[inline]
    pub(super) fn recv(&mut self, queue: RxQueue, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let Receiver { gsi, slot, udp_port, batch, pace, counters, further } = self;
        let mut source = Source { queue, udp_port: *udp_port, batch, counters };
        match queue {
            RxQueue::Slot => {
                let batches = source.recv(slot, &mut pace[0], f);
                batches + further.as_mut().map_or(0, |further| further.recv(&mut source, f))
            }
            RxQueue::Gsi | RxQueue::Forwarded => source.recv(gsi, &mut pace[1], f),
        }
    }
}

impl Further {
    /// Receives once from each socket that has datagrams.
    fn recv(&mut self, source: &mut Source<'_>, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let mut tokens = [0; 16];
        let ready = self.epoll.ready(&mut tokens);
        let mut batches = 0;
        for token in &tokens[..ready] {
            if let Some((socket, pace)) = self.sockets.get_mut(*token as usize) {
                batches += source.recv(socket, pace, f);
            }
        }
        batches
    }
}

/// What all sockets of one kind of queue share.
struct Source<'a> {
    queue: RxQueue,
    udp_port: u16,
    batch: &'a mut RecvBatch,
    counters: &'a mut PortCounters,
}

impl Source<'_> {
    /// Receives once from one socket.
    #[inline]
    fn recv(&mut self, socket: &OwnedFd, pace: &mut Pace, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let got = match self.batch.receive(socket.as_fd(), pace.want) {
            Ok(got) => got,
            Err(e) => {
                self.counters.rx_errors += 1;
                self.counters.rx_last_errno = e.raw_os_error().unwrap_or(0);
                0
            }
        };
        if got == 0 {
            pace.was_full = false;
            return 0;
        }
        let (mut batches, mut bytes) = (0, 0);
        for i in 0..got {
            let datagram = self.batch.datagram(i);
            let Some(batch) = batch_of(&datagram, self.udp_port, self.queue) else {
                self.counters.rx_malformed += 1;
                continue;
            };
            batches += 1;
            bytes += batch.bytes.len();
            self.counters.rx_packets += batch.bytes.len().div_ceil(batch.segment) as u64;
            f(&batch);
        }
        self.counters.rx_batches += batches as u64;
        self.counters.rx_bytes += bytes as u64;
        pace.adapt(got, bytes);
        batches
    }
}

/// The number of datagrams to request. A call that requests more than there are makes a futile attempt,
/// which costs an isolated small packet 0.3 us of latency; one that requests too few costs another system
/// call.
#[derive(Clone, Copy, Debug)]
struct Pace {
    want: usize,
    /// The last call got all it requested.
    was_full: bool,
}

impl Pace {
    const NEW: Pace = Pace { want: 1, was_full: false };

    fn adapt(&mut self, got: usize, bytes: usize) {
        let is_full = got >= self.want;
        if !is_full {
            self.want = got;
        } else if self.was_full {
            // The datagrams of one call should stay in the cache until they are processed.
            let max = (RX_BATCH_BYTES * got / bytes.max(1)).clamp(RX_BATCH_MIN, RX_BATCH_MAX);
            self.want = (self.want * 4).min(max);
        }
        self.was_full = is_full;
    }
}

/// Most datagrams per receive call, for large and small ones, and the bytes that they should not exceed
/// together (a part of the second-level cache).
const RX_BATCH_MIN: usize = 4;
const RX_BATCH_MAX: usize = 32;
const RX_BATCH_BYTES: usize = 256 * 1024;
/// Receive buffer in bytes: windows of 64 QPs of 256 KiB.
pub const RECEIVE_BUFFER: i32 = 16 << 20;

fn batch_of<'a>(datagram: &Datagram<'a>, udp_port: u16, queue: RxQueue) -> Option<RxBatch<'a>> {
    let (Some(src), Some(dst)) = (datagram.src, datagram.dst) else { return None };
    if datagram.bytes.is_empty() || datagram.truncated {
        return None;
    }
    let segment = datagram.segment.filter(|n| *n > 0).unwrap_or(usize::MAX).min(datagram.bytes.len());
    Some(RxBatch {
        src: src.ip(),
        src_port: src.port(),
        dst,
        dst_port: udp_port,
        ifindex: datagram.ifindex,
        tos: datagram.tos,
        ttl: datagram.ttl,
        segment,
        macs: None,
        ip_id: None,
        bytes: datagram.bytes,
        queue,
        icrc: Icrc::Present,
    })
}

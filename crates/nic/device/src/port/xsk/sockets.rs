//! One AF_XDP socket per receive queue, their shared memory, and the two pools of its chunks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::queue::{Queue, SocketCounters};
use super::{XskError, XskStep};
use crate::page_pool::{Audit, PagePool};
use crate::port::TxRoom;
use crate::xdp::Steering;
use sys::xdp::{Bind, Chunk, Umem, UmemConfig, XskSocket, XskStatistics};
use sys::{Epoll, XdpFeatures, XdpMode, now_ns};

/// The sockets of a port.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) queues: Vec<Queue>,
    umem: Arc<Umem>,
    pub(crate) rx_pool: PagePool,
    pub(crate) tx_pool: PagePool,
    pub(crate) zero_copy: bool,
    pub(crate) fragments: bool,
    /// Why packets are copied although the driver reports zero-copy support.
    pub(crate) not_zero_copy: Option<XskError>,
    /// The interface was removed, and the sockets are useless.
    pub(crate) gone: bool,
    pub(crate) counters: SocketCounters,
    /// Since when all transmit queues are full, and nothing was completed.
    full_since_ns: Option<u64>,
}

/// The chunks at the end of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Teardown {
    /// All chunks.
    pub units: u32,
    /// Chunks that the kernel still held when the sockets were closed.
    pub reclaimed: u32,
    /// Chunks without an owner: 0, or a bug.
    pub lost: u32,
}

/// The program that gives frames to the sockets.
pub(crate) trait SocketMap {
    /// Most receive queues that it gives frames of.
    fn queues(&self) -> u32;
    /// The mode in which it runs.
    fn mode(&self) -> XdpMode;
    /// Gives frames of receive queue `queue` to an AF_XDP socket bound to it.
    ///
    /// # Errors
    /// As [`Steering::set_socket`].
    fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()>;
}

impl SocketMap for Steering {
    fn queues(&self) -> u32 {
        Steering::queues(self)
    }

    fn mode(&self) -> XdpMode {
        Steering::mode(self)
    }

    fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        Steering::set_socket(self, queue, socket)
    }
}

/// Parameters of the sockets to open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) ifindex: u32,
    /// MTU of the interface; it decides whether a packet fits into one chunk.
    pub(crate) mtu: u32,
    /// XDP features that the driver reports.
    pub(crate) features: XdpFeatures,
}

pub(crate) const CHUNK_LEN: u32 = 4096;
/// Descriptors of each ring; as many chunks are in each fill ring. Fewer if RLIMIT_MEMLOCK requires it.
const RING_LEN: u32 = 2048;
const RING_LEN_MIN: u32 = 256;
/// UMEM chunks of a transmit unit: the longest packet with its headers needs two.
const TX_SPAN: u32 = 2;
/// Bytes of a chunk for a received packet: 256 bytes are XDP's (XDP_PACKET_HEADROOM).
const RX_ROOM: u32 = CHUNK_LEN - 256;
const ETHERNET_LEN: u32 = 14 + 4;
/// Largest MTU origin packets fit into one chunk.
pub(crate) const SINGLE_MTU_MAX: u32 = RX_ROOM - ETHERNET_LEN;
/// Most queues that are opened.
pub(crate) const QUEUES_MAX: u32 = 64;
/// Limit of all receive chunks together, however many queues there are.
const RX_UNITS_MAX: u32 = 16 * 1024;
/// How long to retry on a queue that has a socket: the kernel takes tens of milliseconds to release a
/// closed one.
const BUSY_NS: u64 = 2_000_000_000;
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for a driver that sends nothing.
const FULL_NS: u64 = 20_000_000;
/// Busy polling in zero-copy mode: microseconds and packets of one system call.
const BUSY_POLL_USECS: i32 = 20;
const BUSY_POLL_BUDGET: i32 = 64;

impl Sockets {
    /// Opens sockets on all queues and registers them with the steering program.
    pub(crate) fn open(plan: &Plan, map: &dyn SocketMap) -> Result<Sockets, XskError> {
        let mut ring_len = RING_LEN;
        loop {
            match Sockets::with_rings(plan, map, ring_len) {
                // More than RLIMIT_MEMLOCK allows without CAP_IPC_LOCK.
                Err(XskError::Socket { error, .. })
                    if error.raw_os_error() == Some(libc::ENOBUFS) && ring_len > RING_LEN_MIN =>
                {
                    ring_len /= 2;
                }
                done => return done,
            }
        }
    }

    fn with_rings(plan: &Plan, map: &dyn SocketMap, ring_len: u32) -> Result<Sockets, XskError> {
        let single = plan.mtu <= SINGLE_MTU_MAX;
        let native = map.mode() == XdpMode::Native;
        let can_zero_copy = native && plan.features.zero_copy();
        let spans = plan.features.zero_copy_segments_max >= TX_SPAN;
        // In order of preference; each is tried and the kernel decides.
        let (mut last, mut not_zero_copy) = (None, None);
        for (zero_copy, fragments) in [(true, spans), (false, true), (false, false)] {
            if zero_copy && !can_zero_copy {
                continue;
            }
            let attempt = if fragments || single {
                Sockets::in_mode(plan, map, ring_len, zero_copy, fragments)
            } else {
                Err(XskError::MtuTooLarge(plan.mtu))
            };
            match attempt {
                Err(error @ (XskError::Socket { step: XskStep::Bind, .. } | XskError::MtuTooLarge(_))) => {
                    let place = if zero_copy { &mut not_zero_copy } else { &mut last };
                    *place = Some(error);
                }
                done => return done.map(|sockets| Sockets { not_zero_copy, ..sockets }),
            }
        }
        Err(last.unwrap_or(XskError::MtuTooLarge(plan.mtu)))
    }

    fn in_mode(
        plan: &Plan,
        map: &dyn SocketMap,
        ring_len: u32,
        zero_copy: bool,
        fragments: bool,
    ) -> Result<Sockets, XskError> {
        let queues = map.queues().clamp(1, QUEUES_MAX);
        let rx_units = ring_len.min(RX_UNITS_MAX / queues).max(RING_LEN_MIN);
        let regions = [(rx_units * queues, 1), (ring_len, TX_SPAN)];
        let config = UmemConfig { chunk_len: CHUNK_LEN, ..UmemConfig::default() };
        let during = |step| move |error| XskError::Socket { step, error };
        let (umem, mut tokens) = Umem::new(config, &regions).map_err(during(XskStep::PacketMemory))?;
        let umem = Arc::new(umem);
        let mut pool = |region: usize| {
            PagePool::new(
                &umem.regions()[region],
                tokens.get_mut(region).map(std::mem::take).unwrap_or_default(),
            )
        };
        let (rx_pool, tx_pool) = (pool(0), pool(1));
        let mut sockets = Sockets {
            queues: Vec::with_capacity(queues as usize),
            umem,
            rx_pool,
            tx_pool,
            zero_copy,
            fragments,
            not_zero_copy: None,
            gone: false,
            counters: SocketCounters::default(),
            full_since_ns: None,
        };
        for queue in 0..queues {
            let bind = Bind { ifindex: plan.ifindex, queue, zero_copy, fragments };
            match sockets.add(&bind, [rx_units, ring_len * TX_SPAN], map) {
                Ok(()) => {}
                // The interface has fewer queues in use than it was created with.
                Err(XskError::Socket { step: XskStep::Bind, error })
                    if queue > 0 && error.raw_os_error() == Some(libc::EINVAL) =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        sockets.fill();
        Ok(sockets)
    }

    fn add(&mut self, bind: &Bind, lens: [u32; 2], map: &dyn SocketMap) -> Result<(), XskError> {
        let [rx_units, descriptors] = lens;
        let rx_len = rx_units.next_power_of_two();
        let sizes = [rx_len, descriptors, rx_len, descriptors];
        let during = |step| move |error| XskError::Socket { step, error };
        let first = self.queues.first().map(|queue| &queue.socket);
        let (socket, rings) = XskSocket::new(&self.umem, sizes, first).map_err(during(XskStep::Socket))?;
        // One system call then sends all queued packets instead of 32; older kernels do not know the
        // option.
        let _unknown = socket.set_tx_budget(descriptors);
        // Drivers without busy polling use their interrupts.
        let polls = bind.zero_copy && socket.set_busy_poll(BUSY_POLL_USECS, BUSY_POLL_BUDGET).is_ok();
        let start = now_ns();
        loop {
            match socket.bind(bind, first) {
                Ok(()) => break,
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    if now_ns() - start > BUSY_NS {
                        return Err(XskError::QueueBusy(bind.queue));
                    }
                    sys::pause(BUSY_PAUSE);
                }
                Err(error) => return Err(during(XskStep::Bind)(error)),
            }
        }
        if first.is_none() {
            self.zero_copy = socket.is_zero_copy().map_err(during(XskStep::Options))?;
        }
        map.set_socket(bind.queue, socket.as_fd()).map_err(during(XskStep::Steering))?;
        self.queues.push(Queue {
            rings,
            socket,
            stalled: false,
            dirty: false,
            polls,
            chunks_due: rx_units,
            units_held: 0,
            full_since_ns: None,
            has_refused: false,
        });
        Ok(())
    }

    /// Makes `epoll` watch all sockets.
    pub(crate) fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        self.queues.iter().try_for_each(|queue| epoll.add(queue.socket.as_fd(), 0))
    }

    /// Gives empty chunks to the kernel, to each queue as many as it needs.
    #[inline]
    pub(crate) fn fill(&mut self) {
        let Sockets { queues, rx_pool, .. } = self;
        for queue in queues {
            if queue.chunks_due > 0 {
                for _ in 0..queue.chunks_due {
                    let Some(chunk) = rx_pool.take() else { break };
                    if let Err(chunk) = queue.rings.fill.push(chunk) {
                        rx_pool.put(chunk);
                        break;
                    }
                    queue.chunks_due -= 1;
                }
                queue.rings.fill.submit();
            }
            // Also without new chunks: a driver that found the ring empty may say so only after they came.
            if queue.rings.fill.needs_wakeup() {
                // Only a busy driver sleeps here; its send errors are seen at the next kick.
                let _later = queue.socket.wake_rx();
            }
        }
    }

    /// Takes a chunk for a packet to send; fetches the sent ones if there is none.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Chunk> {
        if self.tx_pool.is_empty() {
            self.reap();
        }
        self.tx_pool.take()
    }

    /// Whether more should be sent to a queue now, or to any if `None`. The kernel and the driver may hold
    /// half of the transmit chunks and each queue its part of them. A queue that has completed nothing for a
    /// while, because its link is down, applies no back-pressure any more. Packets are then lost and
    /// counted, and the transport's timeout reports it.
    ///
    /// A question that is refused costs system calls, so the refusal of a queue holds for all its flows
    /// until the next [`flush`](Self::flush) or completion.
    #[inline]
    pub(crate) fn room(&mut self, queue: Option<usize>) -> TxRoom {
        if queue.and_then(|queue| self.queues.get(queue)).is_some_and(|queue| queue.has_refused) {
            return TxRoom::FlowFull;
        }
        let mut room = self.present_room(queue);
        if room != TxRoom::Open {
            self.reap();
            room = self.present_room(queue);
        }
        if room != TxRoom::Open {
            self.kick();
            self.reap();
            room = self.present_room(queue);
        }
        let full_since_ns = match queue.and_then(|queue| self.queues.get_mut(queue)) {
            Some(queue) => &mut queue.full_since_ns,
            None => &mut self.full_since_ns,
        };
        if room == TxRoom::Open {
            *full_since_ns = None;
            return room;
        }
        let now = now_ns();
        let is_silent = now - *full_since_ns.get_or_insert(now) > FULL_NS;
        if is_silent {
            return TxRoom::Open;
        }
        if let Some(queue) = queue.and_then(|queue| self.queues.get_mut(queue)) {
            queue.has_refused = room == TxRoom::FlowFull;
        }
        room
    }

    #[inline]
    fn present_room(&self, queue: Option<usize>) -> TxRoom {
        let queue = queue.and_then(|queue| self.queues.get(queue));
        let half = self.tx_half();
        if self.tx_pool.len() >= half {
            return TxRoom::Open;
        }
        let takes = |queue: &Queue| queue.units_held < half / self.queues.len().max(1);
        match (queue.map(takes), self.queues.iter().any(takes)) {
            (Some(true), _) | (None, true) => TxRoom::Open,
            (Some(false), true) => TxRoom::FlowFull,
            (_, false) => TxRoom::PortFull,
        }
    }

    /// Half of the transmit units.
    #[inline]
    fn tx_half(&self) -> usize {
        self.umem.regions()[1].units() as usize / 2
    }

    /// Fetches the chunks of packets that were sent.
    pub(crate) fn reap(&mut self) {
        let Sockets { queues, tx_pool, full_since_ns, .. } = self;
        for queue in queues {
            while let Some(chunk) = queue.rings.completion.pop() {
                queue.units_held = queue.units_held.saturating_sub(1);
                tx_pool.put(chunk);
                (*full_since_ns, queue.full_since_ns) = (None, None);
                queue.has_refused = false;
            }
        }
    }

    /// Queues a packet. The chunk is returned if the ring is full, or if the queue holds half of all chunks
    /// and other queues need the rest.
    #[inline]
    pub(crate) fn push(
        &mut self,
        queue: usize,
        chunk: Chunk,
        offset: usize,
        len: usize,
    ) -> Result<(), Chunk> {
        let most = if self.queues.len() == 1 { usize::MAX } else { self.tx_half() };
        let holds_most = |queue: &Queue| queue.units_held >= most;
        if self.queues.get(queue).is_some_and(holds_most) {
            self.reap();
        }
        let queue = self.queues.get_mut(queue).filter(|queue| !holds_most(queue));
        let Some(queue) = queue else { return Err(chunk) };
        queue.rings.tx.push(chunk, offset, len)?;
        queue.units_held += 1;
        queue.dirty = true;
        Ok(())
    }

    /// As [`kick`](Self::kick), at the end of a round of queue pairs; then each queue may have room again.
    pub(crate) fn flush(&mut self) {
        self.kick();
        self.queues.iter_mut().for_each(|queue| queue.has_refused = false);
    }

    /// Makes the kernel send the queued packets.
    pub(crate) fn kick(&mut self) {
        if self.gone {
            return;
        }
        for queue in &mut self.queues {
            if queue.dirty || queue.stalled {
                queue.rings.tx.submit();
                queue.dirty = false;
                queue.kick(&mut self.counters, &mut self.gone);
            }
        }
    }

    /// Whether packets of an interface with this MTU can be sent.
    #[inline]
    pub(crate) fn can_send(&self, mtu: u32) -> bool {
        mtu <= SINGLE_MTU_MAX || self.fragments
    }

    /// Whether the kernel has taken all packets of this queue.
    pub(crate) fn has_sent_all(&self, queue: usize) -> bool {
        self.queues.get(queue).is_none_or(|queue| !queue.stalled && !queue.dirty)
    }

    /// Whether the kernel has not taken everything.
    pub(crate) fn is_stalled(&self) -> bool {
        self.queues.iter().any(|queue| queue.stalled)
    }

    /// The kernel's counters, summed over the queues.
    pub(crate) fn statistics(&self) -> XskStatistics {
        let each = self.queues.iter().filter_map(|queue| queue.socket.statistics().ok());
        each.fold(XskStatistics::default(), |sum, one| XskStatistics {
            rx_dropped: sum.rx_dropped + one.rx_dropped,
            rx_invalid_descs: sum.rx_invalid_descs + one.rx_invalid_descs,
            tx_invalid_descs: sum.tx_invalid_descs + one.tx_invalid_descs,
            rx_ring_full: sum.rx_ring_full + one.rx_ring_full,
            rx_fill_ring_empty_descs: sum.rx_fill_ring_empty_descs + one.rx_fill_ring_empty_descs,
            tx_ring_empty_descs: sum.tx_ring_empty_descs + one.tx_ring_empty_descs,
        })
    }

    /// Number of descriptors that named no chunk of the kernel's.
    pub(crate) fn strays(&self) -> u64 {
        self.queues.iter().map(|queue| queue.rings.rx.strays() + queue.rings.completion.strays()).sum()
    }

    /// Returns the state of the receive chunks and of the transmit chunks.
    pub(crate) fn audit(&mut self) -> [Audit; 2] {
        [self.rx_pool.audit(), self.tx_pool.audit()]
    }

    /// Closes the sockets and accounts for every chunk. `held` are those outside the pools.
    pub(crate) fn close(&mut self, held: impl IntoIterator<Item = Chunk>) -> Teardown {
        held.into_iter().for_each(drop);
        self.queues.clear();
        let mut reclaimed = 0;
        if let Some(regions) = self.umem.reclaim() {
            for (pool, chunks) in [&mut self.rx_pool, &mut self.tx_pool].into_iter().zip(regions) {
                reclaimed += chunks.len() as u32;
                chunks.into_iter().for_each(|chunk| pool.put(chunk));
            }
        }
        let audits = self.audit();
        let units = audits.iter().map(|audit| audit.units).sum();
        Teardown { units, reclaimed, lost: audits.iter().map(|audit| audit.units - audit.pooled).sum() }
    }
}

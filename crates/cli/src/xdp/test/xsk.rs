//! An AF_XDP socket on queue 0 of an interface at full speed: the rings of roxie's AF_XDP port, without the
//! port.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roxie::page_pool::PagePool;
use sys::bpf::Map;
use sys::xdp::{Bind, Chunk, Rings, Umem, UmemConfig, XskSocket};
use sys::{Link, xdp_features};

use crate::failure::{During, Failure, Outcome};

/// A socket, its memory and its empty chunks.
#[derive(Debug)]
pub(super) struct Xsk {
    // Fields are dropped in order: the rings are unmapped before the socket is closed.
    rings: Rings,
    socket: Arc<XskSocket>,
    umem: Arc<Umem>,
    rx_pool: PagePool,
    tx_pool: PagePool,
    /// The first fragments of a packet, until the last one arrives.
    partial: usize,
}

/// Counts of a receiving thread, and how it is stopped.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Packets received so far.
    pub(super) packets: AtomicU64,
    /// Packets with another length than expected.
    pub(super) wrong: AtomicU64,
    /// Set to stop the thread.
    pub(super) stop: AtomicBool,
}

const QUEUE: u32 = 0;
const RING_LEN: u32 = 2048;
/// Chunks of one unit to send; a unit holds [`super::frame::LONG`] bytes.
const TX_SPAN: u32 = 2;
const BATCH: usize = 64;
/// Sending fails if the kernel takes no packet for this long.
const STUCK: Duration = Duration::from_secs(2);
/// Time to retry a queue that the kernel has not released from its former socket.
const BUSY: Duration = Duration::from_secs(1);

impl Xsk {
    /// Binds to the interface, in zero-copy mode if the driver supports it.
    pub(super) fn open(link: &Link, fragments: bool) -> Outcome<Xsk> {
        let regions = [(RING_LEN, 1), (RING_LEN, TX_SPAN)];
        let (umem, mut tokens) = Umem::new(UmemConfig::default(), &regions).during("packet memory")?;
        let umem = Arc::new(umem);
        let mut pool = |at: usize| PagePool::new(&umem.regions()[at], std::mem::take(&mut tokens[at]));
        let (rx_pool, tx_pool) = (pool(0), pool(1));
        let features = xdp_features(link.index).unwrap_or_default();
        let segments = if fragments { TX_SPAN } else { 1 };
        let zero_copy = features.zero_copy() && features.zero_copy_segments_max >= segments;
        let sizes = [RING_LEN, RING_LEN * TX_SPAN, RING_LEN, RING_LEN * TX_SPAN];
        let (socket, rings) = XskSocket::new(&umem, sizes, None).during("AF_XDP socket")?;
        // Older kernels do not know the option; they send 32 packets per call.
        let _unknown = socket.set_tx_budget(sizes[3]);
        let start = Instant::now();
        let bind = Bind { ifindex: link.index, queue: QUEUE, zero_copy, fragments };
        loop {
            match socket.bind(&bind, None) {
                Ok(()) => break,
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && start.elapsed() < BUSY => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(Failure::new(format!("AF_XDP on {}: {error}", link.name))),
            }
        }
        let mut xsk = Xsk { rings, socket: Arc::new(socket), umem, rx_pool, tx_pool, partial: 0 };
        xsk.fill();
        Ok(xsk)
    }

    /// Makes the program with this map redirect to the socket.
    pub(super) fn enter(&self, map: &Map) -> Outcome {
        map.update(&QUEUE.to_ne_bytes(), &self.socket.as_fd().as_raw_fd().to_ne_bytes()).during("XSKMAP")
    }

    /// How packets get to and from the driver.
    pub(super) fn mode(&self) -> &'static str {
        if self.socket.is_zero_copy().unwrap_or(false) { "zero-copy" } else { "copy" }
    }

    /// Packets that the kernel dropped, by reason; can be read while another thread receives.
    pub(super) fn dropped(&self) -> impl Fn() -> Outcome<Vec<(String, u64)>> + use<> {
        let socket = Arc::clone(&self.socket);
        move || {
            let statistics = socket.statistics().during("XDP_STATISTICS")?;
            // An empty fill ring is counted in rx_dropped too.
            Ok(vec![
                ("xsk rx_dropped".to_owned(), statistics.rx_dropped),
                ("xsk rx_ring_full".to_owned(), statistics.rx_ring_full),
            ])
        }
    }

    /// Receives and drops packets until stopped. Packets must have `len` bytes.
    pub(super) fn receive(&mut self, len: usize, progress: &Progress) {
        while !progress.stop.load(Ordering::Relaxed) {
            let (mut packets, mut wrong) = (0, 0);
            for _ in 0..BATCH {
                let Some(piece) = self.rings.rx.pop() else { break };
                self.partial += piece.len;
                if !piece.more {
                    packets += 1;
                    wrong += u64::from(self.partial != len);
                    self.partial = 0;
                }
                self.rx_pool.put(piece.chunk);
            }
            self.rings.rx.release();
            if packets > 0 {
                progress.packets.fetch_add(packets, Ordering::Relaxed);
                progress.wrong.fetch_add(wrong, Ordering::Relaxed);
            }
            self.fill();
        }
    }

    /// Receives packets, exchanges the Ethernet addresses and sends them, until stopped.
    pub(super) fn forward(&mut self, progress: &Progress) {
        while !progress.stop.load(Ordering::Relaxed) {
            let mut packets = 0;
            for _ in 0..BATCH {
                let Some(mut piece) = self.rings.rx.pop() else { break };
                if let Some(macs) = piece.chunk.bytes_mut()[piece.offset..].first_chunk_mut::<12>() {
                    macs.rotate_left(6);
                }
                let mut pushed = self.rings.tx.push(piece.chunk, piece.offset, piece.len);
                while let Err(chunk) = pushed {
                    if progress.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    self.kick();
                    self.reap();
                    pushed = self.rings.tx.push(chunk, piece.offset, piece.len);
                }
                packets += 1;
            }
            self.rings.rx.release();
            if packets > 0 {
                progress.packets.fetch_add(packets, Ordering::Relaxed);
            }
            self.kick();
            self.reap();
            self.fill();
        }
    }

    /// Writes the frame into every chunk for sending.
    pub(super) fn prepare(&mut self, frame: &[u8]) {
        let mut chunks: Vec<Chunk> = std::iter::from_fn(|| self.tx_pool.take()).collect();
        for mut chunk in chunks.drain(..) {
            chunk.bytes_mut()[..frame.len()].copy_from_slice(frame);
            self.tx_pool.put(chunk);
        }
    }

    /// Sends `count` of the prepared frames of `len` bytes, and waits until the kernel has taken them.
    pub(super) fn send(&mut self, count: u64, len: usize) -> Outcome {
        let (mut left, mut waiting) = (count, 0);
        let mut moved = Instant::now();
        while left > 0 || waiting > 0 {
            let before = (left, waiting);
            for _ in 0..left.min(BATCH as u64) {
                let Some(chunk) = self.tx_pool.take() else { break };
                if let Err(chunk) = self.rings.tx.push(chunk, 0, len) {
                    self.tx_pool.put(chunk);
                    break;
                }
                left -= 1;
            }
            self.kick();
            self.reap();
            waiting = self.rings.tx.waiting();
            if before != (left, waiting) {
                moved = Instant::now();
            } else if moved.elapsed() > STUCK {
                return Err(Failure::new("AF_XDP: the interface takes no more packets"));
            }
        }
        Ok(())
    }

    fn fill(&mut self) {
        let mut pushed = false;
        while let Some(chunk) = self.rx_pool.take() {
            if let Err(chunk) = self.rings.fill.push(chunk) {
                self.rx_pool.put(chunk);
                break;
            }
            pushed = true;
        }
        if pushed {
            self.rings.fill.submit();
        }
        if self.rings.fill.needs_wakeup() {
            // The next call returns the error that stopped it.
            let _later = self.socket.wake_rx();
        }
    }

    fn reap(&mut self) {
        while let Some(chunk) = self.rings.completion.pop() {
            let received = chunk.is_part_of(&self.umem.regions()[0]);
            if received { self.rx_pool.put(chunk) } else { self.tx_pool.put(chunk) }
        }
    }

    fn kick(&mut self) {
        self.rings.tx.submit();
        if self.rings.tx.needs_wakeup() && self.rings.tx.waiting() > 0 {
            // EAGAIN and the like: packets stay queued, and the next call continues.
            let _later = self.socket.wake_tx();
        }
    }
}

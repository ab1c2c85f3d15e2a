//! The four rings, with tokens instead of addresses: a token goes in, and comes out when the kernel is done.

use std::sync::Arc;

use super::ring::{Consumer, Producer};
use super::umem::{Chunk, Returned, Umem};

/// Empty chunks on their way to the kernel.
#[derive(Debug)]
pub struct FillRing {
    ring: Producer<u64>,
    umem: Arc<Umem>,
}

impl FillRing {
    pub(super) fn new(ring: Producer<u64>, umem: Arc<Umem>) -> FillRing {
        FillRing { ring, umem }
    }

    /// Chunks that fit, at least as many as there are if fewer than `want`.
    #[inline]
    pub fn room(&mut self, want: u32) -> u32 {
        self.ring.room(want)
    }

    /// Gives a chunk of one UMEM chunk away; given back if the ring is full or belongs to another memory.
    #[inline]
    pub fn push(&mut self, chunk: Chunk) -> Result<(), Chunk> {
        if !chunk.is_of(&self.umem.memory) || self.ring.room(1) == 0 {
            return Err(chunk);
        }
        self.ring.push(chunk.offset());
        chunk.lend(1);
        Ok(())
    }

    /// Shows the kernel what was pushed.
    #[inline]
    pub fn submit(&mut self) {
        self.ring.submit();
    }

    /// Submitted chunks the kernel has not taken yet.
    pub fn waiting(&mut self) -> u32 {
        self.ring.waiting()
    }

    /// The kernel found the ring empty and sleeps until [`XskSocket::wake_rx`](super::XskSocket::wake_rx).
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// Chunks whose packets were sent, on their way back.
#[derive(Debug)]
pub struct CompletionRing {
    ring: Consumer<u64>,
    umem: Arc<Umem>,
    strays: u64,
}

impl CompletionRing {
    pub(super) fn new(ring: Consumer<u64>, umem: Arc<Umem>) -> CompletionRing {
        CompletionRing { ring, umem, strays: 0 }
    }

    /// The next chunk that came back whole.
    #[inline]
    pub fn pop(&mut self) -> Option<Chunk> {
        while let Some(address) = self.ring.pop() {
            match self.umem.take_back(address) {
                Returned::Whole(chunk, _) => return Some(chunk),
                Returned::Part => {}
                Returned::Stray => self.strays += 1,
            }
        }
        None
    }

    /// Entries that named no chunk the kernel had; each one is a bug, here or there.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays
    }
}

/// Received packets.
#[derive(Debug)]
pub struct RxRing {
    ring: Consumer<libc::xdp_desc>,
    umem: Arc<Umem>,
    strays: u64,
}

/// A received packet, or part of one.
#[derive(Debug)]
pub struct RxPiece {
    /// Where it is.
    pub chunk: Chunk,
    /// Its first byte.
    pub offset: usize,
    /// Its length.
    pub len: usize,
    /// The packet goes on in the next piece.
    pub more: bool,
}

impl RxPiece {
    /// The bytes received; cut to the chunk.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let rest = self.chunk.bytes().get(self.offset..).unwrap_or_default();
        &rest[..self.len.min(rest.len())]
    }
}

impl RxRing {
    pub(super) fn new(ring: Consumer<libc::xdp_desc>, umem: Arc<Umem>) -> RxRing {
        RxRing { ring, umem, strays: 0 }
    }

    /// The next piece. The kernel gets the entries read back at the end of each batch.
    #[inline]
    pub fn pop(&mut self) -> Option<RxPiece> {
        while let Some(desc) = self.ring.pop() {
            // A received descriptor is always a unit of its own: parts come back from the completion ring only.
            if let Returned::Whole(chunk, offset) = self.umem.take_back(desc.addr) {
                let more = desc.options & libc::XDP_PKT_CONTD != 0;
                return Some(RxPiece { chunk, offset: offset as usize, len: desc.len as usize, more });
            }
            self.strays += 1;
        }
        None
    }

    /// Gives the entries that were read back to the kernel, if reading stopped before the end.
    #[inline]
    pub fn release(&mut self) {
        self.ring.release();
    }

    /// Entries that named no chunk the kernel had; each one is a bug, here or there.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays
    }
}

/// Packets to be sent.
#[derive(Debug)]
pub struct TxRing {
    ring: Producer<libc::xdp_desc>,
    umem: Arc<Umem>,
}

impl TxRing {
    pub(super) fn new(ring: Producer<libc::xdp_desc>, umem: Arc<Umem>) -> TxRing {
        TxRing { ring, umem }
    }

    /// Descriptors that fit, at least as many as there are if fewer than `want`.
    #[inline]
    pub fn room(&mut self, want: u32) -> u32 {
        self.ring.room(want)
    }

    /// Queues the packet of `len` bytes at `offset` of a chunk. One that crosses from one UMEM chunk of the unit into
    /// the next becomes several descriptors. Given back if there is no room, nothing to send, not that much in the
    /// chunk, or it belongs to another memory.
    #[inline]
    pub fn push(&mut self, chunk: Chunk, offset: usize, len: usize) -> Result<(), Chunk> {
        self.push_with(chunk, offset, len, 0)
    }

    /// As [`push`](TxRing::push) for a packet with `struct xsk_tx_metadata` in front of it.
    #[inline]
    pub fn push_with_metadata(&mut self, chunk: Chunk, offset: usize, len: usize) -> Result<(), Chunk> {
        if !self.umem.config.tx_metadata {
            return Err(chunk);
        }
        self.push_with(chunk, offset, len, libc::XDP_TX_METADATA)
    }

    fn push_with(&mut self, chunk: Chunk, offset: usize, len: usize, options: u32) -> Result<(), Chunk> {
        let chunk_len = self.umem.config.chunk_len as usize;
        let end = offset + len;
        let descriptors = end.div_ceil(chunk_len) - offset / chunk_len;
        let fits = len > 0 && end <= chunk.bytes().len() && descriptors <= usize::from(u8::MAX);
        if !fits
            || !chunk.is_of(&self.umem.memory)
            || (self.ring.room(descriptors as u32) as usize) < descriptors
        {
            return Err(chunk);
        }
        let (base, mut at, mut options) = (chunk.offset(), offset, options);
        while at < end {
            let until = ((at / chunk_len + 1) * chunk_len).min(end);
            let more = if until < end { libc::XDP_PKT_CONTD } else { 0 };
            self.ring.push(libc::xdp_desc {
                addr: base + at as u64,
                len: (until - at) as u32,
                options: options | more,
            });
            (at, options) = (until, 0);
        }
        chunk.lend(descriptors as u8);
        Ok(())
    }

    /// Shows the kernel what was pushed.
    #[inline]
    pub fn submit(&mut self) {
        self.ring.submit();
    }

    /// Submitted descriptors the kernel has not taken yet.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.ring.waiting()
    }

    /// The kernel sends only when called: [`XskSocket::wake_tx`](super::XskSocket::wake_tx).
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

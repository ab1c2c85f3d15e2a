//! The four rings, with tokens instead of addresses: a token goes in, and comes out when the kernel has
//! finished with it.

use std::sync::Arc;

use super::ring::{Consumer, Producer};
use super::umem::{Chunk, Returned, Umem};

/// Gives empty chunks to the kernel.
#[derive(Debug)]
pub struct FillRing {
    ring: Producer<u64>,
    umem: Arc<Umem>,
}

impl FillRing {
    pub(super) fn new(ring: Producer<u64>, umem: Arc<Umem>) -> FillRing {
        FillRing { ring, umem }
    }

    /// Returns how many chunks fit; exact if fewer than `want`.
    #[inline]
    pub fn room(&mut self, want: u32) -> u32 {
        self.ring.room(want)
    }

    /// Pushes a token of one UMEM chunk; returns it if the ring is full or the chunk belongs to another
    /// memory.
    #[inline]
    pub fn push(&mut self, chunk: Chunk) -> Result<(), Chunk> {
        if !chunk.is_of(&self.umem.memory) || self.ring.room(1) == 0 {
            return Err(chunk);
        }
        self.ring.push(chunk.offset());
        chunk.lend(1);
        Ok(())
    }

    /// Publishes the pushed chunks to the kernel.
    #[inline]
    pub fn submit(&mut self) {
        self.ring.submit();
    }

    /// Number of submitted chunks that the kernel has not taken yet.
    pub fn waiting(&mut self) -> u32 {
        self.ring.waiting()
    }

    /// Whether the kernel found the ring empty and takes the chunks that are in it now only after
    /// [`XskSocket::wake_rx`](super::XskSocket::wake_rx).
    #[inline]
    pub fn needs_wakeup(&mut self) -> bool {
        self.ring.leaves_entries()
    }
}

/// Returns the chunks of sent packets.
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

    /// Returns the next chunk of which all descriptors have come back.
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

    /// Entries that named no chunk the kernel had; each one is a bug, here or in the kernel.
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
    /// The chunk that holds it.
    pub chunk: Chunk,
    /// Offset of its first byte.
    pub offset: usize,
    /// Its length.
    pub len: usize,
    /// The packet continues in the next piece.
    pub more: bool,
}

impl RxPiece {
    /// The received bytes, limited to the chunk.
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

    /// Returns the next piece. Entries that were read are released to the kernel at the end of each
    /// batch.
    #[inline]
    pub fn pop(&mut self) -> Option<RxPiece> {
        while let Some(desc) = self.ring.pop() {
            // A received descriptor is always a complete unit: only the completion ring returns parts.
            if let Returned::Whole(chunk, offset) = self.umem.take_back(desc.addr) {
                let more = desc.options & libc::XDP_PKT_CONTD != 0;
                return Some(RxPiece { chunk, offset: offset as usize, len: desc.len as usize, more });
            }
            self.strays += 1;
        }
        None
    }

    /// Releases the entries that were read to the kernel, if reading stopped before the end.
    #[inline]
    pub fn release(&mut self) {
        self.ring.release();
    }

    /// Entries that named no chunk the kernel had; each one is a bug, here or in the kernel.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays
    }
}

/// Sends packets.
#[derive(Debug)]
pub struct TxRing {
    ring: Producer<libc::xdp_desc>,
    umem: Arc<Umem>,
}

impl TxRing {
    pub(super) fn new(ring: Producer<libc::xdp_desc>, umem: Arc<Umem>) -> TxRing {
        TxRing { ring, umem }
    }

    /// Returns how many descriptors fit; exact if fewer than `want`.
    #[inline]
    pub fn room(&mut self, want: u32) -> u32 {
        self.ring.room(want)
    }

    /// Queues the packet of `len` bytes at `offset` of a chunk. A packet that crosses from one UMEM chunk
    /// of the unit into the next takes several descriptors. Returns the chunk if there is no space, `len`
    /// is 0 or exceeds the chunk, or the chunk belongs to another memory.
    #[inline]
    pub fn push(&mut self, chunk: Chunk, offset: usize, len: usize) -> Result<(), Chunk> {
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
        let (base, mut at) = (chunk.offset(), offset);
        while at < end {
            let until = ((at / chunk_len + 1) * chunk_len).min(end);
            let more = if until < end { libc::XDP_PKT_CONTD } else { 0 };
            self.ring.push(libc::xdp_desc {
                addr: base + at as u64,
                len: (until - at) as u32,
                options: more,
            });
            at = until;
        }
        chunk.lend(descriptors as u8);
        Ok(())
    }

    /// Publishes the pushed descriptors to the kernel.
    #[inline]
    pub fn submit(&mut self) {
        self.ring.submit();
    }

    /// Number of submitted descriptors that the kernel has not taken yet.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.ring.waiting()
    }

    /// Whether the kernel sends only when called: [`XskSocket::wake_tx`](super::XskSocket::wake_tx).
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

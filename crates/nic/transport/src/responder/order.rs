//! READs before later writes of the same queue pair (IBA 9.5: the responder executes requests in PSN order).
//!
//! A READ response is made from memory when it leaves, and by then a later WRITE or atomic may have arrived.
//! Before such a request changes bytes that an unsent READ response has to read, the responder saves them.
//! There is room for a few bytes of one READ. If the request changes more, it counts as missing: it is
//! dropped, and a sequence NAK follows the responses.

use core::ops::Range;

use super::Responder;
use super::replay::{Entry, Response};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::memory::Memory;

/// Bytes that can be saved: four words, as programs read and replace them (MPI accumulates). With half of it
/// more of these programs wait for a retransmission. The double was not tried.
const SAVED_MAX: usize = 32;

/// Bytes of one READ as they were before a later request changed the memory. After the response has left,
/// they stay for duplicates of the READ until another READ needs the room.
#[derive(Debug)]
pub(super) struct SavedBytes {
    /// Number of the first response packet of the READ.
    read: u64,
    /// Their offsets in the READ; empty if there are none.
    range: Range<u64>,
    bytes: [u8; SAVED_MAX],
}

impl SavedBytes {
    pub(super) fn new() -> Self {
        Self { read: 0, range: 0..0, bytes: [0; SAVED_MAX] }
    }

    /// Drops the bytes.
    pub(super) fn clear(&mut self) {
        self.range = 0..0;
    }

    /// Whether these bytes of the READ are saved.
    fn covers(&self, entry: &Entry, range: &Range<u64>) -> bool {
        self.read == entry.first && self.range.start <= range.start && range.end <= self.range.end
    }

    /// Replaces those bytes of the READ at `offset` that were saved.
    #[inline]
    pub(super) fn restore(&self, entry: &Entry, offset: u64, payload: &mut [u8]) {
        let from = self.range.start.max(offset);
        let to = self.range.end.min(offset + payload.len() as u64);
        if self.read != entry.first || from >= to {
            return;
        }
        let place = |at: u64, base: u64| (at - base) as usize;
        let saved = self.bytes.get(place(from, self.range.start)..place(to, self.range.start));
        let target = payload.get_mut(place(from, offset)..place(to, offset));
        if let (Some(saved), Some(target)) = (saved, target) {
            target.copy_from_slice(saved);
        }
    }
}

impl Responder {
    /// A request is about to change `len` bytes at `va`: saves what unsent READ responses have to read there.
    /// Addresses are compared whatever their keys are, since two keys may name the same memory.
    ///
    /// # Errors
    /// `UnsentRead`: the request cannot be executed before the responses have left.
    #[inline]
    pub(super) fn before_write(
        &mut self,
        va: u64,
        len: usize,
        mem: &impl Memory,
        ep: &Endpoint,
    ) -> Result<(), Fault> {
        if self.replay.has_unsent() { self.save_overlap(va, len as u64, mem, ep) } else { Ok(()) }
    }

    #[inline(never)] // keeps the path of a WRITE short
    fn save_overlap(&mut self, va: u64, len: u64, mem: &impl Memory, ep: &Endpoint) -> Result<(), Fault> {
        let write_end = va.saturating_add(len);
        let (mut unsaved, mut is_in_use) = (None, false);
        for (entry, next) in self.replay.unsent() {
            let Response::Read { va: read_va, dma_len, .. } = entry.response else { continue };
            let unsent = (next - entry.first) * ep.mtu as u64..u64::from(dma_len);
            is_in_use |= self.saved.read == entry.first && unsent.start < self.saved.range.end;
            let from = unsent.start.max(va.saturating_sub(read_va));
            let to = unsent.end.min(write_end.saturating_sub(read_va));
            if from < to
                && !self.saved.covers(&entry, &(from..to))
                && unsaved.replace((entry, from..to)).is_some()
            {
                return Err(Fault::UnsentRead);
            }
        }
        let Some((Entry { first, response: Response::Read { pd, va, r_key, .. }, .. }, range)) = unsaved
        else {
            return Ok(());
        };
        let len = (range.end - range.start) as usize;
        let room = self.saved.bytes.get_mut(..len).filter(|_| !is_in_use).ok_or(Fault::UnsentRead)?;
        self.saved.range = 0..0;
        // If the memory was deregistered, the response fails when it is due.
        if mem.read_remote(pd, ep.qpn, r_key, va.wrapping_add(range.start), room).is_ok() {
            (self.saved.read, self.saved.range) = (first, range);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;

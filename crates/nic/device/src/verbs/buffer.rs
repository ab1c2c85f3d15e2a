//! Registered memory that the device owns: RDMA without `unsafe` in the program.

use std::sync::Arc;

use transport::{Access, Sge, VerbsError};
use wire::{Lkey, Rkey};

use super::quota::no_memory;
use super::{Mr, Pd};
use crate::mr::DmaMemory;

/// Zeroed, registered memory. Bytes are only copied in and out, so peers may write it at any time.
pub struct Buffer {
    // Declared before the memory: dropping a buffer deregisters before it frees.
    mr: Mr,
    memory: Arc<DmaMemory>,
}

impl Pd {
    /// Allocates and registers `len` bytes; peers address them by [`Buffer::addr`].
    ///
    /// # Errors
    /// As [`Pd::reg_mr`]; `ENOMEM` if the kernel has no memory.
    pub fn alloc_buffer(&self, len: usize, access: Access) -> Result<Buffer, VerbsError> {
        let memory = DmaMemory::zeroed(len).ok_or_else(|| no_memory(len))?;
        let mr = self.register_owned(&memory, access)?;
        Ok(Buffer { mr, memory: Arc::new(memory) })
    }
}

impl Buffer {
    /// Returns its registration.
    #[must_use]
    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Returns the address of the first byte for work requests and peers; 0 if it is registered zero-based.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.mr.iova()
    }

    pub(super) fn memory(&self) -> &Arc<DmaMemory> {
        &self.memory
    }

    /// Returns the key for local work requests.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.mr.lkey()
    }

    /// Returns the key to give to peers.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// True if the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.len() == 0
    }

    /// Returns a scatter/gather element for `len` bytes at `offset`.
    #[must_use]
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.addr() + offset as u64, length: len as u32, lkey: self.lkey() }
    }

    /// Copies `src` to `offset`.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn write(&self, offset: usize, src: &[u8]) {
        self.memory.write(offset, src);
    }

    /// Copies from `offset` to `dst`.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn read(&self, offset: usize, dst: &mut [u8]) {
        self.memory.read(offset, dst);
    }

    /// Returns the current byte at `offset`, for polling the byte that a peer writes last.
    ///
    /// # Panics
    /// If `offset` is not inside the buffer.
    #[must_use]
    pub fn load(&self, offset: usize) -> u8 {
        self.memory.load(offset)
    }
}

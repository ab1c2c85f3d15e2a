//! Memory of the program that the peer may write directly (riomap, riounmap, riowrite).

use std::io;
use std::mem;

use crate::errno;
use crate::stream::{Phase, State, Stream};
use crate::transfer::Flags;
use crate::wait::Waitable;
use roxie::verbs::{Mr, Pd};

/// The mappings of one socket.
#[derive(Default)]
pub(super) struct Iomaps(Vec<Mapping>);

struct Mapping {
    mr: Mr,
    offset: u64,
    /// Index in the peer's table, if the peer may write the mapping.
    index: Option<u16>,
    announced: bool,
}

impl Iomaps {
    fn free_index(&self, entries: u16) -> Option<u16> {
        (0..entries).find(|index| self.0.iter().all(|mapping| mapping.index != Some(*index)))
    }
}

impl Stream {
    /// Returns the protection domain for regions of [`map`](Self::map).
    ///
    /// # Errors
    /// `EINVAL` unless the socket is connected or has accepted.
    pub fn pd(&self) -> io::Result<Pd> {
        let state = self.0.lock();
        let begun = matches!(state.phase, Phase::Opening | Phase::Connected { .. });
        let endpoint = state.endpoint.as_ref().filter(|_| begun);
        Ok(endpoint.ok_or_else(|| errno(libc::EINVAL))?.pd().clone())
    }

    /// Maps a region until [`unmap`](Self::unmap). If `writable`, the next transfer announces to the peer
    /// that `offset` is its first byte.
    ///
    /// # Errors
    /// `ENOMEM` if the peer's table is full.
    /// `ENOMEM` if the peer has no entry left for it.
    pub fn map(&self, mr: Mr, offset: u64, writable: bool) -> io::Result<()> {
        let mut state = self.0.lock();
        let entries = state.endpoint.as_ref().map_or(0, |endpoint| endpoint.peer_iomaps());
        let index = if writable {
            let free = state.iomaps.free_index(entries);
            Some(free.ok_or_else(|| errno(libc::ENOMEM))?)
        } else {
            None
        };
        state.iomaps.0.push(Mapping { mr, offset, index, announced: !writable });
        Ok(())
    }

    /// Removes the mapping of `len` bytes at `addr`.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn unmap(&self, addr: u64, len: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        let found = state.iomaps.0.iter().position(|m| m.mr.addr() == addr && m.mr.len() == len);
        let index = found.ok_or_else(|| errno(libc::EINVAL))?;
        drop(state.iomaps.0.remove(index));
        Ok(())
    }

    /// Writes `data` to the peer's mapping at `offset`; the peer's program is not notified. Returns the
    /// number of bytes: fewer than `data` has if non-blocking, or at the end of the mapping.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    /// As [`send`](Self::send).
    pub fn write_mapped(&self, data: &[u8], offset: u64, flags: Flags) -> io::Result<usize> {
        self.transmit(data.len(), flags, |endpoint, done| {
            let at = endpoint.find_iomap(offset.wrapping_add(done as u64))?;
            Some(endpoint.write_direct(&data[done..], at))
        })
    }
}

impl State {
    /// Announces new mappings to the peer; `None` if there is no space now.
    pub(super) fn push_iomaps(&mut self) -> Option<Result<(), i32>> {
        let mut maps = mem::take(&mut self.iomaps);
        let mut complete = true;
        for mapping in maps.0.iter_mut().filter(|mapping| !mapping.announced) {
            let (Some(endpoint), Some(index)) = (self.endpoint.as_mut(), mapping.index) else { continue };
            let announced = endpoint.announce_iomap(index, &mapping.mr, mapping.offset);
            match self.ok_or_fail(announced) {
                Some(true) => mapping.announced = true,
                Some(false) => complete = false,
                None => break,
            }
        }
        self.iomaps = maps;
        if self.phase == Phase::Failed {
            return Some(Err(self.error.unwrap_or(libc::ECONNRESET)));
        }
        complete.then_some(Ok(()))
    }
}

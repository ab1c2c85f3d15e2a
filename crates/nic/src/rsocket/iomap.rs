//! Memory of the program that a peer may write to directly (riomap, riounmap, riowrite).

use std::io;
use std::mem;

use super::stream::{Phase, State, Stream};
use super::transfer::Flags;
use super::wait::Waits;
use crate::verbs::{Mr, Pd};

/// Mappings of one socket.
#[derive(Default)]
pub(super) struct Iomaps(Vec<Mapping>);

struct Mapping {
    mr: Mr,
    offset: u64,
    /// Its entry in the peer's table, if the peer may write to it.
    index: Option<u16>,
    told: bool,
}

impl Iomaps {
    fn free_index(&self, entries: u16) -> Option<u16> {
        (0..entries).find(|index| self.0.iter().all(|mapping| mapping.index != Some(*index)))
    }
}

impl Stream {
    /// The domain that memory for [`map`](Self::map) must be registered in.
    ///
    /// # Errors
    /// `EINVAL` unless there is a connection, or one that was accepted.
    pub fn pd(&self) -> io::Result<Pd> {
        let state = self.0.lock();
        let begun = matches!(state.phase, Phase::Opening | Phase::Connected { .. });
        let endpoint = state.endpoint.as_ref().filter(|_| begun);
        Ok(endpoint.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?.pd().clone())
    }

    /// Keeps a region until [`unmap`](Self::unmap). If the peer may write to it, it is told with the next transfer that
    /// `offset` stands for its first byte.
    ///
    /// # Errors
    /// `ENOMEM` if the peer has no entry left for it.
    pub fn map(&self, mr: Mr, offset: u64, writable: bool) -> io::Result<()> {
        let mut state = self.0.lock();
        let entries = state.endpoint.as_ref().map_or(0, |endpoint| endpoint.peer_iomaps());
        let index = if writable {
            let free = state.iomaps.free_index(entries);
            Some(free.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?)
        } else {
            None
        };
        state.iomaps.0.push(Mapping { mr, offset, index, told: !writable });
        Ok(())
    }

    /// Ends that for the region of `len` bytes at `addr`.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn unmap(&self, addr: u64, len: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        let found = state.iomaps.0.iter().position(|m| m.mr.addr() == addr && m.mr.len() == len);
        let index = found.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        drop(state.iomaps.0.remove(index));
        Ok(())
    }

    /// Writes `data` to what the peer has mapped at `offset`; the peer's program does not notice. Returns how much was
    /// written: all of it, unless it shall not wait or runs into an offset that nothing is mapped at.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn write_mapped(&self, data: &[u8], offset: u64, flags: Flags) -> io::Result<usize> {
        self.transmit(data.len(), flags, |endpoint, done| {
            let at = endpoint.find_iomap(offset.wrapping_add(done as u64))?;
            Some(endpoint.write_beside(&data[done..], at))
        })
    }
}

impl State {
    /// Tells the peer of mappings it does not know; `None` if there is no room to.
    pub(super) fn push_iomaps(&mut self) -> Option<Result<(), i32>> {
        let mut maps = mem::take(&mut self.iomaps);
        let mut complete = true;
        for mapping in maps.0.iter_mut().filter(|mapping| !mapping.told) {
            let (Some(endpoint), Some(index)) = (self.endpoint.as_mut(), mapping.index) else { continue };
            let told = endpoint.tell_iomap(index, &mapping.mr, mapping.offset);
            match self.note(told) {
                Some(true) => mapping.told = true,
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

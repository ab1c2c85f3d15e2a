//! Reading trains out of a ring.

use std::net::IpAddr;

use wire::Gid;

use super::{ALIGN, HEADER_LEN, TRAIN_BYTES_MAX, TrainHeader};
use crate::bag::RingLink;
use crate::port::{RxQueue, RxTrain};
use crate::sys::byte_ring::{Broken, Consumer};

/// A ring that another process writes for us.
#[derive(Debug)]
pub(super) struct Inbound {
    ring: Consumer,
    pub(super) link: RingLink,
    /// Nothing was read yet.
    pub(super) is_fresh: bool,
    /// Its writer is gone; what it has left is still read.
    pub(super) has_ended: bool,
    /// What it holds makes no sense.
    pub(super) is_broken: bool,
}

impl Inbound {
    pub(super) fn new(ring: Consumer, link: RingLink) -> Inbound {
        Inbound { ring, link, is_fresh: true, has_ended: false, is_broken: false }
    }

    /// Whether there is something to read.
    pub(super) fn has_something(&mut self) -> bool {
        self.ring.available() != Ok(0)
    }

    /// Hands over at most `trains_max` trains, copied to `buffer`; returns how many.
    #[inline]
    pub(super) fn turn(
        &mut self,
        buffer: &mut [u8],
        trains_max: usize,
        f: &mut dyn FnMut(&RxTrain<'_>),
    ) -> Result<usize, Broken> {
        let available = self.ring.available()?;
        let (mut at, mut trains) = (0, 0);
        while at < available && trains < trains_max {
            let mut header: TrainHeader = [0; HEADER_LEN];
            if !self.ring.read(at, &mut header) {
                return Err(Broken);
            }
            let (len, segment) = (u32_at(&header, 0) as usize, usize::from(u16_at(&header, 4)));
            let place = buffer.get_mut(..len).filter(|_| len <= TRAIN_BYTES_MAX);
            let Some(bytes) = place.filter(|_| segment > 0 && segment <= len) else { return Err(Broken) };
            if !self.ring.read(at + HEADER_LEN, bytes) {
                return Err(Broken);
            }
            at += (HEADER_LEN + len).next_multiple_of(ALIGN);
            trains += 1;
            let src = ip_at(&header, 16);
            f(&RxTrain {
                src,
                src_port: u16_at(&header, 6),
                dst: ip_at(&header, 32),
                dst_port: u16_at(&header, 8),
                tos: header[10],
                ttl: header[11],
                segment,
                macs: None,
                ip_id: src.is_ipv4().then_some(0),
                bytes,
                queue: RxQueue::Slot,
            });
        }
        if at > available {
            return Err(Broken);
        }
        if at > 0 {
            self.ring.release(at);
        }
        Ok(trains)
    }

    /// See [`Port::may_wait`](crate::port::Port::may_wait).
    pub(super) fn may_sleep(&mut self) -> bool {
        self.ring.may_sleep()
    }

    /// See [`Port::has_waited`](crate::port::Port::has_waited).
    pub(super) fn wakes(&mut self) {
        self.ring.wakes();
    }
}

fn u16_at(header: &TrainHeader, at: usize) -> u16 {
    header[at..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(header: &TrainHeader, at: usize) -> u32 {
    header[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn ip_at(header: &TrainHeader, at: usize) -> IpAddr {
    Gid(header[at..].first_chunk().copied().unwrap_or_default()).ip()
}

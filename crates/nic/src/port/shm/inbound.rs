//! Reading batches out of a ring.

use std::net::IpAddr;

use wire::icrc::ICRC_LEN;
use wire::{Bth, Gid};

use super::{ALIGN, BATCH_BYTES_MAX, BatchHeader, HEADER_LEN};
use crate::port::{RxBatch, RxQueue, put_icrc};
use crate::registry::RingLink;
use sys::byte_ring::{Broken, Consumer};

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

/// A turn ends behind so many batches, bytes or packets. Of the last two, these are half of what a queue pair wants acknowledged at once:
/// its peer shall go on while the next turn is taken, not wait for the end of a window.
const TURN_BATCHES: usize = 16;
const TURN_BYTES: usize = 64 * 1024;
const TURN_PACKETS: usize = 62;

impl Inbound {
    pub(super) fn new(ring: Consumer, link: RingLink) -> Inbound {
        Inbound { ring, link, is_fresh: true, has_ended: false, is_broken: false }
    }

    /// Whether there is something to read.
    pub(super) fn has_something(&mut self) -> bool {
        self.ring.available() != Ok(0)
    }

    /// Hands over some batches, copied to `buffer`, where they get ICRCs if others than the transport look at them; returns how many.
    #[inline]
    pub(super) fn turn(
        &mut self,
        buffer: &mut [u8],
        with_icrc: bool,
        f: &mut dyn FnMut(&RxBatch<'_>),
    ) -> Result<usize, Broken> {
        let mut available = self.ring.available()?;
        let (mut batches, mut taken, mut packets) = (0, 0, 0);
        while available > 0 && batches < TURN_BATCHES && taken < TURN_BYTES && packets < TURN_PACKETS {
            let mut header: BatchHeader = [0; HEADER_LEN];
            if !self.ring.read(0, &mut header) {
                return Err(Broken);
            }
            let (len, segment) = (u32_at(&header, 0) as usize, usize::from(u16_at(&header, 4)));
            let place = buffer.get_mut(..len).filter(|_| len <= BATCH_BYTES_MAX);
            let Some(bytes) = place.filter(|_| segment > 0 && segment <= len) else { return Err(Broken) };
            let whole = (HEADER_LEN + len).next_multiple_of(ALIGN);
            if whole > available || !self.ring.read(HEADER_LEN, bytes) {
                return Err(Broken);
            }
            // Its writer goes on there while this is worked on.
            self.ring.release(whole);
            available -= whole;
            taken += whole;
            packets += len.div_ceil(segment);
            batches += 1;
            let src = ip_at(&header, 16);
            let mut batch = RxBatch {
                src,
                src_port: u16_at(&header, 6),
                dst: ip_at(&header, 32),
                dst_port: u16_at(&header, 8),
                tos: header[10],
                ttl: header[11],
                segment,
                macs: None,
                ip_id: src.is_ipv4().then_some(0),
                bytes: &[],
                queue: RxQueue::Ring,
            };
            if with_icrc {
                put_icrcs(&batch, bytes);
                batch.queue = RxQueue::Slot;
            }
            f(&RxBatch { bytes, ..batch });
        }
        Ok(batches)
    }

    /// Asks the writer for a wake-up; false if there is something to read, and then it was not asked.
    pub(super) fn may_sleep(&mut self) -> bool {
        self.ring.may_sleep()
    }

    /// Withdraws the request of [`may_sleep`](Inbound::may_sleep).
    pub(super) fn wakes(&mut self) {
        self.ring.wakes();
    }
}

/// Makes the ICRCs of a batch that has the headers of `batch`.
#[cold]
fn put_icrcs(batch: &RxBatch<'_>, bytes: &mut [u8]) {
    // Where there is none its packets are refused.
    let Some(header) = batch.icrc_header() else { return };
    for (packet, id) in bytes.chunks_mut(batch.segment).zip(0u16..) {
        if packet.len() >= Bth::LEN + ICRC_LEN {
            put_icrc(&header, id, packet);
        }
    }
}

fn u16_at(header: &BatchHeader, at: usize) -> u16 {
    header[at..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(header: &BatchHeader, at: usize) -> u32 {
    header[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn ip_at(header: &BatchHeader, at: usize) -> IpAddr {
    Gid(header[at..].first_chunk().copied().unwrap_or_default()).ip()
}

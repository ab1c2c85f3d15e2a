//! Reading trains out of a ring.

use std::net::IpAddr;

use wire::icrc::ICRC_LEN;
use wire::{Bth, Gid};

use super::{ALIGN, HEADER_LEN, TRAIN_BYTES_MAX, TrainHeader};
use crate::port::{RxQueue, RxTrain, put_icrc};
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

/// A turn ends behind so many trains, bytes or packets. Of the last two, these are half of what a queue pair wants acknowledged at once:
/// its peer shall go on while the next turn is taken, not wait for the end of a window.
const TURN_TRAINS: usize = 16;
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

    /// Hands over some trains, copied to `buffer`, where they get ICRCs if others than the transport look at them; returns how many.
    #[inline]
    pub(super) fn turn(
        &mut self,
        buffer: &mut [u8],
        is_watched: bool,
        f: &mut dyn FnMut(&RxTrain<'_>),
    ) -> Result<usize, Broken> {
        let mut available = self.ring.available()?;
        let (mut trains, mut taken, mut packets) = (0, 0, 0);
        while available > 0 && trains < TURN_TRAINS && taken < TURN_BYTES && packets < TURN_PACKETS {
            let mut header: TrainHeader = [0; HEADER_LEN];
            if !self.ring.read(0, &mut header) {
                return Err(Broken);
            }
            let (len, segment) = (u32_at(&header, 0) as usize, usize::from(u16_at(&header, 4)));
            let place = buffer.get_mut(..len).filter(|_| len <= TRAIN_BYTES_MAX);
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
            trains += 1;
            let src = ip_at(&header, 16);
            let mut train = RxTrain {
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
            if is_watched {
                put_icrcs(&train, bytes);
                train.queue = RxQueue::Slot;
            }
            f(&RxTrain { bytes, ..train });
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

/// Makes the ICRCs of a train that has the headers of `train`.
#[cold]
fn put_icrcs(train: &RxTrain<'_>, bytes: &mut [u8]) {
    // Where there is none its packets are refused.
    let Some(header) = train.icrc_header() else { return };
    for (packet, id) in bytes.chunks_mut(train.segment).zip(0u16..) {
        if packet.len() >= Bth::LEN + ICRC_LEN {
            put_icrc(&header, id, packet);
        }
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

//! Reading batches from a ring.

use std::net::IpAddr;

use wire::icrc::ICRC_LEN;
use wire::{Bth, Gid};

use super::{ALIGN, BATCH_BYTES_MAX, BatchHeader, HEADER_LEN};
use crate::port::{Icrc, RxBatch, RxQueue, put_icrc};
use crate::registry::RingLink;
use sys::byte_ring::{Broken, Consumer};

/// The consumer of a ring that another process writes.
#[derive(Debug)]
pub(super) struct Inbound {
    ring: Consumer,
    pub(super) link: RingLink,
    /// No batch was read yet.
    pub(super) is_unread: bool,
    /// The producer process has ended; its last batches are still read.
    pub(super) has_ended: bool,
    /// The ring holds an invalid batch.
    pub(super) is_broken: bool,
}

/// Limits of one round: batches, bytes and packets. The last two are half of what a queue pair wants
/// acknowledged at once, so that the peer continues during the next round instead of waiting for the end
/// of a window.
const ROUND_BATCHES: usize = 16;
const ROUND_BYTES: usize = 64 * 1024;
const ROUND_PACKETS: usize = 62;

impl Inbound {
    pub(super) fn new(ring: Consumer, link: RingLink) -> Inbound {
        Inbound { ring, link, is_unread: true, has_ended: false, is_broken: false }
    }

    /// Whether there is something to read, or the ring is broken.
    pub(super) fn has_data(&mut self) -> bool {
        self.ring.available() != Ok(0)
    }

    /// Hands over one round of batches, copied to `buffer`; fills in their ICRCs if `with_icrc`. Returns
    /// how many.
    #[inline]
    pub(super) fn receive_round(
        &mut self,
        buffer: &mut [u8],
        with_icrc: bool,
        f: &mut dyn FnMut(&RxBatch<'_>),
    ) -> Result<usize, Broken> {
        read_round(&mut self.ring, buffer, with_icrc, f)
    }

    /// Asks the writer for a wake-up; false if there is something to read, and then it was not asked.
    pub(super) fn request_wakeup(&mut self) -> bool {
        self.ring.request_wakeup()
    }

    /// Withdraws the request of [`request_wakeup`](Inbound::request_wakeup).
    pub(super) fn withdraw_wakeup(&mut self) {
        self.ring.withdraw_wakeup();
    }
}

#[inline]
fn read_round(
    ring: &mut Consumer,
    buffer: &mut [u8],
    with_icrc: bool,
    f: &mut dyn FnMut(&RxBatch<'_>),
) -> Result<usize, Broken> {
    let mut available = ring.available()?;
    let (mut batches, mut taken, mut packets) = (0, 0, 0);
    while available > 0 && batches < ROUND_BATCHES && taken < ROUND_BYTES && packets < ROUND_PACKETS {
        let mut header: BatchHeader = [0; HEADER_LEN];
        if !ring.read(0, &mut header) {
            return Err(Broken);
        }
        let (len, segment) = (u32_at(&header, 0) as usize, usize::from(u16_at(&header, 4)));
        let place = buffer.get_mut(..len).filter(|_| len <= BATCH_BYTES_MAX);
        let Some(bytes) = place.filter(|_| segment > 0 && segment <= len) else { return Err(Broken) };
        let whole = (HEADER_LEN + len).next_multiple_of(ALIGN);
        if whole > available || !ring.read(HEADER_LEN, bytes) {
            return Err(Broken);
        }
        // The producer reuses the space while the copy is processed.
        ring.release(whole);
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
            ifindex: 0,
            tos: header[10],
            ttl: header[11],
            segment,
            macs: None,
            ip_id: src.is_ipv4().then_some(0),
            bytes: &[],
            queue: RxQueue::Slot,
            icrc: Icrc::Omitted,
        };
        if with_icrc {
            put_icrcs(&batch, bytes);
            batch.icrc = Icrc::Present;
        }
        f(&RxBatch { bytes, ..batch });
    }
    Ok(batches)
}

/// Fuzz target: another process has filled the memory of a ring, and both ends read it. Bytes 0 to 15 are
/// the indices of the ring, the rest is its start.
#[cfg(feature = "fuzz")]
pub fn check(bytes: &[u8]) {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use sys::byte_ring::{Producer, RING_BYTES};

    let Some((indices, contents)) = bytes.split_at_checked(16) else { return };
    let (mut producer, fd) = Producer::create().expect("a memory file");
    let mut consumer = Consumer::open(fd.as_fd()).expect("a ring");
    assert!(producer.room(1).is_ok_and(|room| room == RING_BYTES) && producer.write(0, &[0; 64]));
    producer.publish(64);
    let file = File::from(fd);
    // In half of the inputs the writer's index fits the contents.
    let fits = indices[0] % 2 == 0;
    let published = if fits { &(contents.len() as u64).to_le_bytes() } else { &indices[..8] };
    let fill = |part: &[u8], at| file.write_all_at(part, at).expect("a write to memory");
    fill(published, 0);
    fill(&indices[8..], 128);
    fill(&contents[..contents.len().min(RING_BYTES)], 4096);
    let mut buffer = vec![0; BATCH_BYTES_MAX];
    let mut batches = 0;
    let mut seen = |batch: &RxBatch<'_>| assert!(batch.segment > 0 && batch.segment <= batch.bytes.len());
    while let Ok(more @ 1..) = read_round(&mut consumer, &mut buffer, indices[1] % 2 == 0, &mut seen) {
        batches += more;
        assert!(batches <= RING_BYTES / ALIGN, "a ring has an end");
    }
    if let Ok(room) = producer.room(RING_BYTES) {
        assert!(room <= RING_BYTES && !producer.write(room, &[0]));
    }
}

/// Fills in the ICRCs of a batch with the headers of `batch`.
#[cold]
fn put_icrcs(batch: &RxBatch<'_>, bytes: &mut [u8]) {
    // Without a pseudo header the packets are refused later.
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

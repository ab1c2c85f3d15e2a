//! Copies the front of packets to user space through a ring buffer.

use super::emit::Emit;
use super::{RecipeError, in_range};
use crate::helper::Helper;
use crate::insn::{AluOp, Cond, Reg, Size};
use crate::map::MapDef;
use crate::xdp::XdpMd;

/// Name of the ring buffer. A record is a [`SampleHeader`] and `snap_len` bytes, of which `captured` are
/// valid.
pub const SAMPLES: &str = "samples";
/// Name of the per-CPU array with one value of two 64-bit numbers: packets seen, and samples lost because the
/// ring was full.
pub const SAMPLE_STATE: &str = "sample_state";

// `linux/bpf.h`.
const RINGBUF_AVAIL_DATA: i32 = 0;
const RINGBUF_NO_WAKEUP: i32 = 1;
const RINGBUF_FORCE_WAKEUP: i32 = 2;

/// Copies the front of packets to user space.
///
/// The kernel wakes the consumer when `wakeup_bytes` are in the ring, and not before; a sleeping consumer
/// also needs a timeout. Each record takes its full length in the ring, even for a shorter packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sample {
    /// Maximum number of bytes copied from a packet, 1..=16384.
    pub snap_len: u16,
    /// Sampling interval: each CPU copies one of this many packets; 1 copies all.
    pub every: u32,
    /// Size of the ring in bytes: a power of two, at least 4096, with room for two records.
    pub ring_bytes: u32,
    /// Fill level in bytes at which the consumer is woken, less than `ring_bytes`; 0 wakes it for every
    /// sample.
    pub wakeup_bytes: u32,
}

/// Header in front of each copy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SampleHeader {
    /// Time of the copy, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// Length of the packet in bytes.
    pub len: u32,
    /// Number of packet bytes that follow.
    pub captured: u32,
    /// Index of the interface that received the packet.
    pub ifindex: u32,
    /// Receive queue of the packet.
    pub rx_queue: u32,
    /// Number of packets that this CPU had seen before.
    pub sequence: u64,
}

impl SampleHeader {
    /// Length in the ring, in bytes.
    pub const LEN: usize = 32;

    const TIME: i16 = 0;
    const PACKET_LEN: i16 = 8;
    const CAPTURED: i16 = 12;
    const IFINDEX: i16 = 16;
    const RX_QUEUE: i16 = 20;
    const SEQUENCE: i16 = 24;

    /// Decodes a record. Returns `None` if it is shorter than the header and the bytes that the header
    /// states.
    #[must_use]
    pub fn parse(record: &[u8]) -> Option<(SampleHeader, &[u8])> {
        let (header, copy) = record.split_first_chunk::<{ Self::LEN }>()?;
        let number = |at: i16, len: usize| {
            header[at as usize..][..len].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let word = |at| number(at, 4) as u32;
        let parsed = SampleHeader {
            time_ns: number(Self::TIME, 8),
            len: word(Self::PACKET_LEN),
            captured: word(Self::CAPTURED),
            ifindex: word(Self::IFINDEX),
            rx_queue: word(Self::RX_QUEUE),
            sequence: number(Self::SEQUENCE, 8),
        };
        Some((parsed, copy.get(..parsed.captured as usize)?))
    }
}

impl Sample {
    /// Maximum of [`snap_len`](Sample::snap_len).
    pub const SNAP_MAX: u16 = 16384;
    /// Minimum of [`ring_bytes`](Sample::ring_bytes): a page.
    pub const RING_MIN: u32 = 4096;

    pub(super) fn emit(&self, emit: &mut Emit) -> Result<(), RecipeError> {
        let record_len = SampleHeader::LEN as i32 + i32::from(self.snap_len);
        in_range((1..=Self::SNAP_MAX).contains(&self.snap_len), "the snap length")?;
        let every = i32::try_from(self.every).ok().filter(|&every| every > 0);
        let every = every.ok_or(RecipeError::Range("the sampling interval"))?;
        let fits = self.ring_bytes.is_power_of_two()
            && self.ring_bytes >= Self::RING_MIN
            && i64::from(self.ring_bytes) >= 2 * i64::from(record_len);
        in_range(fits, "the size of the sample ring")?;
        let wakeup = i32::try_from(self.wakeup_bytes).ok().filter(|_| self.wakeup_bytes < self.ring_bytes);
        let wakeup = wakeup.ok_or(RecipeError::Range("the fill level for waking the consumer"))?;

        let ring = emit.asm.map(MapDef::ringbuf(SAMPLES, self.ring_bytes));
        let state = emit.asm.map(MapDef::percpu_array(SAMPLE_STATE, 16, 1));
        let end = emit.asm.label();

        // R7: state. R9: packets seen before this one.
        emit.lookup_index(state, 0);
        emit.if_null(end);
        emit.asm.mov(Reg::R7, Reg::R0).load(Size::Dw, Reg::R9, Reg::R7, 0);
        emit.add_to(Reg::R7, 0, 1);
        if every > 1 {
            emit.asm.mov(Reg::R1, Reg::R9).alu(AluOp::Mod, Reg::R1, every);
            emit.asm.branch(Cond::Ne, Reg::R1, 0, end);
        }

        // R8: record.
        let reserved = emit.asm.label();
        emit.asm.load_map(Reg::R1, ring).mov(Reg::R2, record_len).mov(Reg::R3, 0);
        emit.asm.call(Helper::RingbufReserve).branch(Cond::Ne, Reg::R0, 0, reserved);
        emit.add_to(Reg::R7, 8, 1);
        emit.asm.jump(end).bind(reserved).mov(Reg::R8, Reg::R0);
        let asm = &mut emit.asm;
        asm.store(Size::Dw, Reg::R8, SampleHeader::SEQUENCE, Reg::R9);
        asm.call(Helper::KtimeGetNs).store(Size::Dw, Reg::R8, SampleHeader::TIME, Reg::R0);
        for (field, off) in
            [(XdpMd::IngressIfindex, SampleHeader::IFINDEX), (XdpMd::RxQueueIndex, SampleHeader::RX_QUEUE)]
        {
            asm.load_ctx(Reg::R1, Reg::R6, field).store(Size::W, Reg::R8, off, Reg::R1);
        }

        // R9: number of bytes to copy, 1..=snap_len. The kernel's verifier needs to see both bounds.
        let (fits, copied, wake) = (asm.label(), asm.label(), asm.label());
        asm.mov(Reg::R1, Reg::R6).call(Helper::XdpGetBuffLen);
        asm.mov(Reg::R9, Reg::R0).store(Size::W, Reg::R8, SampleHeader::PACKET_LEN, Reg::R9);
        asm.store(Size::W, Reg::R8, SampleHeader::CAPTURED, 0);
        asm.branch(Cond::Eq, Reg::R9, 0, copied);
        asm.branch(Cond::Le, Reg::R9, i32::from(self.snap_len), fits).mov(Reg::R9, i32::from(self.snap_len));
        asm.bind(fits).mov(Reg::R1, Reg::R6).mov(Reg::R2, 0);
        asm.mov(Reg::R3, Reg::R8).add(Reg::R3, SampleHeader::LEN as i32);
        asm.mov(Reg::R4, Reg::R9).call(Helper::XdpLoadBytes).branch(Cond::Ne, Reg::R0, 0, copied);
        asm.store(Size::W, Reg::R8, SampleHeader::CAPTURED, Reg::R9);
        asm.bind(copied);

        asm.load_map(Reg::R1, ring).mov(Reg::R2, RINGBUF_AVAIL_DATA).call(Helper::RingbufQuery);
        asm.mov(Reg::R2, RINGBUF_FORCE_WAKEUP).branch(Cond::Ge, Reg::R0, wakeup, wake);
        asm.mov(Reg::R2, RINGBUF_NO_WAKEUP);
        asm.bind(wake).mov(Reg::R1, Reg::R8).call(Helper::RingbufSubmit);
        asm.bind(end);
        Ok(())
    }
}

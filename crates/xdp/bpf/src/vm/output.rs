//! Helpers that send records to user space.

use super::call::{Call, E2BIG, EFAULT, EINVAL, failed};
use super::outcome::FaultKind;
use crate::map::{MapKind, Ring};

type Answer = Result<u64, FaultKind>;

const EAGAIN: i64 = -11;
const ENOSPC: i64 = -28;

/// Maximum number of reserved records that a program may hold at once.
const RESERVED_MAX: usize = 64;

// `linux/bpf.h`.
const NO_WAKEUP: u64 = 1;
const FORCE_WAKEUP: u64 = 2;
const INDEX_MASK: u64 = 0xffff_ffff;
const CONTEXT_LEN_MASK: u64 = 0xfffff << 32;

fn ring<'c>(call: &Call<'c, '_, '_>, arg: usize, kind: MapKind) -> Result<(usize, &'c Ring), FaultKind> {
    let (index, map) = call.map(arg)?;
    match map.ring() {
        Some(ring) if map.def().kind == kind => Ok((index, ring)),
        _ => Err(FaultKind::Argument),
    }
}

/// Checks the flags. The readers of these rings poll, so the wake-up flags have no effect.
fn wakeup_flags_valid(flags: u64) -> bool {
    flags & !(NO_WAKEUP | FORCE_WAKEUP) == 0
}

pub(super) fn ringbuf_output(call: &mut Call<'_, '_, '_>) -> Answer {
    let (_, ring) = ring(call, 0, MapKind::Ringbuf)?;
    let [_, data, len, flags, _] = call.args;
    call.read_value(data, len)?;
    if !wakeup_flags_valid(flags) {
        return Ok(failed(EINVAL));
    }
    Ok(if ring.output(&[&call.scratch.value]) { 0 } else { failed(EAGAIN) })
}

pub(super) fn ringbuf_reserve(call: &mut Call<'_, '_, '_>) -> Answer {
    let (index, ring) = ring(call, 0, MapKind::Ringbuf)?;
    let [_, len, flags, ..] = call.args;
    if flags != 0 || call.scratch.reserved.len() >= RESERVED_MAX {
        return Ok(0);
    }
    let base = call.image.space.base_of(index).ok_or(FaultKind::Argument)?;
    let Some(offset) = ring.reserve(len) else { return Ok(0) };
    call.scratch.reserved.push((index, offset));
    Ok(base + u64::from(offset))
}

pub(super) fn ringbuf_finish(call: &mut Call<'_, '_, '_>, discard: bool) -> Answer {
    let address = call.args[0];
    let image = call.image;
    let position = call.scratch.reserved.iter().position(|&(map, offset)| {
        image.space.base_of(map).is_some_and(|base| base + u64::from(offset) == address)
    });
    let (map, offset) = call.scratch.reserved.swap_remove(position.ok_or(FaultKind::Argument)?);
    let ring = image.maps.get(map).and_then(|map| map.ring()).ok_or(FaultKind::Argument)?;
    ring.finish(offset, discard);
    Ok(0)
}

pub(super) fn ringbuf_query(call: &mut Call<'_, '_, '_>) -> Answer {
    let (_, ring) = ring(call, 0, MapKind::Ringbuf)?;
    Ok(match call.args[1] {
        0 => ring.produced() - ring.consumed(),
        1 => ring.bytes(),
        2 => ring.consumed(),
        3 => ring.produced(),
        _ => 0,
    })
}

/// `bpf_perf_event_output`: a record is the data and as many bytes of the packet as the flags say. There are
/// no rings per CPU; all records go to one ring.
pub(super) fn perf_event_output(call: &mut Call<'_, '_, '_>) -> Answer {
    call.context(0)?;
    let (_, ring) = ring(call, 1, MapKind::PerfEventArray)?;
    let [_, _, flags, data, len] = call.args;
    call.read_value(data, len)?;
    if flags & !(INDEX_MASK | CONTEXT_LEN_MASK) != 0 {
        return Ok(failed(EINVAL));
    }
    let packet_len = (flags & CONTEXT_LEN_MASK) >> 32;
    if packet_len > call.memory.buff.total_len() as u64 {
        return Ok(failed(EFAULT));
    }
    let index = flags & INDEX_MASK;
    let (_, map) = call.map(1)?;
    if index != INDEX_MASK && map.def().max_entries != 0 && index >= map.def().max_entries.into() {
        return Ok(failed(E2BIG));
    }
    let value = &mut call.scratch.value;
    // A packet is cut to 64 KiB here: `pieces` cannot return more, and no ring would hold it.
    let packet_len = packet_len.min(0xffff) as u32;
    call.memory.buff.pieces(0, packet_len, |piece| value.extend_from_slice(piece));
    Ok(if ring.output(&[value]) { 0 } else { failed(ENOSPC) })
}

//! Helpers that change the flow of control: tail calls, and functions of the program that a helper calls
//! (`bpf_loop`, `bpf_for_each_map_elem`).
//!
//! A callback runs in its own stack frame, like any function. When it returns, [`resume`] starts the next
//! iteration or ends the helper.

use super::call::{E2BIG, EINVAL, Scratch, failed};
use super::image::Image;
use super::memory::{FRAME_LEN, FRAMES, Memory};
use super::outcome::FaultKind;
use super::space;
use crate::helper::Helper;
use crate::map::MapKind;

/// Most tail calls of one run, and most iterations of one loop (`MAX_TAIL_CALL_CNT`, `BPF_MAX_LOOPS`).
const TAIL_CALLS_MAX: u32 = 33;
const ITERATIONS_MAX: u64 = 1 << 23;

/// Entry numbers that `bpf_for_each_map_elem` examines for the price of one operation. Fewer: a walk of a
/// large map with few entries exceeds the budget. More: it takes longer than the budget says.
const EXAMINED_PER_OPERATION: u64 = 8;
/// Entry numbers that are examined under the lock of the keys, for about 1 us.
const EXAMINED_MAX: u32 = 1 << 10;

/// Where a function returns to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Return {
    /// The operation after the call.
    pub(super) op: usize,
    /// Saved registers R6..R9.
    pub(super) saved: [u64; 4],
    pub(super) then: Then,
}

/// What happens when a function returns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Then {
    /// The caller continues.
    #[default]
    Continue,
    /// The next iteration of a helper.
    Iterate(Iteration),
}

/// State of a helper that calls a function repeatedly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Iteration {
    /// First operation of the function, and its length.
    callback: usize,
    len: u64,
    ctx: u64,
    done: u64,
    /// Iterations; for a map, entry numbers.
    count: u64,
    /// The map with the visited entries, and the entry number to continue from.
    map: Option<(usize, u32)>,
}

impl Iteration {
    fn position(&self) -> u64 {
        self.map.map_or(self.done, |(_, from)| from.into())
    }
}

/// Registers and call stack of a run.
pub(super) struct Frames<'r> {
    pub(super) r: &'r mut [u64; 16],
    pub(super) returns: &'r mut [Return; FRAMES - 1],
    pub(super) depth: &'r mut usize,
    pub(super) budget: &'r mut u64,
}

impl Frames<'_> {
    fn spend(&mut self, operations: u64) -> Result<(), FaultKind> {
        *self.budget = self.budget.checked_sub(operations).ok_or(FaultKind::Budget)?;
        Ok(())
    }
}

/// Executes the helper with this number. Returns the next operation.
pub(super) fn begin(
    id: i32,
    next: usize,
    frames: &mut Frames<'_>,
    image: &Image,
    memory: &mut Memory<'_, '_>,
    scratch: &mut Scratch,
) -> Result<usize, FaultKind> {
    let [r1, r2, r3, r4] = [frames.r[1], frames.r[2], frames.r[3], frames.r[4]];
    match Helper::from_id(id) {
        Some(Helper::TailCall) => tail_call(next, frames, image, scratch),
        Some(Helper::Loop) => {
            let (callback, len) = image.function(r2).ok_or(FaultKind::Argument)?;
            if r4 != 0 {
                return answer(frames, failed(EINVAL), next);
            }
            let count = r1 & 0xffff_ffff;
            if count > ITERATIONS_MAX {
                return answer(frames, failed(E2BIG), next);
            }
            let iteration = Iteration { callback, len, ctx: r3, done: 0, count, map: None };
            start(iteration, next, frames, image, memory, scratch)
        }
        Some(Helper::ForEachMapElem) => {
            let index = handle(r1).ok_or(FaultKind::Argument)?;
            let map = image.maps.get(index).ok_or(FaultKind::Argument)?;
            let (callback, len) = image.function(r2).ok_or(FaultKind::Argument)?;
            let is_walked = matches!(
                map.def().kind,
                MapKind::Array
                    | MapKind::PercpuArray
                    | MapKind::Hash
                    | MapKind::PercpuHash
                    | MapKind::LruHash
                    | MapKind::LruPercpuHash
            );
            if !is_walked {
                return Err(FaultKind::Argument);
            }
            if r4 != 0 {
                return answer(frames, failed(EINVAL), next);
            }
            let count = u64::from(map.def().max_entries);
            let iteration = Iteration { callback, len, ctx: r3, done: 0, count, map: Some((index, 0)) };
            start(iteration, next, frames, image, memory, scratch)
        }
        _ => Err(FaultKind::Argument),
    }
}

fn answer(frames: &mut Frames<'_>, r0: u64, next: usize) -> Result<usize, FaultKind> {
    frames.r[0] = r0;
    Ok(next)
}

/// Returns the index of the map in an argument.
fn handle(argument: u64) -> Option<usize> {
    (argument >> space::SEGMENT_BITS == space::HANDLES).then(|| space::offset(argument))
}

fn tail_call(
    next: usize,
    frames: &mut Frames<'_>,
    image: &Image,
    scratch: &mut Scratch,
) -> Result<usize, FaultKind> {
    let index = handle(frames.r[2]).ok_or(FaultKind::Argument)?;
    let map = image.maps.get(index).filter(|map| map.def().kind == MapKind::ProgArray);
    let map = map.ok_or(FaultKind::Argument)?;
    if frames.r[1] != space::base(space::CTX) {
        return Err(FaultKind::Argument);
    }
    let key = (frames.r[3] as u32).to_le_bytes();
    let entry = map.entry(&key).zip(map.values()).map(|(entry, values)| values.first_word(entry) as u32);
    let number = entry.and_then(|number| (number as usize).checked_sub(1));
    let program = number.and_then(|number| image.programs.get(number));
    let Some(&(start, len)) = program.filter(|_| scratch.tail_calls < TAIL_CALLS_MAX) else {
        return Ok(next);
    };
    scratch.tail_calls += 1;
    frames.spend(len)?;
    Ok(start)
}

/// Calls the function for the first time, unless there is nothing to do.
fn start(
    iteration: Iteration,
    next: usize,
    frames: &mut Frames<'_>,
    image: &Image,
    memory: &mut Memory<'_, '_>,
    scratch: &mut Scratch,
) -> Result<usize, FaultKind> {
    let saved = [frames.r[6], frames.r[7], frames.r[8], frames.r[9]];
    let frame = frames.returns.get_mut(*frames.depth).ok_or(FaultKind::CallDepth)?;
    *frame = Return { op: next, saved, then: Then::Iterate(iteration) };
    *frames.depth += 1;
    frames.r[10] += FRAME_LEN as u64;
    // The result of an iteration before the first one.
    frames.r[0] = 0;
    iterate(iteration, frames, image, memory, scratch)
}

/// The function has returned: starts the next iteration, or returns to the caller of the helper.
pub(super) fn resume(
    mut iteration: Iteration,
    frames: &mut Frames<'_>,
    image: &Image,
    memory: &mut Memory<'_, '_>,
    scratch: &mut Scratch,
) -> Result<usize, FaultKind> {
    iteration.done += 1;
    // A callback returns 0 to continue.
    if frames.r[0] != 0 {
        iteration.count = 0;
    }
    iterate(iteration, frames, image, memory, scratch)
}

fn iterate(
    mut iteration: Iteration,
    frames: &mut Frames<'_>,
    image: &Image,
    memory: &mut Memory<'_, '_>,
    scratch: &mut Scratch,
) -> Result<usize, FaultKind> {
    let Iteration { callback, len, ctx, .. } = iteration;
    while iteration.position() < iteration.count {
        match &mut iteration.map {
            None => (frames.r[1], frames.r[2]) = (iteration.done, ctx),
            Some((index, from)) => {
                let (index, start) = (*index, *from);
                let map = &image.maps[index];
                let end = start.saturating_add(EXAMINED_MAX).min(map.def().max_entries);
                let found = map.next_entry(start..end, &mut scratch.key);
                *from = found.map_or(end, |entry| entry + 1);
                frames.spend(u64::from(*from - start).div_ceil(EXAMINED_PER_OPERATION))?;
                let Some((entry, values)) = found.zip(map.values()) else { continue };
                let base = image.space.base_of(index).ok_or(FaultKind::Argument)?;
                let value = base + values.offset(scratch.cpu, entry) as u64;
                let key = memory.show_key(*frames.depth, &scratch.key).ok_or(FaultKind::Argument)?;
                let handle = space::base(space::HANDLES) + index as u64;
                frames.r[1..5].copy_from_slice(&[handle, key, value, ctx]);
            }
        }
        frames.spend(len)?;
        let frame = frames.depth.checked_sub(1).and_then(|depth| frames.returns.get_mut(depth));
        frame.ok_or(FaultKind::CallDepth)?.then = Then::Iterate(iteration);
        return Ok(callback);
    }
    let depth = frames.depth.checked_sub(1).ok_or(FaultKind::CallDepth)?;
    let Return { op, saved, .. } = *frames.returns.get(depth).ok_or(FaultKind::CallDepth)?;
    *frames.depth = depth;
    frames.r[6..10].copy_from_slice(&saved);
    frames.r[10] -= FRAME_LEN as u64;
    frames.r[0] = iteration.done;
    Ok(op)
}

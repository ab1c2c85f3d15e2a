//! Helpers that change the flow of control: tail calls, and functions of the program that a helper calls
//! (`bpf_loop`, `bpf_for_each_map_elem`).
//!
//! A callback runs in its own stack frame, like any function. When it returns, [`Frames::resume`] starts
//! the next iteration or ends the helper.

use super::call::{E2BIG, EINVAL, Scratch, failed};
use super::image::Image;
use super::memory::{FRAME_LEN, FRAMES, Memory};
use super::outcome::FaultKind;
use super::space;
use crate::helper::Helper;
use crate::map::MapKind;

/// Most tail calls of one run, and most iterations of one loop (`MAX_TAIL_CALL_CNT`, `BPF_MAX_LOOPS`).
const TAIL_CALLS_MAX: u32 = 33;
pub(super) const ITERATIONS_MAX: u64 = 1 << 23;

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

/// The state of a run, for a helper that changes the flow of control.
pub(super) struct Frames<'r, 'm, 'b> {
    pub(super) r: &'r mut [u64; 16],
    pub(super) returns: &'r mut [Return; FRAMES - 1],
    pub(super) depth: &'r mut usize,
    pub(super) budget: &'r mut u64,
    pub(super) image: &'r Image,
    pub(super) memory: &'r mut Memory<'m, 'b>,
    pub(super) scratch: &'r mut Scratch,
}

impl Frames<'_, '_, '_> {
    /// Executes the helper with this number. Returns the next operation.
    pub(super) fn begin(&mut self, id: i32, next: usize) -> Result<usize, FaultKind> {
        let [r1, r2, r3, r4] = [self.r[1], self.r[2], self.r[3], self.r[4]];
        let (count, map) = match Helper::from_id(id) {
            Some(Helper::TailCall) => return self.tail_call(next),
            Some(Helper::Loop) => (r1, None),
            Some(Helper::ForEachMapElem) => {
                let index = handle(r1).ok_or(FaultKind::Argument)?;
                let map = self.image.maps.get(index).ok_or(FaultKind::Argument)?;
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
                (map.def().max_entries.into(), Some((index, 0)))
            }
            _ => return Err(FaultKind::Argument),
        };
        let (callback, len) = self.image.function(r2).ok_or(FaultKind::Argument)?;
        if r4 != 0 {
            self.r[0] = failed(EINVAL);
            return Ok(next);
        }
        if map.is_none() && count > ITERATIONS_MAX {
            // The kernel's verifier puts the loop in place of the call (`inline_bpf_loop`): it compares all
            // 64 bits, and its error number has 32.
            self.r[0] = failed(E2BIG) & 0xffff_ffff;
            return Ok(next);
        }
        self.start(Iteration { callback, len, ctx: r3, done: 0, count, map }, next)
    }

    fn tail_call(&mut self, next: usize) -> Result<usize, FaultKind> {
        let index = handle(self.r[2]).ok_or(FaultKind::Argument)?;
        let map = self.image.maps.get(index).filter(|map| map.def().kind == MapKind::ProgArray);
        let map = map.ok_or(FaultKind::Argument)?;
        if self.r[1] != space::base(space::CTX) {
            return Err(FaultKind::Argument);
        }
        let key = (self.r[3] as u32).to_le_bytes();
        let entry = map.entry(&key).zip(map.values()).map(|(entry, values)| values.first_word(entry) as u32);
        let number = entry.and_then(|number| (number as usize).checked_sub(1));
        let program = number.and_then(|number| self.image.programs.get(number));
        let Some(&(start, len)) = program.filter(|_| self.scratch.tail_calls < TAIL_CALLS_MAX) else {
            return Ok(next);
        };
        self.scratch.tail_calls += 1;
        self.spend(len)?;
        Ok(start)
    }

    /// Calls the function for the first time, unless there is nothing to do.
    fn start(&mut self, iteration: Iteration, next: usize) -> Result<usize, FaultKind> {
        let saved = [self.r[6], self.r[7], self.r[8], self.r[9]];
        let frame = self.returns.get_mut(*self.depth).ok_or(FaultKind::CallDepth)?;
        *frame = Return { op: next, saved, then: Then::Iterate(iteration) };
        *self.depth += 1;
        self.r[10] += FRAME_LEN as u64;
        // The result of an iteration before the first one.
        self.r[0] = 0;
        self.iterate(iteration)
    }

    /// The function has returned: starts the next iteration, or returns to the caller of the helper.
    pub(super) fn resume(&mut self, mut iteration: Iteration) -> Result<usize, FaultKind> {
        iteration.done += 1;
        // A callback returns 0 to continue.
        if self.r[0] != 0 {
            iteration.count = 0;
        }
        self.iterate(iteration)
    }

    fn iterate(&mut self, mut iteration: Iteration) -> Result<usize, FaultKind> {
        let Iteration { callback, len, ctx, .. } = iteration;
        while iteration.position() < iteration.count {
            match &mut iteration.map {
                None => (self.r[1], self.r[2]) = (iteration.done, ctx),
                Some((index, from)) => {
                    let (index, start) = (*index, *from);
                    let map = &self.image.maps[index];
                    let end = start.saturating_add(EXAMINED_MAX).min(map.def().max_entries);
                    let found = map.next_entry(start..end, &mut self.scratch.key);
                    *from = found.map_or(end, |entry| entry + 1);
                    self.spend(u64::from(*from - start).div_ceil(EXAMINED_PER_OPERATION))?;
                    let Some((entry, values)) = found.zip(map.values()) else { continue };
                    let base = self.image.space.base_of(index).ok_or(FaultKind::Argument)?;
                    let value = base + values.offset(self.scratch.cpu, entry) as u64;
                    let key = self.memory.show_key(*self.depth, &self.scratch.key);
                    let key = key.ok_or(FaultKind::Argument)?;
                    let handle = space::base(space::HANDLES) + index as u64;
                    self.r[1..5].copy_from_slice(&[handle, key, value, ctx]);
                }
            }
            self.spend(len)?;
            let frame = self.depth.checked_sub(1).and_then(|depth| self.returns.get_mut(depth));
            frame.ok_or(FaultKind::CallDepth)?.then = Then::Iterate(iteration);
            return Ok(callback);
        }
        let depth = self.depth.checked_sub(1).ok_or(FaultKind::CallDepth)?;
        let Return { op, saved, .. } = *self.returns.get(depth).ok_or(FaultKind::CallDepth)?;
        *self.depth = depth;
        self.r[6..10].copy_from_slice(&saved);
        self.r[10] -= FRAME_LEN as u64;
        self.r[0] = iteration.done;
        Ok(op)
    }

    fn spend(&mut self, operations: u64) -> Result<(), FaultKind> {
        *self.budget = self.budget.checked_sub(operations).ok_or(FaultKind::Budget)?;
        Ok(())
    }
}

/// Returns the index of the map in an argument.
fn handle(argument: u64) -> Option<usize> {
    (argument >> space::SEGMENT_BITS == space::HANDLES).then(|| space::offset(argument))
}

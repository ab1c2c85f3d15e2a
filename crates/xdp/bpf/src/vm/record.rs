//! Observes a run and records its inputs and effects for [`replay`](super::replay).
//!
//! Registers and stack hold two kinds of values. *Fixed* values depend only on the packet bytes and map words
//! that were read. *Counters* are a map word plus a fixed value. A counter that is stored where it was loaded
//! from is an effect. A counter that is used in any other way becomes fixed, and a guard records the word.
//! Other inputs (time, random numbers, changed packets, hash maps) end the recording, but not the run.

use std::ops::Range;

use super::image::Image;
use super::memory::{FRAME_LEN, FRAMES, Memory};
use super::op::{self, Code, Op, reads_src};
use super::outcome::Outcome;
use super::run::{Context, Effect, EffectKind, Guard, NOTES_MAX, NOTES_ROOM, Run, Word};
use super::space::{self, Place, Space};
use crate::helper::Helper;

/// Observes a program while it runs.
pub(super) trait Watch {
    /// Is called before the operation at `at` is executed.
    fn step(&mut self, image: &Image, at: usize, r: &[u64; 16], memory: &mut Memory<'_, '_>);
}

/// Observes nothing.
impl Watch for () {
    #[inline(always)]
    fn step(&mut self, _: &Image, _: usize, _: &[u64; 16], _: &mut Memory<'_, '_>) {}
}

/// Notes the array entries that a program looks up or updates.
pub(super) struct Touched<'a>(pub(super) &'a mut Vec<(usize, Range<u32>)>);

impl Watch for Touched<'_> {
    fn step(&mut self, image: &Image, at: usize, r: &[u64; 16], memory: &mut Memory<'_, '_>) {
        let op = &image.ops[at];
        let helper = match op.code {
            Code::LookupElem => Some(Helper::MapLookupElem),
            Code::CallHelper | Code::Control => Helper::from_id(op.imm as i32),
            _ => None,
        };
        let index = space::offset(r[1]);
        let Some(map) = image.maps.get(index).filter(|_| r[1] >> space::SEGMENT_BITS == space::HANDLES)
        else {
            return;
        };
        match helper {
            Some(Helper::ForEachMapElem) => self.0.push((index, 0..map.def().max_entries)),
            Some(Helper::MapLookupElem | Helper::MapLookupPercpuElem | Helper::MapUpdateElem) => {
                let key = memory.load::<4>(r[2]).map(|key| key as u32);
                self.0.extend(key.map(|key| (index, key..key.saturating_add(1))));
            }
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Fixed,
    /// The value of the read with this number plus a fixed value.
    Counter(usize),
}

/// A read of a map word.
#[derive(Clone, Copy, Debug)]
struct Read {
    field: Field,
    value: u64,
}

/// Bytes of a map word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Field {
    place: Place,
    shift: u32,
    len: usize,
}

impl Field {
    fn mask(self) -> u64 {
        space::mask_of(self.len) << self.shift
    }
}

/// Records one run; see the module documentation.
#[derive(Debug)]
pub(super) struct Recorder {
    registers: [Value; 16],
    /// State of R6..R9 in the calling functions.
    saved: [[Value; 4]; FRAMES],
    depth: usize,
    /// Bytes of the stack that this run has written, as a bit set.
    written: [u64; FRAME_LEN * FRAMES / 64],
    reads: Vec<Read>,
    pub(super) run: Run,
    is_over: bool,
}

/// The recording ends because the run cannot be replayed.
struct Over;

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            registers: [Value::Fixed; 16],
            saved: [[Value::Fixed; 4]; FRAMES],
            depth: 0,
            written: [0; FRAME_LEN * FRAMES / 64],
            reads: Vec::with_capacity(NOTES_ROOM),
            run: Run::with_room(),
            is_over: false,
        }
    }
}

impl Recorder {
    /// Starts the recording of a run with this context.
    pub(super) fn begin(&mut self, context: Context) {
        let Run { words, guards, effects, .. } = &mut self.run;
        words.clear();
        guards.clear();
        effects.clear();
        self.reads.clear();
        (self.run.context, self.run.seen_to) = (context, 0);
        self.registers = [Value::Fixed; 16];
        self.written = [0; FRAME_LEN * FRAMES / 64];
        (self.depth, self.is_over) = (0, false);
    }

    /// Ends the recording. Returns whether the run can be replayed.
    pub(super) fn finish(&mut self, outcome: &Outcome, buffer: &[u8], space: &Space) -> bool {
        if self.is_over || self.is_full() || outcome.fault.is_some() || outcome.redirect.is_some() {
            return false;
        }
        let Run { words, guards, effects, is_steady, .. } = &mut self.run;
        let touches = |effect: &Effect, guard: &Guard| {
            effect.mask & guard.mask != 0 && std::ptr::eq(space.at(effect.place), space.at(guard.place))
        };
        *is_steady = guards.iter().all(|guard| !effects.iter().any(|effect| touches(effect, guard)));
        words.iter_mut().all(|word| {
            let bytes = buffer.get(word.at..).and_then(|bytes| bytes.first_chunk());
            word.bits = bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)) & word.mask;
            bytes.is_some()
        })
    }

    fn is_full(&self) -> bool {
        let Run { words, guards, effects, .. } = &self.run;
        [words.len(), guards.len(), effects.len(), self.reads.len()].iter().any(|&notes| notes > NOTES_MAX)
    }

    fn follow(
        &mut self,
        image: &Image,
        at: usize,
        r: &[u64; 16],
        memory: &Memory<'_, '_>,
    ) -> Result<(), Over> {
        let op = &image.ops[at];
        let (d, s) = (usize::from(op.dst & 15), usize::from(op.src & 15));
        let source = || r[s].wrapping_add(op.off as u64);
        match op.code {
            Code::Nop | Code::Jump => {}
            Code::Imm | Code::Mov64Imm | Code::Mov32Imm => self.registers[d] = Value::Fixed,
            Code::Mov64 | Code::CopyAdd => self.registers[d] = self.registers[s],
            Code::Mov32 => self.registers[d] = self.narrow(s),
            Code::Add64Imm | Code::Sub64Imm => {}
            Code::Add32Imm | Code::Sub32Imm => self.registers[d] = self.narrow(d),
            Code::Add64 | Code::Add32 => {
                if let (Value::Fixed, Value::Counter(_)) = (self.registers[d], self.registers[s]) {
                    self.registers[d] = self.registers[s];
                } else {
                    self.look(s);
                }
                if op.code == Code::Add32 {
                    self.registers[d] = self.narrow(d);
                }
            }
            Code::Sub64 | Code::Sub32 => {
                self.look(s);
                if op.code == Code::Sub32 {
                    self.registers[d] = self.narrow(d);
                }
            }
            Code::AddThenGt => {
                self.look(s);
                self.registers[d] = Value::Fixed;
                self.look(usize::from(image.ops[at + 2].src & 15));
            }
            Code::Load8 | Code::LoadSx8 | Code::Load8ThenEq | Code::Load8ThenNe => {
                self.load(d, s, source(), 1, false, memory)?;
            }
            Code::Load16 | Code::LoadSx16 | Code::Load16ThenEq | Code::Load16ThenNe => {
                self.load(d, s, source(), 2, false, memory)?;
            }
            Code::LoadSx32 | Code::Load32ThenEq | Code::Load32ThenNe => {
                self.load(d, s, source(), 4, false, memory)?;
            }
            Code::Load32 => self.load(d, s, source(), 4, true, memory)?,
            Code::Load64 => self.load(d, s, source(), 8, true, memory)?,
            Code::Store8 | Code::Store8Imm => self.store(op, 1, r, memory)?,
            Code::Store16 | Code::Store16Imm => self.store(op, 2, r, memory)?,
            Code::Store32 | Code::Store32Imm => self.store(op, 4, r, memory)?,
            Code::Store64 | Code::Store64Imm => self.store(op, 8, r, memory)?,
            Code::Atomic32 => self.atomic(op, 4, r, memory)?,
            Code::Atomic64 => self.atomic(op, 8, r, memory)?,
            Code::LookupElem | Code::CallHelper | Code::CallLocal | Code::Exit => {
                self.follow_call(image, op, r, memory)?;
            }
            Code::Control | Code::CallKfunc | Code::Poison => return Err(Over),
            // Arithmetic and branches.
            code => {
                self.look(d);
                if reads_src(code) {
                    self.look(s);
                }
            }
        }
        Ok(())
    }

    /// Follows a call or the return from a function.
    fn follow_call(
        &mut self,
        image: &Image,
        op: &Op,
        r: &[u64; 16],
        memory: &Memory<'_, '_>,
    ) -> Result<(), Over> {
        match op.code {
            Code::LookupElem => {
                self.look(1);
                self.look(2);
                if !image.arrays.has(r[1]) {
                    return Err(Over);
                }
                self.see(r[2], 4, memory)?;
                self.registers[0] = Value::Fixed;
            }
            Code::CallHelper => match Helper::from_id(op.imm as i32) {
                Some(Helper::GetSmpProcessorId | Helper::XdpGetBuffLen) => {
                    self.look(1);
                    self.registers[0] = Value::Fixed;
                }
                _ => return Err(Over),
            },
            Code::CallLocal => {
                let saved = self.saved.get_mut(self.depth).ok_or(Over)?;
                saved.copy_from_slice(&self.registers[6..10]);
                self.depth += 1;
            }
            Code::Exit => match self.depth.checked_sub(1) {
                Some(depth) => {
                    self.depth = depth;
                    self.registers[6..10].copy_from_slice(&self.saved[depth]);
                }
                None => self.look(0),
            },
            _ => {}
        }
        Ok(())
    }

    /// The program uses the content of this register, so it becomes fixed.
    fn look(&mut self, register: usize) {
        if let Value::Counter(read) = self.registers[register] {
            self.guard(read);
            self.registers[register] = Value::Fixed;
        }
    }

    /// The word that was read must have the same value for a replay.
    fn guard(&mut self, read: usize) {
        let Read { field, value } = self.reads[read];
        let (mask, bits) = (field.mask(), value << field.shift);
        self.run.guards.push(Guard { place: field.place, mask, bits });
    }

    /// The upper half of a register is cleared. A 32-bit counter stays a counter.
    fn narrow(&mut self, register: usize) -> Value {
        if let Value::Counter(read) = self.registers[register]
            && self.reads[read].field.len != 4
        {
            self.look(register);
        }
        self.registers[register]
    }

    /// `d` is loaded from the address in `s`.
    fn load(
        &mut self,
        d: usize,
        s: usize,
        address: u64,
        len: usize,
        may_count: bool,
        memory: &Memory<'_, '_>,
    ) -> Result<(), Over> {
        self.look(s);
        self.registers[d] = Value::Fixed;
        if !may_count || space::is_fixed(address) {
            return self.see(address, len, memory);
        }
        self.registers[d] = Value::Counter(self.read(address, len, memory)?);
        Ok(())
    }

    /// The program uses `len` bytes at an address.
    fn see(&mut self, address: u64, len: usize, memory: &Memory<'_, '_>) -> Result<(), Over> {
        let at = space::offset(address);
        match address >> space::SEGMENT_BITS {
            // The context is compared as a whole.
            space::CTX => {}
            space::STACK => {
                let is_written = |byte: usize| {
                    self.written.get(byte / 64).is_some_and(|bits| bits & 1 << (byte % 64) != 0)
                };
                if !(at..at + len).all(is_written) {
                    return Err(Over);
                }
            }
            space::PACKET => {
                let window = memory.buff.window();
                if at < window.start || at + len > window.end {
                    return Err(Over);
                }
                self.run.seen_to = self.run.seen_to.max(at + len);
                for byte in at..at + len {
                    self.see_byte(byte);
                }
            }
            _ => {
                let read = self.read(address, len, memory)?;
                self.guard(read);
            }
        }
        Ok(())
    }

    fn see_byte(&mut self, byte: usize) {
        let (at, mask) = (byte & !7, 0xff << (byte % 8 * 8));
        match self.run.words.iter_mut().find(|word| word.at == at) {
            Some(word) => word.mask |= mask,
            None => self.run.words.push(Word { at, mask, bits: 0 }),
        }
    }

    /// Records a read of a map.
    fn read(&mut self, address: u64, len: usize, memory: &Memory<'_, '_>) -> Result<usize, Over> {
        let field = self.field(address, len, memory)?;
        let value = memory.space.load(address, len).ok_or(Over)?;
        self.reads.push(Read { field, value });
        Ok(self.reads.len() - 1)
    }

    /// Returns the place in a map that is about to be read or written. Fails if this run has already written
    /// there.
    fn field(&self, address: u64, len: usize, memory: &Memory<'_, '_>) -> Result<Field, Over> {
        let (place, at) = memory.space.place(address, len).ok_or(Over)?;
        let word = memory.space.at(place);
        if self.run.effects.iter().any(|effect| {
            std::ptr::eq(memory.space.at(effect.place), word)
                && effect.mask & space::mask_of(len) << (at * 8) != 0
        }) {
            return Err(Over);
        }
        Ok(Field { place, shift: at as u32 * 8, len })
    }

    fn store(&mut self, op: &Op, len: usize, r: &[u64; 16], memory: &Memory<'_, '_>) -> Result<(), Over> {
        let (d, s) = (usize::from(op.dst & 15), usize::from(op.src & 15));
        let immediate =
            matches!(op.code, Code::Store8Imm | Code::Store16Imm | Code::Store32Imm | Code::Store64Imm);
        let address = r[d].wrapping_add(op.off as u64);
        self.look(d);
        let at = space::offset(address);
        match address >> space::SEGMENT_BITS {
            space::STACK => {
                if !immediate {
                    self.look(s);
                }
                for byte in at..at + len {
                    *self.written.get_mut(byte / 64).ok_or(Over)? |= 1 << (byte % 64);
                }
                return Ok(());
            }
            space::PACKET | space::CTX => return Err(Over),
            _ => {}
        }
        let field = self.field(address, len, memory)?;
        let value = if immediate { op.imm as u64 } else { r[s] };
        let counter = match self.registers[s] {
            Value::Counter(read) if !immediate => Some(self.reads[read]),
            _ => None,
        };
        match counter.filter(|read| read.field == field) {
            Some(read) => self.effect(field, EffectKind::Add, value.wrapping_sub(read.value)),
            None => {
                if !immediate {
                    self.look(s);
                }
                self.effect(field, EffectKind::Set, value);
            }
        }
        Ok(())
    }

    fn effect(&mut self, field: Field, kind: EffectKind, value: u64) {
        let Field { place, shift, len } = field;
        self.run.effects.push(Effect {
            place,
            shift,
            mask: field.mask(),
            kind,
            value: value & space::mask_of(len),
        });
    }

    fn atomic(&mut self, op: &Op, len: usize, r: &[u64; 16], memory: &Memory<'_, '_>) -> Result<(), Over> {
        let (d, s) = (usize::from(op.dst & 15), usize::from(op.src & 15));
        let address = r[d].wrapping_add(op.off as u64);
        if op.imm != op::ATOMIC_ADD || space::is_fixed(address) {
            return Err(Over);
        }
        self.look(d);
        self.look(s);
        let field = self.field(address, len, memory)?;
        self.effect(field, EffectKind::AtomicAdd, r[s]);
        Ok(())
    }
}

impl Watch for Recorder {
    fn step(&mut self, image: &Image, at: usize, r: &[u64; 16], memory: &mut Memory<'_, '_>) {
        if !self.is_over && (self.is_full() || self.follow(image, at, r, memory).is_err()) {
            self.is_over = true;
        }
    }
}

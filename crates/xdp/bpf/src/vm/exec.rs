//! The interpreter.

use std::ops::Range;

use super::buff::XdpBuff;
use super::call::Scratch;
use super::control::{Frames, Return, Then};
use super::image::Image;
use super::memory::{FRAME_LEN, FRAMES, Memory, Stack};
use super::op::{self, Code, operations};
use super::outcome::{Fault, FaultKind, Outcome};
use super::record::{Touched, Watch};
use super::replay::Replay;
use super::run::Context;
use super::space;
use super::{Env, call, extra};

/// Runs programs on one thread.
///
/// ```
/// use roxie_bpf::vm::{Env, Image, Machine, XdpBuff};
/// use roxie_bpf::{ProgramKind, Recipe, XdpAction};
///
/// struct Host;
/// impl Env for Host {
///     fn ktime_ns(&mut self) -> u64 {
///         0
///     }
///     fn random(&mut self) -> u32 {
///         0
///     }
/// }
///
/// let program = Recipe::verdict(XdpAction::Tx).program("tx", ProgramKind::Xdp)?;
/// let image = Image::new(&program, vec![])?;
/// let mut buffer = [0; 128];
/// let mut buff = XdpBuff::new(&mut buffer, 64..128).unwrap();
/// let outcome = Machine::new(0).run(&image, &mut buff, &mut Host);
/// assert_eq!((outcome.action(), outcome.fault), (XdpAction::Tx, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Machine {
    cpu: u32,
    budget: u64,
    stack: Box<Stack>,
    returns: [Return; FRAMES - 1],
    scratch: Scratch,
    keys: Vec<u8>,
}

impl Machine {
    /// Budget of one run, in operations (approximate). This is about a millisecond.
    pub const BUDGET: u64 = 1 << 20;

    /// Creates a machine that represents CPU `cpu`, which selects the value in per-CPU maps.
    #[must_use]
    pub fn new(cpu: u32) -> Machine {
        Machine {
            cpu,
            budget: Self::BUDGET,
            stack: Box::new([0; FRAME_LEN * FRAMES]),
            returns: Default::default(),
            scratch: Scratch::default(),
            keys: Vec::new(),
        }
    }

    /// Replaces the budget, [`Machine::BUDGET`] by default.
    #[must_use]
    pub fn with_budget(self, budget: u64) -> Machine {
        Machine { budget, ..self }
    }

    /// Runs the program on the packet. It never panics and always ends, whatever the program does. As in the
    /// kernel, stack bytes that the program has not written contain data of earlier runs.
    pub fn run(&mut self, image: &Image, buff: &mut XdpBuff<'_>, env: &mut dyn Env) -> Outcome {
        if let Some(returned) = image.constant {
            return Outcome { returned, redirect: None, fault: None };
        }
        self.run_watched(image, buff, env, &mut ())
    }

    /// As [`run`](Self::run), and adds the array entries that the program looks up or updates to `touched`:
    /// the index of the map, and that of the entry, which may be beyond the map's size. Of a map that it
    /// walks, every entry.
    pub fn run_noting(
        &mut self,
        image: &Image,
        buff: &mut XdpBuff<'_>,
        env: &mut dyn Env,
        touched: &mut Vec<(usize, Range<u32>)>,
    ) -> Outcome {
        self.run_watched(image, buff, env, &mut Touched(touched))
    }

    /// As [`run`](Self::run), but uses a recorded run if the result follows from an earlier packet. Always
    /// pass the same `replay` for this machine and program.
    #[inline]
    pub fn run_or_replay(
        &mut self,
        image: &Image,
        replay: &mut Replay,
        buff: &mut XdpBuff<'_>,
        env: &mut dyn Env,
    ) -> Outcome {
        if let Some(returned) = replay.replay(image, buff) {
            return Outcome { returned, redirect: None, fault: None };
        }
        if !replay.wants_record() || buff.has_frags() {
            return self.run(image, buff, env);
        }
        self.record(image, replay, buff, env)
    }

    #[cold]
    fn record(
        &mut self,
        image: &Image,
        replay: &mut Replay,
        buff: &mut XdpBuff<'_>,
        env: &mut dyn Env,
    ) -> Outcome {
        let recorder = replay.recorder(Context::of(buff));
        let outcome = self.run_watched(image, buff, env, recorder);
        replay.keep(&outcome, buff.buffer(), &image.space);
        outcome
    }

    #[inline]
    fn run_watched<W: Watch>(
        &mut self,
        image: &Image,
        buff: &mut XdpBuff<'_>,
        env: &mut dyn Env,
        watch: &mut W,
    ) -> Outcome {
        self.scratch.begin(self.cpu);
        let mut memory = Memory { stack: &mut self.stack, buff, space: &image.space, keys: &mut self.keys };
        let ended =
            execute(image, &mut memory, &mut self.returns, &mut self.scratch, env, self.budget, watch);
        let redirect = self.scratch.end(image);
        match ended {
            Ok(r0) => Outcome { returned: r0 as u32, redirect, fault: None },
            Err((op, kind)) => {
                let fault = Fault { slot: image.slot_of(op), kind };
                Outcome { returned: 0, redirect: None, fault: Some(fault) }
            }
        }
    }
}

/// Returns R0 at the end, or the operation that failed and the reason.
///
/// Only backward jumps and calls use the budget: a jump costs its distance, a call the length of the
/// function. Between two of them execution only moves forward.
///
/// This is one function because the compiler then keeps the registers and the jump table of all operations
/// together.
fn execute<W: Watch>(
    image: &Image,
    memory: &mut Memory<'_, '_>,
    returns: &mut [Return; FRAMES - 1],
    scratch: &mut Scratch,
    env: &mut dyn Env,
    mut budget: u64,
    watch: &mut W,
) -> Result<u64, (usize, FaultKind)> {
    let ops = &*image.ops;
    // Sixteen entries instead of eleven, so that a four-bit index needs no bounds check.
    let mut r = [0_u64; 16];
    r[1] = space::base(space::CTX);
    r[10] = space::base(space::STACK) + FRAME_LEN as u64;
    let mut depth = 0_usize;
    let mut next = 0;
    loop {
        let at = next;
        let op = &ops[at];
        watch.step(image, at, &r, memory);
        next += 1;
        let (d, s) = (usize::from(op.dst & 15), usize::from(op.src & 15));
        macro_rules! jump {
            ($op:expr) => {{
                let target = $op.off as usize;
                if target <= at {
                    let Some(left) = budget.checked_sub((at - target + 1) as u64) else {
                        return Err((at, FaultKind::Budget));
                    };
                    budget = left;
                }
                next = target;
            }};
        }
        macro_rules! load {
            ($len:literal, $extend:expr) => {{
                let address = r[s].wrapping_add(op.off as u64);
                let Some(value) = memory.load::<$len>(address) else {
                    return Err((at, FaultKind::Access { address }));
                };
                r[d] = $extend(value);
            }};
        }
        macro_rules! load_then {
            ($len:literal, $equal:literal) => {{
                load!($len, |value| value);
                let branch = &ops[next];
                next += 1;
                if (r[d] == branch.imm as u64) == $equal {
                    jump!(branch)
                }
            }};
        }
        macro_rules! store {
            ($len:literal, $value:expr) => {{
                let address = r[d].wrapping_add(op.off as u64);
                if memory.store::<$len>(address, $value).is_none() {
                    return Err((at, FaultKind::Access { address }));
                }
            }};
        }
        macro_rules! atomic {
            ($len:literal, $narrow:ty) => {{
                let address = r[d].wrapping_add(op.off as u64);
                let (operand, r0) = (r[s] as $narrow as u64, r[0] as $narrow as u64);
                let new = |old| op::atomic_result(op.imm, old, operand, r0);
                let Some(old) = memory.exchange::<$len>(address, new) else {
                    return Err((at, FaultKind::Access { address }));
                };
                if op.imm & op::FETCH != 0 {
                    r[s] = old;
                } else if op::is_cmpxchg(op.imm) {
                    r[0] = old;
                }
            }};
        }
        macro_rules! frames {
            () => {{
                let (returns, memory, scratch) = (&mut *returns, &mut *memory, &mut *scratch);
                Frames { r: &mut r, returns, depth: &mut depth, budget: &mut budget, image, memory, scratch }
            }};
        }
        macro_rules! dispatch {
            ($(($alu:ident, $a64:ident, $a64i:ident, $a32:ident, $a32i:ident, $f64:expr, $f32:expr))* ;
             $(($cond:ident, $c64:ident, $c64i:ident, $c32:ident, $c32i:ident, $p64:expr, $p32:expr))*) => {
                match op.code {
                    $(
                        Code::$a64 => r[d] = ($f64)(r[d], r[s]),
                        Code::$a64i => r[d] = ($f64)(r[d], op.imm as u64),
                        Code::$a32 => r[d] = ($f32)(r[d] as u32, r[s] as u32).into(),
                        Code::$a32i => r[d] = ($f32)(r[d] as u32, op.imm as u32).into(),
                    )*
                    $(
                        Code::$c64 => if ($p64)(r[d], r[s]) { jump!(op) },
                        Code::$c64i => if ($p64)(r[d], op.imm as u64) { jump!(op) },
                        Code::$c32 => if ($p32)(r[d] as u32, r[s] as u32) { jump!(op) },
                        Code::$c32i => if ($p32)(r[d] as u32, op.imm as u32) { jump!(op) },
                    )*
                    Code::Neg64 => r[d] = r[d].wrapping_neg(),
                    Code::Neg32 => r[d] = (r[d] as u32).wrapping_neg().into(),
                    Code::Sx8 => r[d] = r[s] as i8 as u64,
                    Code::Sx16 => r[d] = r[s] as i16 as u64,
                    Code::Sx32 => r[d] = r[s] as i32 as u64,
                    Code::Sx8Narrow => r[d] = (r[s] as i8 as u32).into(),
                    Code::Sx16Narrow => r[d] = (r[s] as i16 as u32).into(),
                    Code::Cut16 => r[d] = (r[d] as u16).into(),
                    Code::Cut32 => r[d] = (r[d] as u32).into(),
                    Code::Swap16 => r[d] = (r[d] as u16).swap_bytes().into(),
                    Code::Swap32 => r[d] = (r[d] as u32).swap_bytes().into(),
                    Code::Swap64 => r[d] = r[d].swap_bytes(),
                    Code::Imm => r[d] = op.imm as u64,
                    Code::Load8 => load!(1, |value| value),
                    Code::Load16 => load!(2, |value| value),
                    Code::Load32 => load!(4, |value| value),
                    Code::Load64 => load!(8, |value| value),
                    Code::LoadSx8 => load!(1, |value| value as i8 as u64),
                    Code::LoadSx16 => load!(2, |value| value as i16 as u64),
                    Code::LoadSx32 => load!(4, |value| value as i32 as u64),
                    Code::CopyAdd => {
                        r[d] = r[s].wrapping_add(op.imm as u64);
                        next += 1;
                    }
                    Code::AddThenGt => {
                        r[d] = r[s].wrapping_add(op.imm as u64);
                        let branch = &ops[at + 2];
                        next = at + 3;
                        if r[d] > r[usize::from(branch.src & 15)] {
                            jump!(branch)
                        }
                    }
                    Code::Load8ThenEq => load_then!(1, true),
                    Code::Load16ThenEq => load_then!(2, true),
                    Code::Load32ThenEq => load_then!(4, true),
                    Code::Load8ThenNe => load_then!(1, false),
                    Code::Load16ThenNe => load_then!(2, false),
                    Code::Load32ThenNe => load_then!(4, false),
                    Code::Store8 => store!(1, r[s]),
                    Code::Store16 => store!(2, r[s]),
                    Code::Store32 => store!(4, r[s]),
                    Code::Store64 => store!(8, r[s]),
                    Code::Store8Imm => store!(1, op.imm as u64),
                    Code::Store16Imm => store!(2, op.imm as u64),
                    Code::Store32Imm => store!(4, op.imm as u64),
                    Code::Store64Imm => store!(8, op.imm as u64),
                    Code::Atomic32 => atomic!(4, u32),
                    Code::Atomic64 => atomic!(8, u64),
                    Code::Nop => {}
                    Code::Jump => jump!(op),
                    Code::LookupElem => {
                        let found = image.arrays.lookup(r[1], scratch.cpu, || memory.load::<4>(r[2]));
                        r[0] = match found {
                            Some(address) => address,
                            None => call::map_lookup([r[1], r[2], r[3], r[4], r[5]], image, memory, scratch)
                                .map_err(|kind| (at, kind))?,
                        };
                    }
                    Code::CallHelper => {
                        let args = [r[1], r[2], r[3], r[4], r[5]];
                        r[0] = call::helper(op.imm as i32, args, image, memory, scratch, env)
                            .map_err(|kind| (at, kind))?;
                    }
                    Code::CallLocal => {
                        budget = budget.checked_sub(op.imm as u64).ok_or((at, FaultKind::Budget))?;
                        let frame = returns.get_mut(depth).ok_or((at, FaultKind::CallDepth))?;
                        *frame = Return { op: next, saved: [r[6], r[7], r[8], r[9]], then: Then::Continue };
                        depth += 1;
                        r[10] += FRAME_LEN as u64;
                        next = op.off as usize;
                    }
                    Code::Control => {
                        next = frames!().begin(op.imm as i32, next).map_err(|kind| (at, kind))?;
                    }
                    Code::CallKfunc => {
                        let kfunc = image.kfuncs.get(op.imm as usize).ok_or((at, FaultKind::Argument))?;
                        r[0] = extra::kfunc(kfunc, &r[1..4], memory, env).map_err(|kind| (at, kind))?;
                    }
                    Code::Poison => return Err((at, FaultKind::Missing)),
                    Code::Exit => {
                        let Some(frame) = depth.checked_sub(1) else { return Ok(r[0]) };
                        if let Then::Iterate(iteration) = returns[frame].then {
                            next = frames!().resume(iteration).map_err(|kind| (at, kind))?;
                            continue;
                        }
                        depth = frame;
                        next = returns[frame].op;
                        r[6..10].copy_from_slice(&returns[frame].saved);
                        r[10] -= FRAME_LEN as u64;
                    }
                }
            };
        }
        operations!(dispatch);
    }
}

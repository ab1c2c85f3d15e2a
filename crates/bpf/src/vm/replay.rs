//! What a program did, to be done again without running it.
//!
//! A program that judges packets by their headers and counts them does the same for the next packet of the same flow:
//! its run is a function of the bytes of the packet and of the maps that it looked at. [`record`](super::record) watches
//! a run and notes what these were, and what the run left behind. When they are the same again, so is the verdict,
//! and only what was left behind is done: constants are stored again, counters are increased again by as much. What a
//! program adds to a counter without looking at it is no reason to run it again.
//!
//! Invariant: whoever replays instead of running sees the same verdicts and the same maps.

use std::sync::atomic::{AtomicU64, Ordering};

use super::buff::XdpBuff;
use super::image::Image;
use super::outcome::Outcome;
use super::record::{NOTES_ROOM, Recorder};
use super::space::{Place, Space};

/// Recorded runs of one program on one machine.
#[derive(Debug)]
pub struct Replay {
    /// Those before `count` are runs.
    runs: [Run; RUNS],
    count: usize,
    /// The one to be replaced next.
    oldest: usize,
    /// The one of the last packet.
    last: Option<usize>,
    recorder: Box<Recorder>,
    /// Packets until a run is recorded again, and how many it was the last time.
    pause: u32,
    pause_before: u32,
}

/// Runs that are kept: what one flow sends, full and shorter packets and acknowledgements, in either direction.
const RUNS: usize = 4;
/// Recording costs as much as some runs. If it is of no use it is tried again after so many packets, and then twice as many.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1 << 16;

/// One run.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) context: Context,
    /// Words of the packet's buffer that it looked at.
    pub(super) words: Vec<Word>,
    /// End of the last byte of the buffer that it looked at.
    pub(super) seen_to: usize,
    /// Words of maps that it looked at.
    pub(super) guards: Vec<Guard>,
    pub(super) effects: Vec<Effect>,
    /// It does nothing to what it looks at.
    pub(super) is_steady: bool,
    returned: u32,
    was_used: bool,
}

/// What a program sees of `struct xdp_md`, and how much of the packet is in the buffer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Context {
    window_start: usize,
    window_end: usize,
    data: usize,
    end: usize,
    interfaces: [u32; 3],
}

impl Context {
    #[inline]
    pub(super) fn of(buff: &XdpBuff<'_>) -> Context {
        let (window, range) = (buff.window(), buff.range());
        Context {
            window_start: window.start,
            window_end: window.end,
            data: range.start,
            end: range.end,
            interfaces: [buff.ingress_ifindex, buff.rx_queue_index, buff.egress_ifindex],
        }
    }
}

/// Eight bytes of the packet's buffer, of which those in `mask` count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    /// Offset of the first.
    pub(super) at: usize,
    pub(super) mask: u64,
    pub(super) bits: u64,
}

/// Bits of a map's word that must be what they were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) place: Place,
    pub(super) mask: u64,
    pub(super) bits: u64,
}

/// What a run does to a map's word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect {
    pub(super) place: Place,
    /// Where in the word, and the value's bits there.
    pub(super) shift: u32,
    pub(super) mask: u64,
    pub(super) kind: EffectKind,
    /// Not shifted.
    pub(super) value: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EffectKind {
    Set,
    /// By a load, an addition and a store.
    Add,
    /// By one instruction.
    AtomicAdd,
}

impl Default for Replay {
    fn default() -> Replay {
        Replay {
            runs: std::array::from_fn(|_| Run::with_room()),
            count: 0,
            oldest: 0,
            last: None,
            recorder: Box::default(),
            pause: 0,
            pause_before: 0,
        }
    }
}

impl Replay {
    /// The verdict, if a recorded run was on such a packet; its effects are done.
    #[inline]
    pub(super) fn replay(&mut self, image: &Image, buff: &XdpBuff<'_>) -> Option<u32> {
        let context = Context::of(buff);
        let fits = |run: &Run| run.fits(&context, buff.buffer(), &image.space);
        let index = match self.last.filter(|&index| fits(&self.runs[index])) {
            Some(index) => index,
            None => self.runs[..self.count].iter().position(fits)?,
        };
        let run = &mut self.runs[index];
        run.was_used = true;
        run.perform(&image.space, 1);
        self.last = Some(index);
        Some(run.returned)
    }

    /// How a packet like the last one, but for bytes of the buffer from `from` on, would be judged; `None` if it must be
    /// looked at. See [`repeat`](Self::repeat).
    #[must_use]
    #[inline]
    pub fn foresee(&self, from: usize) -> Option<u32> {
        let run = &self.runs[self.last?];
        (run.seen_to <= from && run.is_steady).then_some(run.returned)
    }

    /// Does once more, `times` times, what was done for the last packet: there were so many of which
    /// [`foresee`](Self::foresee) knew the verdict.
    pub fn repeat(&self, image: &Image, times: u64) {
        if let Some(run) = self.last.and_then(|index| self.runs.get(index)) {
            run.perform(&image.space, times);
        }
    }

    /// Whether the next run is to be watched.
    #[inline]
    pub(super) fn wants_record(&mut self) -> bool {
        self.last = None;
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        true
    }

    /// What watches the run on the packet that comes with this context.
    pub(super) fn recorder(&mut self, context: Context) -> &mut Recorder {
        self.recorder.begin(context);
        &mut self.recorder
    }

    /// The run that was watched has ended, and left the packet as it was if it can be replayed.
    pub(super) fn keep(&mut self, outcome: &Outcome, buffer: &[u8], space: &Space) {
        let is_useful = self.recorder.finish(outcome, buffer, space) && self.keep_run(outcome.returned);
        if is_useful {
            self.pause_before = 0;
        } else {
            self.pause_before = (2 * self.pause_before).clamp(PAUSE_MIN, PAUSE_MAX);
            self.pause = self.pause_before;
        }
    }

    /// In place of the oldest; whether that one was of use.
    fn keep_run(&mut self, returned: u32) -> bool {
        let index = self.oldest;
        let is_new = self.count < RUNS;
        self.count += usize::from(is_new);
        self.oldest = (index + 1) % RUNS;
        self.last = Some(index);
        let run = &mut self.runs[index];
        let was_used = std::mem::replace(&mut run.was_used, false);
        run.returned = returned;
        run.take_from(&self.recorder.run);
        is_new || was_used
    }
}

impl Run {
    /// Room for all that a recorder notes, so that recording allocates nothing.
    pub(super) fn with_room() -> Run {
        let (words, guards, effects) =
            (Vec::with_capacity(NOTES_ROOM), Vec::with_capacity(NOTES_ROOM), Vec::with_capacity(NOTES_ROOM));
        Run { words, guards, effects, ..Run::default() }
    }

    fn take_from(&mut self, noted: &Run) {
        (self.context, self.seen_to, self.is_steady) = (noted.context, noted.seen_to, noted.is_steady);
        self.words.clone_from(&noted.words);
        self.guards.clone_from(&noted.guards);
        self.effects.clone_from(&noted.effects);
    }

    #[inline]
    fn fits(&self, context: &Context, buffer: &[u8], space: &Space) -> bool {
        self.context == *context
            && self.words.iter().all(|word| {
                buffer
                    .get(word.at..)
                    .and_then(|bytes| bytes.first_chunk())
                    .is_some_and(|bytes| u64::from_le_bytes(*bytes) & word.mask == word.bits)
            })
            && self
                .guards
                .iter()
                .all(|guard| space.at(guard.place).load(Ordering::Acquire) & guard.mask == guard.bits)
    }

    #[inline]
    fn perform(&self, space: &Space, times: u64) {
        for effect in &self.effects {
            effect.perform(space.at(effect.place), times);
        }
    }
}

impl Effect {
    #[inline]
    fn perform(&self, word: &AtomicU64, times: u64) {
        let Effect { shift, mask, kind, value, .. } = *self;
        let sum = value.wrapping_mul(times);
        match kind {
            EffectKind::Set if mask == u64::MAX => word.store(value, Ordering::Release),
            EffectKind::Add if mask == u64::MAX => {
                word.store(word.load(Ordering::Acquire).wrapping_add(sum), Ordering::Release);
            }
            EffectKind::AtomicAdd if mask == u64::MAX => {
                word.fetch_add(sum, Ordering::SeqCst);
            }
            EffectKind::Set => replace(word, mask, |_| value << shift),
            EffectKind::Add | EffectKind::AtomicAdd => {
                replace(word, mask, |old| (old >> shift).wrapping_add(sum) << shift);
            }
        }
    }
}

/// Other bits of the word may belong to somebody else's field.
fn replace(word: &AtomicU64, mask: u64, new: impl Fn(u64) -> u64) {
    let update = |old: u64| Some(old & !mask | new(old) & mask);
    // It always gives a new value, so it does not fail.
    let _old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update);
}

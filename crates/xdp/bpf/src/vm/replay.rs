//! Replays earlier runs of a program instead of running it again.
//!
//! The run of a program is a function of the packet bytes and map words that it reads. For a program that
//! judges packets by their headers and counts them, these inputs are the same for the next packet of a flow.
//! [`record`](super::record) observes a run and records its inputs and effects. If a later packet has the
//! same inputs, it gets the same verdict and only the effects are repeated: constants are stored again,
//! counters are increased again by the same amount. The value of a counter that the program only increases is
//! not an input.
//!
//! Invariant: a replay has the same verdict and the same effect on maps as a run.

use std::sync::atomic::{AtomicU64, Ordering};

use super::buff::XdpBuff;
use super::image::Image;
use super::outcome::Outcome;
use super::record::{NOTES_ROOM, Recorder};
use super::space::{Place, Space};

/// Recorded runs of one program on one machine.
#[derive(Debug)]
pub struct Replay {
    /// Entries below `count` are valid.
    runs: [Run; RUNS],
    count: usize,
    /// Index of the entry to replace next.
    oldest: usize,
    /// Index of the entry that was used for the last packet.
    last: Option<usize>,
    recorder: Box<Recorder>,
    /// Packets until the next recording, and the length of the previous pause.
    pause: u32,
    pause_before: u32,
}

/// Number of recorded runs. One flow has full packets, shorter packets and acknowledgements, in both
/// directions.
const RUNS: usize = 4;
/// Length of the pause in packets after a useless recording, because a recording costs as much as several
/// runs. Each further useless recording doubles it.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1 << 16;

/// One recorded run.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) context: Context,
    /// Words of the packet buffer that the program read.
    pub(super) words: Vec<Word>,
    /// End of the last byte of the buffer that the program read, as an offset.
    pub(super) seen_to: usize,
    /// Map words that the program read.
    pub(super) guards: Vec<Guard>,
    pub(super) effects: Vec<Effect>,
    /// Whether the run does not change its own inputs.
    pub(super) is_steady: bool,
    returned: u32,
    was_used: bool,
}

/// The fields of `struct xdp_md`, and how much of the packet is in the buffer.
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

/// Eight bytes of the packet buffer, compared under `mask`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    /// Offset of the first byte.
    pub(super) at: usize,
    pub(super) mask: u64,
    pub(super) bits: u64,
}

/// Bits of a map word that must have the recorded value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) place: Place,
    pub(super) mask: u64,
    pub(super) bits: u64,
}

/// Effect of a run on a map word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect {
    pub(super) place: Place,
    /// Position of the field in the word, and the mask of its bits there.
    pub(super) shift: u32,
    pub(super) mask: u64,
    pub(super) kind: EffectKind,
    /// Value, not shifted.
    pub(super) value: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EffectKind {
    Set,
    /// Load, addition and store.
    Add,
    /// One atomic instruction.
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
    /// Returns the verdict if a recorded run has the inputs of this packet, and repeats its effects.
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

    /// Returns the verdict on a packet that equals the last one except for buffer bytes from offset `from`
    /// on. Returns `None` if the packet must be checked. See [`repeat`](Self::repeat).
    #[must_use]
    #[inline]
    pub fn foresee(&self, from: usize) -> Option<u32> {
        let run = &self.runs[self.last?];
        (run.seen_to <= from && run.is_steady).then_some(run.returned)
    }

    /// Repeats the effects of the last packet `times` times, for as many packets with a verdict by
    /// [`foresee`](Self::foresee).
    pub fn repeat(&self, image: &Image, times: u64) {
        if let Some(run) = self.last.and_then(|index| self.runs.get(index)) {
            run.perform(&image.space, times);
        }
    }

    /// Returns whether the next run is to be recorded.
    #[inline]
    pub(super) fn wants_record(&mut self) -> bool {
        self.last = None;
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        true
    }

    /// Returns the recorder for a run with this context.
    pub(super) fn recorder(&mut self, context: Context) -> &mut Recorder {
        self.recorder.begin(context);
        &mut self.recorder
    }

    /// Keeps the recorded run if it can be replayed. A run that changes the packet cannot.
    pub(super) fn keep(&mut self, outcome: &Outcome, buffer: &[u8], space: &Space) {
        let is_useful = self.recorder.finish(outcome, buffer, space) && self.keep_run(outcome.returned);
        if is_useful {
            self.pause_before = 0;
        } else {
            self.pause_before = (2 * self.pause_before).clamp(PAUSE_MIN, PAUSE_MAX);
            self.pause = self.pause_before;
        }
    }

    /// Replaces the oldest run. Returns whether that one was used.
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
    /// Reserves room for everything that a recorder adds, so that recording does not allocate.
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

/// Replaces bits of a word. The other bits may belong to a field that another thread writes.
fn replace(word: &AtomicU64, mask: u64, new: impl Fn(u64) -> u64) {
    let update = |old: u64| Some(old & !mask | new(old) & mask);
    // The closure always returns a value, so the update cannot fail.
    let _old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update);
}

//! A recorded run of a program: what it read, and what it did.

use std::sync::atomic::{AtomicU64, Ordering};

use super::buff::XdpBuff;
use super::space::{Place, Space};

/// Maximum number of recorded inputs and effects of each kind. With more, a replay would not be cheaper than
/// a run.
pub(super) const NOTES_MAX: usize = 32;
/// One operation adds at most one word for each byte it reads, and two guards.
pub(super) const NOTES_ROOM: usize = NOTES_MAX + 8;

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
    pub(super) returned: u32,
    pub(super) was_used: bool,
}

impl Run {
    /// Reserves room for everything that a recorder adds, so that recording does not allocate.
    pub(super) fn with_room() -> Run {
        let (words, guards, effects) =
            (Vec::with_capacity(NOTES_ROOM), Vec::with_capacity(NOTES_ROOM), Vec::with_capacity(NOTES_ROOM));
        Run { words, guards, effects, ..Run::default() }
    }

    pub(super) fn take_from(&mut self, noted: &Run) {
        (self.context, self.seen_to, self.is_steady) = (noted.context, noted.seen_to, noted.is_steady);
        self.words.clone_from(&noted.words);
        self.guards.clone_from(&noted.guards);
        self.effects.clone_from(&noted.effects);
    }

    #[inline]
    pub(super) fn fits(&self, context: &Context, buffer: &[u8], space: &Space) -> bool {
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
    pub(super) fn perform(&self, space: &Space, times: u64) {
        for effect in &self.effects {
            effect.perform(space.at(effect.place), times);
        }
    }
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

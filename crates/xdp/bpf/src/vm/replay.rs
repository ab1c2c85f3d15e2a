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

use super::buff::XdpBuff;
use super::image::Image;
use super::outcome::Outcome;
use super::record::Recorder;
use super::run::{Context, Run};
use super::space::Space;

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

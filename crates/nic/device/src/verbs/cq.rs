//! Completion queues and channels (ibv_create_cq(3), ibv_poll_cq(3), ibv_get_cq_event(3)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use transport::{VerbsError, Wc, refuse};

use super::quota::{Share, memory_for};
use super::{Context, Device};
use crate::cq::{CQE_MAX, CompletionQueue};
use crate::engine::Engine;
use crate::engine::owners::Owner;
use crate::events::EventQueue;
use crate::same_device;

/// A descriptor that becomes readable when an armed CQ gets a completion.
#[derive(Clone)]
pub struct CompChannel {
    pub(super) events: Arc<EventQueue<u64>>,
    context: Context,
}

impl Context {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// `EMFILE` if the process is out of descriptors.
    pub fn create_comp_channel(&self) -> io::Result<CompChannel> {
        Ok(CompChannel { events: Arc::new(EventQueue::new()?), context: self.clone() })
    }

    /// Creates a completion queue of at least `cqe` entries; its events carry `cookie`.
    ///
    /// # Errors
    /// `EINVAL` for 0 or more than `max_cqe` entries, and for a channel of another device; `ENOMEM` at the
    /// limit of the device; `ENODEV` if the engine does not start.
    pub fn create_cq(&self, cqe: u32, channel: Option<&CompChannel>, cookie: u64) -> Result<Cq, VerbsError> {
        self.create_cq_at(cqe, channel, cookie, 0)
    }

    /// Creates a completion queue at a completion vector. With 0 the device selects the engine for the queue
    /// pairs that complete here, by the thread that creates the first of them. The queue pairs of CQs with
    /// the same other vector are on one engine; with a fixed number of engines the vector is its number.
    ///
    /// # Errors
    /// As [`create_cq`](Self::create_cq), and `EINVAL` for a vector that does not exist.
    pub fn create_cq_at(
        &self,
        cqe: u32,
        channel: Option<&CompChannel>,
        cookie: u64,
        vector: u32,
    ) -> Result<Cq, VerbsError> {
        if cqe == 0 || cqe > CQE_MAX {
            return Err(refuse!(EINVAL, "completion queue", "cqe"; cqe;
                "a CQ of {cqe} entries; it has 1 to {CQE_MAX}"));
        }
        let device = self.device();
        if let Some(channel) = channel {
            same_device!("completion queue", "channel"; device, channel.context().device())?;
        }
        let engine = device.engine_or_refusal()?;
        // Vector 0 is always there; the number of the others costs reads of files (cgroups).
        if vector > 0
            && let vectors = self.comp_vectors()
            && vector >= vectors
        {
            return Err(refuse!(EINVAL, "completion queue", "comp_vector"; vector, vectors;
                is "{vector}, num_comp_vectors of the device is {vectors}"));
        }
        memory_for(cqe as usize * size_of::<Wc>())?;
        let share = self.quotas().cqs.take()?;
        Ok(Cq::new((self, engine), cqe, channel, cookie, vector, share))
    }
}

impl CompChannel {
    /// Returns the context of the channel.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the descriptor that is readable while events are unread.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Makes [`get_event`](Self::get_event) return `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// `EBADF` if the application closed the descriptor.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        self.events.set_nonblocking()
    }

    /// Drops the unread events.
    pub fn discard_events(&self) {
        self.events.retain(|_| false);
    }

    /// Returns the cookie of the CQ that the next event is about; waits for one.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking and there is no event.
    pub fn get_event(&self) -> io::Result<u64> {
        self.hand_over();
        self.events.get()
    }

    /// Looks for completions once, then leaves all engines to the progress threads: this thread may wait.
    fn hand_over(&self) {
        let Ok(first) = self.context.device().engine() else { return };
        for engine in first.all() {
            engine.poll_inline();
            engine.hand_over();
        }
        if let Some(raw) = first.place.raw() {
            raw.hand_over();
        }
    }
}

impl AsFd for CompChannel {
    /// The descriptor is readable while events are unread.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// A completion queue.
#[derive(Clone)]
pub struct Cq(Arc<CqInner>);

struct CqInner {
    queue: Arc<CompletionQueue>,
    context: Context,
    /// The device's first engine.
    engine: Arc<Engine>,
    /// Bit n is set if engine n has queue pairs that complete here.
    engine_mask: AtomicU32,
    /// The completion vector; 0 leaves the choice of the engine to the device.
    vector: u32,
    _share: Share,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Runs the engines in `engine_mask`, a bit for each, or the first engine if there are none. If they have no
/// work, runs at times an engine that no thread polls.
#[inline]
pub(super) fn poll_engines(first: &Arc<Engine>, engine_mask: u32) {
    let engine_mask = engine_mask.max(1);
    let mut found = false;
    let mut left = engine_mask;
    while left != 0 {
        found |= first.at(left.trailing_zeros() as usize).poll_inline();
        left &= left - 1;
    }
    if !found {
        first.poll_sibling(engine_mask);
    }
}

impl Cq {
    fn new(
        (context, engine): (&Context, Arc<Engine>),
        cqe: u32,
        channel: Option<&CompChannel>,
        cookie: u64,
        vector: u32,
        share: Share,
    ) -> Self {
        let channel = channel.map(|c| Arc::clone(&c.events));
        let queue = {
            let (armed, credits) = (Arc::clone(engine.polling.armed_cqs()), engine.tuning().backlog_polls);
            CompletionQueue::new(cqe, channel, cookie, armed, &engine.moderator, credits)
        };
        if let Some(chaos) = engine.chaos() {
            queue.set_chaos(chaos);
        }
        let engine_mask = AtomicU32::new(0);
        let context = context.clone();
        engine.objects.add_cq(context.number(), &queue);
        Self(Arc::new(CqInner { queue, context, engine, engine_mask, vector, _share: share }))
    }

    pub(crate) fn queue(&self) -> &Arc<CompletionQueue> {
        &self.0.queue
    }

    pub(crate) fn device(&self) -> &Device {
        self.0.context.device()
    }

    /// The device's first engine.
    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// Returns [`first_engine`](Self::first_engine); if there is none, `otherwise()` becomes the first
    /// engine.
    pub(super) fn engine_or(&self, otherwise: impl FnOnce() -> usize) -> usize {
        self.first_engine().unwrap_or_else(|| {
            let (none, chosen) = (0, otherwise());
            match self.0.engine_mask.compare_exchange(none, 1 << chosen, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => chosen,
                Err(engine_mask) => engine_mask.trailing_zeros() as usize,
            }
        })
    }

    /// The owner of the engine of its first queue pair.
    pub(super) fn owner(&self) -> Owner {
        if self.0.vector > 0 { Owner::Vector(self.0.vector) } else { Owner::this_thread() }
    }

    /// Records that queue pairs of this engine complete here.
    pub(super) fn add_engine(&self, engine: usize) {
        self.0.engine_mask.fetch_or(1 << engine, Ordering::Relaxed);
    }

    /// Returns the engine that has queue pairs completing here; the first if there are several.
    pub(super) fn first_engine(&self) -> Option<usize> {
        let engine_mask = self.0.engine_mask.load(Ordering::Relaxed);
        (engine_mask != 0).then(|| engine_mask.trailing_zeros() as usize)
    }

    /// Runs the engines that have queue pairs completing here.
    #[inline]
    fn poll_engines(&self) {
        poll_engines(&self.0.engine, self.0.engine_mask.load(Ordering::Relaxed));
    }

    /// Moves up to `out.len()` completions into `out`, oldest first; runs the engine if there are none.
    #[inline]
    pub fn poll(&self, out: &mut [MaybeUninit<Wc>]) -> usize {
        self.polled_queue().pop(out)
    }

    /// Returns the oldest completion; runs the engine if there is none.
    #[must_use]
    pub fn poll_one(&self) -> Option<Wc> {
        self.polled_queue().pop_one()
    }

    /// From now on [`poll_timed`](Self::poll_timed) tells when each completion was added.
    pub fn record_times(&self) {
        self.0.queue.record_times(self.0.engine.now());
    }

    /// As [`poll_one`](Self::poll_one), with the time when the completion was added: nanoseconds of the
    /// device's clock ([`now_ns`](sys::now_ns)), 0 unless times are recorded.
    #[must_use]
    pub fn poll_timed(&self) -> Option<(Wc, u64)> {
        self.polled_queue().pop_timed()
    }

    /// Returns the queue, after running the engine if it is empty.
    #[inline]
    fn polled_queue(&self) -> &CompletionQueue {
        if self.0.queue.is_empty() {
            self.poll_engines();
        }
        &self.0.queue
    }

    /// Requests one channel event at the next completion (or the next solicited or failed one).
    pub fn req_notify(&self, solicited_only: bool) {
        self.0.queue.arm(solicited_only);
        self.poll_engines();
        for engine in self.0.engine.all() {
            engine.hand_over();
        }
        if let Some(raw) = self.0.engine.place.raw() {
            raw.hand_over();
        }
    }

    /// Delays channel events until `count` completions are there, or `period_us` microseconds have passed
    /// since the first of them (ibv_modify_cq(3)). A count of 0 or 1, or a period of 0, delays nothing.
    pub fn moderate(&self, count: u16, period_us: u16) {
        self.0.queue.moderate(count, period_us);
    }

    /// Changes the number of entries.
    ///
    /// # Errors
    /// `EINVAL` if the queue holds more completions than that.
    pub fn resize(&self, cqe: u32) -> Result<(), VerbsError> {
        memory_for(cqe.min(CQE_MAX) as usize * size_of::<Wc>())?;
        self.0.queue.resize(cqe)
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.0.queue.capacity()
    }

    /// Returns the cookie that the creator chose.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.0.queue.cookie()
    }

    /// True if a QP still uses it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

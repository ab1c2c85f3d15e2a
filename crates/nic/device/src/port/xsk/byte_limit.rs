//! Back-pressure: a limit for the bytes that one transmit queue may hold, as small as keeps the queue busy.
//!
//! A packet that waits in the kernel waits in front of every later one, also of other programs, and cannot be
//! given a better order any more. The limit follows two observations, made when sent chunks come back:
//!
//! - The queue had become empty while the port was refused: the limit was too small, and grows by what was
//!   sent since.
//! - The queue never held less than some number of bytes during a period: these bytes only waited, and the
//!   limit shrinks by them.

/// The limit of one queue. Sans I/O: the caller gives it the time.
#[derive(Clone, Debug)]
pub(crate) struct ByteLimit {
    /// Bytes in flight at which the queue takes no more; `None` without a limit.
    limit: Option<usize>,
    /// Bytes given to the kernel and not completed.
    in_flight: usize,
    /// Bytes completed since the port was refused; `None` if it was not.
    sent_since_refusal: Option<usize>,
    /// Fewest bytes left by a completion since the period began; `None` before the first one.
    lowest: Option<usize>,
    period_ends_ns: u64,
    /// When the present stall began.
    stalled_since_ns: Option<u64>,
    pub(crate) counters: StallCounters,
}

/// How often and how long a queue refused packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct StallCounters {
    /// Times it began to refuse them.
    pub(crate) stalls: u64,
    /// Time during which it did, in nanoseconds.
    pub(crate) stalled_ns: u64,
}

/// First limit: one full quantum of a queue pair at MTU 4096. It doubles with each growth while that is too
/// little, and a period shrinks it to any lower value.
const START_BYTES: usize = 64 * 1024;
/// Two packets of the largest MTU, so that one is sent while the other one is written.
const MIN_BYTES: usize = 2 * 4096 + 2 * 128;
/// Half of the transmit chunks at 8 KiB each, which all queues of a port may hold.
const MAX_BYTES: usize = 8 << 20;
/// Length of a period: several round trips of a network, and shorter than a person notices. Half: the limit
/// shrinks on the pauses of a busy CPU. Twice: a queue that begins to wait waits twice as long.
const PERIOD_NS: u64 = 50_000_000;

impl ByteLimit {
    /// A limit that adapts itself, or none.
    pub(crate) fn new(is_limited: bool) -> Self {
        Self {
            limit: is_limited.then_some(START_BYTES),
            in_flight: 0,
            sent_since_refusal: None,
            lowest: None,
            period_ends_ns: 0,
            stalled_since_ns: None,
            counters: StallCounters::default(),
        }
    }

    /// Whether the queue takes another packet.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.in_flight < limit)
    }

    /// The present limit; 0 without one.
    pub(crate) fn bytes(&self) -> usize {
        self.limit.unwrap_or(0)
    }

    /// A packet was given to the queue.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.in_flight += bytes;
    }

    /// The port wanted to send and was refused, although all completions were fetched.
    pub(crate) fn refuse(&mut self, now_ns: u64) {
        self.sent_since_refusal.get_or_insert(0);
        if self.stalled_since_ns.is_none() {
            self.stalled_since_ns = Some(now_ns);
            self.counters.stalls += 1;
        }
    }

    /// The port was not refused.
    #[inline]
    pub(crate) fn accept(&mut self, now_ns: impl FnOnce() -> u64) {
        if let Some(since_ns) = self.stalled_since_ns.take() {
            self.counters.stalled_ns += now_ns().saturating_sub(since_ns);
            // What empties the queue from now on is a sender that has no more packets.
            self.sent_since_refusal = None;
        }
    }

    /// Packets of `bytes` together were completed.
    pub(crate) fn completed(&mut self, bytes: usize, now_ns: impl FnOnce() -> u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        let Some(limit) = &mut self.limit else { return };
        let now_ns = now_ns();
        if let Some(sent) = &mut self.sent_since_refusal {
            *sent += bytes;
        }
        if self.lowest.is_none() {
            self.period_ends_ns = now_ns + PERIOD_NS;
        }
        let lowest = self.lowest.unwrap_or(usize::MAX).min(self.in_flight);
        if self.in_flight == 0 {
            *limit = (*limit + self.sent_since_refusal.unwrap_or(0)).min(MAX_BYTES);
        } else if now_ns >= self.period_ends_ns {
            *limit = limit.saturating_sub(lowest).max(MIN_BYTES);
        } else {
            self.lowest = Some(lowest);
            return;
        }
        (self.sent_since_refusal, self.lowest) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that sends `rate` bytes per microsecond, and a sender that asks every `poll_us`. Returns the
    /// limit after `ms`, the bytes sent in the last half, and the queue's mean length in that half.
    fn run(limit: &mut ByteLimit, rate: usize, poll_us: u64, ms: u64) -> (usize, usize, usize) {
        const PACKET: usize = 1000;
        let (mut waiting, mut credit, mut sent, mut length, mut polls) = (0_usize, 0, 0, 0, 0);
        for now_us in (0..ms * 1000).step_by(poll_us as usize) {
            let now_ns = now_us * 1000;
            credit = if waiting == 0 { 0 } else { credit + rate * poll_us as usize };
            let done = (credit / PACKET * PACKET).min(waiting);
            credit -= done;
            waiting -= done;
            if done > 0 {
                limit.completed(done, || now_ns);
            }
            if now_us >= ms * 500 {
                (sent, length, polls) = (sent + done, length + waiting, polls + 1);
            }
            while limit.has_room() {
                limit.accept(|| now_ns);
                limit.sent(PACKET);
                waiting += PACKET;
            }
            limit.refuse(now_ns);
        }
        (limit.bytes(), sent, length / polls.max(1))
    }

    #[test]
    fn the_limit_keeps_the_link_busy_and_the_queue_short() {
        // 100 and 1000 bytes per microsecond are 0.8 and 8 Gbit/s.
        for (rate, poll_us) in [(100, 50), (1000, 50), (100, 1000)] {
            let mut limit = ByteLimit::new(true);
            let (bytes, sent, length) = run(&mut limit, rate, poll_us, 4000);
            let possible = rate * 2_000_000;
            assert!(sent * 100 >= possible * 90, "{rate} {poll_us}: {sent} of {possible}, limit {bytes}");
            let per_poll = (rate * poll_us as usize).max(MIN_BYTES);
            assert!(length <= 4 * per_poll, "{rate} {poll_us}: {length} bytes wait, limit {bytes}");
        }
    }

    #[test]
    fn the_limit_follows_a_link_that_becomes_slower() {
        let mut limit = ByteLimit::new(true);
        let (fast, ..) = run(&mut limit, 10_000, 50, 1000);
        assert!(fast > 500_000, "{fast}");
        limit.completed(limit.in_flight, || 0);
        let (slow, ..) = run(&mut limit, 10, 50, 8000);
        assert!(slow < 4 * MIN_BYTES, "{slow}");
    }

    /// A sender with a window of its own reaches a limit only because it fetches completions late.
    #[test]
    fn bytes_that_only_wait_shrink_a_limit_that_refuses_no_packet() {
        let mut limit = ByteLimit { limit: Some(325_000), ..ByteLimit::new(true) };
        limit.sent(280_000);
        for ms in 0..200 {
            limit.completed(12_000, || ms * 1_000_000);
            limit.sent(12_000);
        }
        assert!(limit.bytes() < 60_000, "{}", limit.bytes());
        assert_eq!(limit.counters, StallCounters::default());
    }

    #[test]
    fn stalls_are_counted_with_their_times() {
        let mut limit = ByteLimit::new(true);
        limit.sent(START_BYTES);
        assert!(!limit.has_room());
        limit.refuse(1000);
        limit.refuse(2000);
        limit.completed(1000, || 2500);
        assert!(limit.has_room());
        limit.accept(|| 3000);
        limit.accept(|| unreachable!("no stall"));
        assert_eq!(limit.counters, StallCounters { stalls: 1, stalled_ns: 2000 });
        let mut unlimited = ByteLimit::new(false);
        unlimited.sent(usize::MAX / 2);
        assert!(unlimited.has_room() && unlimited.bytes() == 0);
    }
}

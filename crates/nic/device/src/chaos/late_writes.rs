//! When and in which order the bytes of messages reach application memory.
//!
//! The payload of a packet is cut into pieces, which become visible in any order. Pieces wait here until
//! their time has come, or until something guarantees that they are visible. Invariants, from the order
//! that a NIC must keep:
//!
//! - Pieces of a WRITE become visible after all pieces of the WRITEs before it on the same queue pair.
//! - Everything is visible before the completion of a receive, before a READ or an atomic is executed, before
//!   a FLUSH is confirmed, and before a key changes.
//! - The bytes of a READ response or a SEND are visible before the completion that reports them, and before a
//!   work request reads local memory.
//! - Pieces that overlap become visible in the order of arrival. Words of eight aligned bytes stay whole.

use std::cell::RefCell;
use std::sync::Arc;

use transport::Instant;
use transport::chaos::{Chaos, Fault};
use wire::Qpn;

/// Longest delay of a WRITE, in nanoseconds. Longer than a round trip between two processes of a host
/// (10 to 100 us), so that a message by another way overtakes it. Double: programs that poll memory are slow.
const LATE_NS: u64 = 400_000;
/// Longest time between the first and the last piece of a message.
const GAP_NS: u64 = 150_000;
/// Most bytes that wait. More are placed at once.
const WAITING_MAX: usize = 1 << 20;
/// Bytes that are never torn apart.
const WORD: u64 = 8;
/// The stream of local writes. Numbers of queue pairs are smaller.
const LOCAL: u64 = u64::MAX;

/// Bytes for application memory.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Address of the first byte in this process.
    pub(crate) to: u64,
    pub(crate) bytes: Vec<u8>,
    message: u64,
    due: Instant,
    /// Order among the pieces of a message with the same time.
    order: u64,
}

impl Piece {
    fn overlaps(&self, to: u64, len: usize) -> bool {
        self.to < to + len as u64 && to < self.to + self.bytes.len() as u64
    }
}

/// Which pieces are placed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Which {
    /// All.
    All,
    /// Bytes of SENDs and READ responses.
    Local,
    /// Those that are due.
    Due,
}

/// The writes through one queue pair, or all local ones.
#[derive(Debug)]
struct Stream {
    /// The [number](Chaos::number) of the queue pair; [`LOCAL`] for local writes.
    number: u64,
    message: u64,
    /// Packets of the message so far.
    packets: u64,
    /// Pieces of the message become visible at this time at the earliest.
    from: Instant,
    /// When the last piece so far becomes visible.
    until: Instant,
    /// How late the message is, once it is decided.
    delay_ns: Option<u64>,
    pieces: Vec<Piece>,
}

impl Stream {
    fn new(number: u64) -> Self {
        let (from, until) = (Instant::ZERO, Instant::ZERO);
        Self { number, message: 0, packets: 0, from, until, delay_ns: None, pieces: Vec::new() }
    }

    fn is_local(&self) -> bool {
        self.number == LOCAL
    }

    fn begin_message(&mut self) {
        self.message += 1;
        self.packets = 0;
        self.from = self.until;
        self.delay_ns = None;
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct LateWrites {
    chaos: Arc<Chaos>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    now: Instant,
    streams: Vec<Stream>,
    waiting_bytes: usize,
}

impl LateWrites {
    pub(crate) fn new(chaos: &Arc<Chaos>) -> Box<Self> {
        Box::new(Self { chaos: Arc::clone(chaos), state: RefCell::default() })
    }

    /// Sets the time.
    pub(crate) fn set_now(&self, now: Instant) {
        self.state.borrow_mut().now = now;
    }

    /// When [`take`](Self::take) has pieces that are due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let state = self.state.borrow();
        let first = |stream: &Stream| stream.pieces.first().map(|piece| piece.due);
        state.streams.iter().filter_map(first).min()
    }

    /// A message of the peer of `qpn` begins.
    pub(crate) fn message_begins(&self, qpn: Qpn) {
        self.with_stream(self.number(Some(qpn)), Stream::begin_message);
    }

    /// The number of the stream of `qpn`, or of the local one.
    fn number(&self, qpn: Option<Qpn>) -> u64 {
        qpn.map_or(LOCAL, |qpn| self.chaos.number(qpn.value()))
    }

    fn with_stream<R>(&self, number: u64, work: impl FnOnce(&mut Stream) -> R) -> R {
        let streams = &mut self.state.borrow_mut().streams;
        let at = streams.iter().position(|stream| stream.number == number).unwrap_or_else(|| {
            streams.push(Stream::new(number));
            streams.len() - 1
        });
        work(&mut streams[at])
    }

    /// Accepts the payload of a packet for memory at `to`: of a WRITE of the peer of `qpn`, or without one of
    /// a SEND or a READ response. Returns the pieces to place now, in this order.
    pub(crate) fn write(&self, qpn: Option<Qpn>, to: u64, src: &[u8]) -> Vec<Piece> {
        let (now, number) = (self.state.borrow().now, self.number(qpn));
        let pieces = self.with_stream(number, |stream| cut(&self.chaos, stream, now, to, src));
        let mut ready = Vec::new();
        {
            let state = &mut *self.state.borrow_mut();
            let overlaps = |piece: &Piece| piece.overlaps(to, src.len());
            let is_crowded = state.waiting_bytes + src.len() > WAITING_MAX;
            for stream in &mut state.streams {
                let is_other =
                    stream.number != number || stream.pieces.iter().any(|p| p.message != stream.message);
                let earlier = stream.is_local() || is_other;
                if is_crowded || (earlier && stream.pieces.iter().any(overlaps)) {
                    ready.append(&mut stream.pieces);
                }
            }
            state.waiting_bytes += src.len();
            state.waiting_bytes -= ready.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        }
        self.with_stream(number, |stream| {
            stream.pieces.extend(pieces);
            stream.pieces.sort_by_key(|piece| (piece.message, piece.due, piece.order));
        });
        ready.extend(self.take(Which::Due));
        ready
    }

    /// Removes pieces; the caller places them in this order.
    pub(crate) fn take(&self, which: Which) -> Vec<Piece> {
        let state = &mut *self.state.borrow_mut();
        let mut taken = Vec::new();
        for stream in &mut state.streams {
            let count = match which {
                Which::All => stream.pieces.len(),
                Which::Local if stream.is_local() => stream.pieces.len(),
                Which::Local => 0,
                Which::Due => stream.pieces.iter().take_while(|piece| piece.due <= state.now).count(),
            };
            taken.extend(stream.pieces.drain(..count));
        }
        state.waiting_bytes -= taken.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        taken
    }
}

/// Cuts the payload of a packet into pieces, and decides when they become visible.
fn cut(chaos: &Chaos, stream: &mut Stream, now: Instant, to: u64, src: &[u8]) -> Vec<Piece> {
    let Stream { number, message, .. } = *stream;
    let is_remote = !stream.is_local();
    let delay_ns = *stream.delay_ns.get_or_insert_with(|| {
        let late = if is_remote { chaos.strikes(Fault::Visibility, number, message) } else { None };
        late.map_or(0, |mut draw| 1 + draw.below(LATE_NS))
    });
    let start = Instant(stream.from.0.max(if delay_ns > 0 { now.0 + delay_ns } else { 0 }));
    let position = message << 24 | stream.packets;
    stream.packets += 1;
    let piece = |bytes: &[u8], to, due, order| Piece { to, bytes: bytes.to_vec(), message, due, order };
    let words = (to + src.len() as u64).div_ceil(WORD) - to / WORD;
    let placement = if words > 1 { chaos.strikes(Fault::Placement, number, position) } else { None };
    let Some(mut draw) = placement else {
        stream.until = stream.until.max(start);
        return vec![piece(src, to, start, 0)];
    };
    // The boundaries are those of words; the last piece is one word often, the one that programs poll.
    let boundary = |word: u64| ((to / WORD + word) * WORD - to) as usize;
    let mut cuts = vec![0, boundary(words - 1).min(src.len()), src.len()];
    cuts.extend((0..2).map(|_| boundary(1 + draw.below(words - 1)).min(src.len())));
    cuts.sort_unstable();
    cuts.dedup();
    let base = start.0.max(now.0);
    let mut pieces = Vec::with_capacity(cuts.len());
    for range in cuts.windows(2) {
        let is_last = range[1] == src.len();
        let gap_ns = if is_last && draw.below(4) > 0 { 0 } else { draw.below(GAP_NS) };
        let (due, order) = (Instant(base + gap_ns), draw.bits());
        stream.until = stream.until.max(due);
        pieces.push(piece(&src[range[0]..range[1]], to + range[0] as u64, due, order));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    const QPS: [Option<Qpn>; 2] = [Some(Qpn::new(17)), Some(Qpn::new(18))];

    /// Memory at address 0, and the writes to it.
    struct Bench {
        late: Box<LateWrites>,
        memory: Vec<u8>,
        now: Instant,
    }

    impl Bench {
        fn new(seed: u64) -> Bench {
            let plan = format!("seed={seed},faults=placement+visibility").parse().expect("a plan");
            let late = LateWrites::new(&Arc::new(Chaos::new(plan)));
            Bench { late, memory: vec![0; 4096], now: Instant::ZERO }
        }

        fn place(&mut self, pieces: Vec<Piece>) {
            for piece in pieces {
                self.memory[piece.to as usize..][..piece.bytes.len()].copy_from_slice(&piece.bytes);
            }
        }

        fn write(&mut self, qpn: Option<Qpn>, to: u64, bytes: &[u8]) {
            let pieces = self.late.write(qpn, to, bytes);
            self.place(pieces);
        }

        /// A WRITE of one packet.
        fn message(&mut self, qpn: Option<Qpn>, to: u64, bytes: &[u8]) {
            qpn.into_iter().for_each(|qpn| self.late.message_begins(qpn));
            self.write(qpn, to, bytes);
        }

        /// Goes on to the next deadline; false if there is none.
        fn advance(&mut self) -> bool {
            let Some(due) = self.late.next_due() else { return false };
            self.now = self.now.max(due);
            self.late.set_now(self.now);
            let pieces = self.late.take(Which::Due);
            self.place(pieces);
            true
        }
    }

    #[test]
    fn every_byte_is_placed_and_some_seeds_show_the_last_before_the_first() {
        let mut last_first = 0;
        for seed in 0..40 {
            let mut bench = Bench::new(seed);
            bench.message(QPS[0], 3, &[7; 1000]);
            let mut seen = bench.memory[1002] != 0 && bench.memory[3] == 0;
            while bench.advance() {
                seen |= bench.memory[1002] != 0 && bench.memory[3] == 0;
            }
            assert!(bench.memory[3..1003].iter().all(|byte| *byte == 7), "seed {seed}");
            assert_eq!((bench.memory[2], bench.memory[1003]), (0, 0));
            last_first += u32::from(seen);
        }
        assert!(last_first > 5, "{last_first}");
    }

    #[test]
    fn a_write_is_not_visible_before_an_earlier_one_of_its_queue_pair() {
        let mut overtaken_by_other = 0;
        for seed in 0..60 {
            let mut bench = Bench::new(seed);
            bench.message(QPS[0], 0, &[1; 64]);
            bench.message(QPS[0], 2048, &[1; 8]);
            bench.message(QPS[1], 3072, &[1; 8]);
            loop {
                let data = bench.memory[..64].iter().all(|byte| *byte == 1);
                assert!(data || bench.memory[2048] == 0, "seed {seed}");
                overtaken_by_other += u32::from(!data && bench.memory[3072] == 1);
                if !bench.advance() {
                    break;
                }
            }
        }
        assert!(overtaken_by_other > 5, "{overtaken_by_other}");
    }

    #[test]
    fn overlapping_writes_take_effect_in_the_order_of_arrival() {
        for seed in 0..60 {
            let mut bench = Bench::new(seed);
            for (round, qpn) in [QPS[0], QPS[1], None, QPS[0], None, None].into_iter().enumerate() {
                bench.message(qpn, 100, &[round as u8 + 1; 300]);
            }
            while bench.advance() {}
            assert!(bench.memory[100..400].iter().all(|byte| *byte == 6), "seed {seed}");
        }
    }

    #[test]
    fn all_and_local_pieces_can_be_placed_early_and_words_stay_whole() {
        for seed in 0..60 {
            let mut bench = Bench::new(seed);
            bench.message(QPS[0], 8, &[1; 8]);
            bench.write(None, 1024, &[2; 512]);
            let word: u32 = bench.memory[8..16].iter().map(|byte| u32::from(*byte)).sum();
            assert!(word == 0 || word == 8, "seed {seed}: {word}");
            let local = bench.late.take(Which::Local);
            bench.place(local);
            assert!(bench.memory[1024..1536].iter().all(|byte| *byte == 2), "seed {seed}");
            let all = bench.late.take(Which::All);
            bench.place(all);
            assert!(bench.memory[8..16].iter().all(|byte| *byte == 1) && bench.late.next_due().is_none());
        }
    }

    #[test]
    fn the_waiting_bytes_are_limited() {
        let (late, mut most) = (Bench::new(2).late, 0);
        for packet in 0..3 * WAITING_MAX as u64 / 1024 {
            late.message_begins(QPS[0].expect("one"));
            // The time stands still, so nothing is due once a message is late.
            drop(late.write(QPS[0], packet * 1024, &[1; 1024]));
            most = most.max(late.state.borrow().waiting_bytes);
        }
        assert!(most > WAITING_MAX / 2 && most <= WAITING_MAX, "{most}");
    }
}

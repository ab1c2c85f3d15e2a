//! The work of a reliable connection: all work requests of both sides, with their source and target bytes,
//! and the contents of memory afterwards. Different operations use different bytes, except for READs of
//! earlier WRITEs, and atomics.

use transport::WrOp;
use wire::{Feth, Rkey};

use crate::memory::{REMOTE_BASE, REMOTE_KEY};
use crate::queue_pair::SRQNS;
use crate::rng::Rng;

/// An operation and its operands.
#[derive(Clone, Debug, Default)]
pub(crate) enum Kind {
    #[default]
    Send,
    SendImm {
        imm: [u8; 4],
    },
    SendInv {
        key: u32,
    },
    Write {
        to: usize,
    },
    WriteImm {
        to: usize,
        imm: [u8; 4],
    },
    Read {
        from: usize,
    },
    CompareSwap {
        word: usize,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        word: usize,
        add: u64,
    },
    AtomicWrite {
        to: usize,
    },
    Flush {
        from: usize,
        whole: bool,
    },
    LocalInv {
        key: u32,
    },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// Offset of the local bytes: the source, or for READ and atomics the target.
    pub(crate) local: usize,
    pub(crate) len: usize,
    /// Lengths of the scatter/gather elements; their sum is `len`.
    pub(crate) pieces: Vec<u32>,
    /// XRC: number of the shared receive queue of the request.
    pub(crate) srqn: Option<u32>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) inline: bool,
    /// Expected result of READ and atomics.
    pub(crate) fetched: Vec<u8>,
    /// A later READ reads the target of this WRITE.
    pub(crate) read_later: bool,
    /// A later SEND with a fence sends the result of this READ.
    pub(crate) sent_later: bool,
}

/// A receive work request.
#[derive(Clone, Debug)]
pub(crate) struct Recv {
    pub(crate) local: usize,
    pub(crate) room: usize,
    /// Expected bytes; `None` for WRITE with immediate data, which writes its payload elsewhere.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) byte_len: usize,
    pub(crate) imm: Option<[u8; 4]>,
    pub(crate) inv: Option<u32>,
    pub(crate) solicited: bool,
    /// XRC: number of the shared receive queue to which the receive is posted.
    pub(crate) srqn: Option<u32>,
}

/// The work of one side.
#[derive(Default)]
pub(crate) struct Half {
    pub(crate) ops: Vec<Op>,
    pub(crate) recvs: Vec<Recv>,
    pub(crate) local: Vec<u8>,
    pub(crate) remote: Vec<u8>,
    pub(crate) keys: Vec<u32>,
    /// Offsets of atomic words in `remote`, each with its values in order.
    pub(crate) words: Vec<(usize, Vec<u64>)>,
    /// Contents of both regions at the end.
    pub(crate) remote_after: Vec<u8>,
    pub(crate) local_after: Vec<u8>,
}

/// Limits drawn for the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) mtu: usize,
    pub(crate) max_sge: usize,
    pub(crate) max_inline: usize,
    pub(crate) ops: usize,
    pub(crate) bytes: usize,
    /// Share of fenced work requests, per mille.
    pub(crate) fences: u64,
    /// Whether the connection is XRC, which has no FLUSH and no ATOMIC WRITE.
    pub(crate) is_extended: bool,
}

impl Half {
    fn take_local(&mut self, len: usize, rng: &mut Rng) -> usize {
        take(&mut self.local, len, rng)
    }

    fn take_remote(&mut self, len: usize, rng: &mut Rng) -> usize {
        take(&mut self.remote, len, rng)
    }
}

/// Extends a region by `len` random bytes and a random gap. Returns the offset of the bytes.
fn take(region: &mut Vec<u8>, len: usize, rng: &mut Rng) -> usize {
    let start = region.len() + rng.between(1, 24) as usize;
    let end = start + len;
    let old = region.len();
    region.resize(end + 8, 0);
    rng.fill(&mut region[old..]);
    start
}

fn message_len(shape: &Shape, left: usize, rng: &mut Rng) -> usize {
    let mtu = shape.mtu as u64;
    let len = match rng.between(0, 19) {
        0..=1 => 0,
        2..=7 => rng.between(1, 64),
        8..=9 => mtu * rng.between(1, 4),
        10..=12 => rng.between(1, mtu),
        13..=16 => rng.between(1, 8 * mtu),
        17..=18 => rng.between(1, 64 * 1024),
        _ => rng.between(1, 256 * 1024),
    };
    (len as usize).min(left)
}

fn split(len: usize, max_sge: usize, rng: &mut Rng) -> Vec<u32> {
    let mut pieces = Vec::new();
    let mut left = len;
    for _ in 1..rng.between(1, max_sge as u64) {
        let piece = rng.between(0, left as u64) as usize;
        pieces.push(piece as u32);
        left -= piece;
    }
    if left > 0 || rng.chance(500) {
        pieces.push(left as u32);
    }
    pieces
}

/// The state of drawing the operations of one side.
struct Drawing<'a> {
    from: &'a mut Half,
    to: &'a mut Half,
    shape: &'a Shape,
    key_base: u32,
    rng: &'a mut Rng,
    /// Atomic words of `to.remote` and the values they take, in order.
    words: Vec<(usize, Vec<u64>)>,
    /// Offset and length of the part of `to.remote` that no WRITE changes.
    readable: usize,
    readable_len: usize,
    /// Indices of the WRITEs drawn so far.
    written: Vec<usize>,
}

/// Adds the operations of `from` towards `to`.
pub(crate) fn draw(from: &mut Half, to: &mut Half, shape: &Shape, key_base: u32, rng: &mut Rng) {
    let mut left = shape.bytes;
    let mut words: Vec<(usize, Vec<u64>)> = Vec::new();
    for _ in 0..rng.between(1, 3) {
        let at = take(&mut to.remote, 16, rng).next_multiple_of(8);
        words.push((at, vec![word_at(&to.remote, at)]));
    }
    let readable_len = (64 * 1024).min(shape.bytes / 4);
    let readable = to.take_remote(readable_len, rng);
    let written = Vec::new();
    let mut drawing = Drawing { from, to, shape, key_base, rng, words, readable, readable_len, written };
    for i in 0..shape.ops {
        drawing.draw_op(i, &mut left);
    }
    let Drawing { from, to, words, .. } = drawing;
    // The last operation is signaled, so that the run sees the end.
    if let Some(last) = from.ops.last_mut() {
        last.signaled = true;
    }
    to.words.extend(words);
}

impl Drawing<'_> {
    /// Draws operation `i`. `left` is the number of bytes that the remaining operations may transfer.
    fn draw_op(&mut self, i: usize, left: &mut usize) {
        let kind = match self.rng.between(0, 99) {
            kind @ 87..=91 if self.shape.is_extended => kind - 60,
            kind => kind,
        };
        let srqn = self.shape.is_extended.then(|| self.rng.pick(&SRQNS));
        let len = message_len(self.shape, *left, self.rng);
        *left -= len;
        let op = match kind {
            0..=44 => self.send(kind, i, len, srqn),
            45..=72 => self.write(kind, len, srqn),
            73..=86 => self.read(len),
            87..=89 => {
                let at = take(&mut self.to.remote, 16, self.rng).next_multiple_of(8);
                plain(Kind::AtomicWrite { to: at }, self.from.take_local(8, self.rng), 8)
            }
            90..=91 => {
                let at = self.rng.between(0, (self.to.remote.len() - 1) as u64) as usize;
                plain(Kind::Flush { from: at, whole: self.rng.chance(300) }, 0, 0)
            }
            92..=97 => self.atomic(),
            _ => {
                let key = self.key_base + 0x8000 + i as u32;
                self.from.keys.push(key);
                plain(Kind::LocalInv { key }, 0, 0)
            }
        };
        let inline = op.len <= self.shape.max_inline
            && op.fetched.is_empty()
            && !op.fence
            && !matches!(op.kind, Kind::Read { .. } | Kind::Flush { .. } | Kind::LocalInv { .. })
            && self.rng.chance(300);
        let has_none = matches!(op.kind, Kind::Flush { .. } | Kind::LocalInv { .. });
        let pieces = if has_none { vec![] } else { split(op.len, self.shape.max_sge, self.rng) };
        self.from.ops.push(Op {
            pieces,
            srqn,
            signaled: self.rng.chance(600),
            fence: op.fence || self.rng.chance(self.shape.fences),
            inline,
            ..op
        });
    }

    /// Draws a SEND in one of its three forms, and the receive for it.
    fn send(&mut self, kind: u64, i: usize, len: usize, srqn: Option<u32>) -> Op {
        let read = if self.rng.chance(self.shape.fences) { unsent_read(&self.from.ops) } else { None };
        let (local, len, data) = match read {
            Some(read) => {
                let read = &mut self.from.ops[read];
                read.sent_later = true;
                (read.local, read.len, read.fetched.clone())
            }
            None => {
                let local = self.from.take_local(len, self.rng);
                (local, len, self.from.local[local..local + len].to_vec())
            }
        };
        let imm = (self.rng.next() as u32).to_be_bytes();
        let solicited = self.rng.chance(300);
        let (kind, got_imm, inv) = match kind {
            0..=24 => (Kind::Send, None, None),
            25..=36 => (Kind::SendImm { imm }, Some(imm), None),
            _ => {
                let key = self.key_base + i as u32;
                self.to.keys.push(key);
                (Kind::SendInv { key }, None, Some(key))
            }
        };
        let slack = if self.rng.chance(300) { self.rng.between(0, 100) as usize } else { 0 };
        let at = self.to.take_local(len + slack, self.rng);
        self.to.recvs.push(Recv {
            local: at,
            room: len + slack,
            data: Some(data),
            byte_len: len,
            imm: got_imm,
            inv,
            solicited,
            srqn,
        });
        Op { solicited, fence: read.is_some(), ..plain(kind, local, len) }
    }

    /// Draws a WRITE, or a WRITE with immediate data and the receive for it.
    fn write(&mut self, kind: u64, len: usize, srqn: Option<u32>) -> Op {
        let local = self.from.take_local(len, self.rng);
        let at = self.to.take_remote(len, self.rng);
        let solicited = self.rng.chance(300);
        if kind <= 62 {
            self.written.push(self.from.ops.len());
            Op { solicited, ..plain(Kind::Write { to: at }, local, len) }
        } else {
            let imm = (self.rng.next() as u32).to_be_bytes();
            let recv_at = self.to.take_local(8, self.rng);
            self.to.recvs.push(Recv {
                local: recv_at,
                room: 8,
                data: None,
                byte_len: len,
                imm: Some(imm),
                inv: None,
                solicited,
                srqn,
            });
            Op { solicited, ..plain(Kind::WriteImm { to: at, imm }, local, len) }
        }
    }

    /// Draws a READ of an earlier WRITE, or of memory that does not change.
    fn read(&mut self, len: usize) -> Op {
        let local = self.from.take_local(len, self.rng);
        if !self.written.is_empty() && self.rng.chance(500) {
            let write = self.rng.pick(&self.written);
            let (src, whole) = (self.from.ops[write].local, self.from.ops[write].len);
            let Kind::Write { to: at } = self.from.ops[write].kind else { unreachable!() };
            let len = len.min(whole);
            self.from.ops[write].read_later = true;
            let fetched = self.from.local[src..src + len].to_vec();
            Op { fetched, ..plain(Kind::Read { from: at }, local, len) }
        } else {
            let len = len.min(self.readable_len);
            let at = self.readable + self.rng.between(0, (self.readable_len - len) as u64) as usize;
            let fetched = self.to.remote[at..at + len].to_vec();
            Op { fetched, ..plain(Kind::Read { from: at }, local, len) }
        }
    }

    /// Draws a Fetch Add or a Compare Swap of one of the atomic words.
    fn atomic(&mut self) -> Op {
        let local = self.from.take_local(8, self.rng);
        let which = self.rng.between(0, self.words.len() as u64 - 1) as usize;
        let (word, values) = &mut self.words[which];
        let (word, value) = (*word, *values.last().expect("the list of values is never empty"));
        let fetched = value.to_ne_bytes().to_vec();
        let kind = if self.rng.chance(500) {
            let add = self.rng.next();
            values.push(value.wrapping_add(add));
            Kind::FetchAdd { word, add }
        } else {
            let (compare, swap) = (if self.rng.chance(700) { value } else { !value }, self.rng.next());
            if compare == value {
                values.push(swap);
            }
            Kind::CompareSwap { word, compare, swap }
        };
        Op { fetched, ..plain(kind, local, 8) }
    }
}

/// Computes the contents of memory after all operations of `from` towards `to`. The images start as copies.
pub(crate) fn apply(from: &mut Half, to: &mut Half) {
    for op in &from.ops {
        let source = op.local..op.local + op.len;
        match op.kind {
            Kind::Write { to: at } | Kind::WriteImm { to: at, .. } | Kind::AtomicWrite { to: at } => {
                to.remote_after[at..at + op.len].copy_from_slice(&from.local[source]);
            }
            Kind::Read { .. } | Kind::CompareSwap { .. } | Kind::FetchAdd { .. } => {
                from.local_after[source].copy_from_slice(&op.fetched);
            }
            Kind::Send
            | Kind::SendImm { .. }
            | Kind::SendInv { .. }
            | Kind::Flush { .. }
            | Kind::LocalInv { .. } => {}
        }
    }
    for recv in &to.recvs {
        if let Some(data) = &recv.data {
            to.local_after[recv.local..recv.local + data.len()].copy_from_slice(data);
        }
    }
    for (at, values) in &to.words {
        let last = values.last().expect("the list of values is never empty");
        to.remote_after[*at..at + 8].copy_from_slice(&last.to_ne_bytes());
    }
}

/// Returns the latest READ with a result that no later SEND uses.
fn unsent_read(ops: &[Op]) -> Option<usize> {
    ops.iter().rposition(|op| matches!(op.kind, Kind::Read { .. }) && op.len > 0 && !op.sent_later)
}

/// Returns the 8 bytes at `at` as a number in host byte order, as atomics do.
pub(crate) fn word_at(region: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(region[at..at + 8].try_into().expect("8 bytes"))
}

fn plain(kind: Kind, local: usize, len: usize) -> Op {
    Op { kind, local, len, ..Op::default() }
}

impl Op {
    /// Returns the operation in the form of a work request.
    pub(crate) fn wr_op(&self) -> WrOp {
        let r_key = REMOTE_KEY;
        let remote = |at: usize| REMOTE_BASE + at as u64;
        match self.kind {
            Kind::Send => WrOp::Send,
            Kind::SendImm { imm } => WrOp::SendImm(imm),
            Kind::SendInv { key } => WrOp::SendInv(Rkey(key)),
            Kind::Write { to } => WrOp::Write { remote_addr: remote(to), r_key },
            Kind::WriteImm { to, imm } => WrOp::WriteImm { remote_addr: remote(to), r_key, imm },
            Kind::Read { from } => WrOp::Read { remote_addr: remote(from), r_key },
            Kind::CompareSwap { word, compare, swap } => {
                WrOp::CompareSwap { remote_addr: remote(word), r_key, compare, swap }
            }
            Kind::FetchAdd { word, add } => WrOp::FetchAdd { remote_addr: remote(word), r_key, add },
            Kind::AtomicWrite { to } => WrOp::AtomicWrite { remote_addr: remote(to), r_key },
            Kind::Flush { from, whole } => WrOp::Flush {
                remote_addr: remote(from),
                r_key,
                length: 1,
                placement: Feth::GLOBAL_VISIBILITY,
                selectivity: u8::from(whole),
            },
            Kind::LocalInv { key } => WrOp::LocalInv(Rkey(key)),
        }
    }
}

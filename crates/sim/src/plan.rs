//! What a reliable connection does: every work request of both sides, where its bytes come from and go to, and what memory
//! looks like afterwards. No two operations touch the same bytes, but for READs of what an earlier WRITE wrote, and atomics.

use transport::WrOp;
use wire::{Feth, Rkey};

use crate::memory::{REMOTE_BASE, REMOTE_KEY};
use crate::queue_pair::SRQNS;
use crate::rng::Rng;

/// An operation and what it expects.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Send,
    SendImm { imm: [u8; 4] },
    SendInv { key: u32 },
    Write { to: usize },
    WriteImm { to: usize, imm: [u8; 4] },
    Read { from: usize },
    CompareSwap { word: usize, compare: u64, swap: u64 },
    FetchAdd { word: usize, add: u64 },
    AtomicWrite { to: usize },
    Flush { from: usize, whole: bool },
    LocalInv { key: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// Offset of the local bytes: source, or for READ and atomics the target.
    pub(crate) local: usize,
    pub(crate) len: usize,
    /// Lengths of the elements; their sum is `len`.
    pub(crate) pieces: Vec<u32>,
    /// XRC: the shared receive queue that it names.
    pub(crate) srqn: Option<u32>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) inline: bool,
    /// What READ and atomics bring.
    pub(crate) fetched: Vec<u8>,
    /// A later READ looks at what this WRITE wrote.
    pub(crate) looked_at: bool,
    /// A later SEND, behind a fence, sends what this READ brought.
    pub(crate) sent_on: bool,
}

/// A receive work request.
#[derive(Clone, Debug)]
pub(crate) struct Recv {
    pub(crate) local: usize,
    pub(crate) room: usize,
    /// Bytes that arrive, `None` for WRITE with immediate, whose data goes elsewhere.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) byte_len: usize,
    pub(crate) imm: Option<[u8; 4]>,
    pub(crate) inv: Option<u32>,
    pub(crate) solicited: bool,
    /// XRC: the shared receive queue that it is posted to.
    pub(crate) srqn: Option<u32>,
}

/// One side.
#[derive(Default)]
pub(crate) struct Half {
    pub(crate) ops: Vec<Op>,
    pub(crate) recvs: Vec<Recv>,
    pub(crate) local: Vec<u8>,
    pub(crate) remote: Vec<u8>,
    pub(crate) keys: Vec<u32>,
    /// Atomic words of `remote` and the values they take, in order.
    pub(crate) words: Vec<(usize, Vec<u64>)>,
    /// Both regions after everything.
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
    /// Fenced work requests in a thousand.
    pub(crate) fences: u64,
    /// XRC, which has no FLUSH and no ATOMIC WRITE.
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

/// Extends a region by `len` random bytes and a random gap.
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
    let mut written: Vec<usize> = Vec::new();
    for i in 0..shape.ops {
        let kind = match rng.between(0, 99) {
            kind @ 87..=91 if shape.is_extended => kind - 60,
            kind => kind,
        };
        let srqn = shape.is_extended.then(|| rng.pick(&SRQNS));
        let len = message_len(shape, left, rng);
        left -= len;
        let op = match kind {
            0..=44 => {
                let read = if rng.chance(shape.fences) { unsent_read(&from.ops) } else { None };
                let (local, len, data) = match read {
                    Some(read) => {
                        let read = &mut from.ops[read];
                        read.sent_on = true;
                        (read.local, read.len, read.fetched.clone())
                    }
                    None => {
                        let local = from.take_local(len, rng);
                        (local, len, from.local[local..local + len].to_vec())
                    }
                };
                let imm = (rng.next() as u32).to_be_bytes();
                let solicited = rng.chance(300);
                let (kind, got_imm, inv) = match kind {
                    0..=24 => (Kind::Send, None, None),
                    25..=36 => (Kind::SendImm { imm }, Some(imm), None),
                    _ => {
                        let key = key_base + i as u32;
                        to.keys.push(key);
                        (Kind::SendInv { key }, None, Some(key))
                    }
                };
                let slack = if rng.chance(300) { rng.between(0, 100) as usize } else { 0 };
                let at = to.take_local(len + slack, rng);
                to.recvs.push(Recv {
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
            45..=72 => {
                let local = from.take_local(len, rng);
                let at = to.take_remote(len, rng);
                let solicited = rng.chance(300);
                if kind <= 62 {
                    written.push(from.ops.len());
                    Op { solicited, ..plain(Kind::Write { to: at }, local, len) }
                } else {
                    let imm = (rng.next() as u32).to_be_bytes();
                    let recv_at = to.take_local(8, rng);
                    to.recvs.push(Recv {
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
            73..=86 => {
                let local = from.take_local(len, rng);
                if !written.is_empty() && rng.chance(500) {
                    let write = rng.pick(&written);
                    let (src, whole) = (from.ops[write].local, from.ops[write].len);
                    let Kind::Write { to: at } = from.ops[write].kind else { unreachable!() };
                    let len = len.min(whole);
                    from.ops[write].looked_at = true;
                    let fetched = from.local[src..src + len].to_vec();
                    Op { fetched, ..plain(Kind::Read { from: at }, local, len) }
                } else {
                    let len = len.min(readable_len);
                    let at = readable + rng.between(0, (readable_len - len) as u64) as usize;
                    let fetched = to.remote[at..at + len].to_vec();
                    Op { fetched, ..plain(Kind::Read { from: at }, local, len) }
                }
            }
            87..=89 => {
                let at = take(&mut to.remote, 16, rng).next_multiple_of(8);
                plain(Kind::AtomicWrite { to: at }, from.take_local(8, rng), 8)
            }
            90..=91 => {
                let at = rng.between(0, (to.remote.len() - 1) as u64) as usize;
                plain(Kind::Flush { from: at, whole: rng.chance(300) }, 0, 0)
            }
            92..=97 => {
                let local = from.take_local(8, rng);
                let which = rng.between(0, words.len() as u64 - 1) as usize;
                let (word, values) = &mut words[which];
                let (word, value) = (*word, *values.last().expect("it begins with one"));
                let fetched = value.to_ne_bytes().to_vec();
                let kind = if rng.chance(500) {
                    let add = rng.next();
                    values.push(value.wrapping_add(add));
                    Kind::FetchAdd { word, add }
                } else {
                    let (compare, swap) = (if rng.chance(700) { value } else { !value }, rng.next());
                    if compare == value {
                        values.push(swap);
                    }
                    Kind::CompareSwap { word, compare, swap }
                };
                Op { fetched, ..plain(kind, local, 8) }
            }
            _ => {
                let key = key_base + 0x8000 + i as u32;
                from.keys.push(key);
                plain(Kind::LocalInv { key }, 0, 0)
            }
        };
        let inline = op.len <= shape.max_inline
            && op.fetched.is_empty()
            && !op.fence
            && !matches!(op.kind, Kind::Read { .. } | Kind::Flush { .. } | Kind::LocalInv { .. })
            && rng.chance(300);
        let has_none = matches!(op.kind, Kind::Flush { .. } | Kind::LocalInv { .. });
        let pieces = if has_none { vec![] } else { split(op.len, shape.max_sge, rng) };
        from.ops.push(Op {
            pieces,
            srqn,
            signaled: rng.chance(600),
            fence: op.fence || rng.chance(shape.fences),
            inline,
            ..op
        });
    }
    // The last one is signalled, so that the run knows its end.
    if let Some(last) = from.ops.last_mut() {
        last.signaled = true;
    }
    to.words.extend(words);
}

/// Computes what memory looks like after all operations of `from` towards `to`; the images start as copies.
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
        let last = values.last().expect("it begins with one");
        to.remote_after[*at..at + 8].copy_from_slice(&last.to_ne_bytes());
    }
}

/// The latest READ whose bytes nobody sends on.
fn unsent_read(ops: &[Op]) -> Option<usize> {
    ops.iter().rposition(|op| matches!(op.kind, Kind::Read { .. }) && op.len > 0 && !op.sent_on)
}

/// The 8 bytes at `at`, as an atomic sees them.
pub(crate) fn word_at(region: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(region[at..at + 8].try_into().expect("8 bytes"))
}

fn plain(kind: Kind, local: usize, len: usize) -> Op {
    Op {
        kind,
        local,
        len,
        pieces: Vec::new(),
        srqn: None,
        signaled: false,
        solicited: false,
        fence: false,
        inline: false,
        fetched: Vec::new(),
        looked_at: false,
        sent_on: false,
    }
}

impl Op {
    /// As it is posted.
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

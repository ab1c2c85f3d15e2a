//! The memory of the test: one buffer; some parts are granted to peers in various ways, the rest is secret.

use roxie::transport::Access;
use roxie::verbs::{Buffer, Mr, Pd};
use roxie::wire::Rkey;

/// Fills the secret parts; no other data contains it four times in a row.
const SECRET: u8 = 0xc7;
const LEN: usize = 0x1_4000;

/// A part of the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// All remote operations permitted.
const OPEN: Part = Part { at: 0x1000, len: 0x4000 };
/// Only READ permitted.
const READABLE: Part = Part { at: 0x6000, len: 0x1000 };
/// Only WRITE permitted; its address is near the end of the address space.
const EDGE: Part = Part { at: 0x8000, len: 0x1000 };
/// For receives, READ data and results of atomics; its key grants nothing to peers.
pub(crate) const INBOX: Part = Part { at: 0xa000, len: 0x3000 };
/// Registered once, and deregistered.
const STALE: Part = Part { at: 0xe000, len: 0x1000 };
/// Registered in another protection domain.
const FOREIGN: Part = Part { at: 0xf000, len: 0x1000 };
/// The source of the victims' sends.
pub(crate) const SOURCE: Part = Part { at: 0x1_1000, len: 0x2000 };

/// Address of [`EDGE`]; the byte after the region would be the last of the address space.
const EDGE_IOVA: u64 = u64::MAX - EDGE.len as u64;

/// A key, and the range that it grants or once granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) key: Rkey,
    pub(crate) va: u64,
    pub(crate) len: u64,
}

pub(crate) struct Arena {
    // Declared before the buffer, so that they are deregistered first.
    _granted: Vec<Mr>,
    pub(crate) buffer: Buffer,
    content: Vec<u8>,
    pub(crate) open: Target,
    pub(crate) readable: Target,
    pub(crate) edge: Target,
    pub(crate) stale: Target,
    pub(crate) foreign: Target,
    pub(crate) private: Target,
}

/// True if the bytes contain secret data.
pub(crate) fn contains_secret(bytes: &[u8]) -> bool {
    let mut run = 0;
    bytes.iter().any(|byte| {
        run = if *byte == SECRET { run + 1 } else { 0 };
        run == 4
    })
}

/// The initial content of the buffer.
fn content() -> Vec<u8> {
    let mut content = vec![SECRET; LEN];
    for part in [OPEN, READABLE, EDGE, INBOX, SOURCE] {
        for (at, byte) in content.iter_mut().enumerate().skip(part.at).take(part.len) {
            *byte = at as u8 & 0x7f;
        }
    }
    content
}

impl Arena {
    pub(crate) fn new(pd: &Pd, other: &Pd) -> Self {
        let buffer = pd.alloc_buffer(LEN, Access::LOCAL_WRITE).expect("memory");
        let content = content();
        buffer.write(0, &content);
        let register = |pd: &Pd, part: Part, iova: Option<u64>, access: Access| {
            let addr = buffer.addr() + part.at as u64;
            let va = iova.unwrap_or(addr);
            // SAFETY: a part of the buffer, which is dropped after the registration and only copied from and
            // to.
            let mr = unsafe { pd.reg_mr(addr as *mut u8, part.len, va, access | Access::LOCAL_WRITE) };
            let mr = mr.expect("a legal registration");
            let target = Target { key: mr.rkey(), va, len: part.len as u64 };
            (mr, target)
        };
        let (open_mr, open) =
            register(pd, OPEN, None, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        let (readable_mr, readable) = register(pd, READABLE, None, Access::REMOTE_READ);
        let (edge_mr, edge) = register(pd, EDGE, Some(EDGE_IOVA), Access::REMOTE_WRITE);
        let (foreign_mr, foreign) = register(
            other,
            FOREIGN,
            None,
            Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        );
        let (stale_mr, stale) = register(pd, STALE, None, Access::REMOTE_WRITE | Access::REMOTE_READ);
        drop(stale_mr);
        let private = Target { key: buffer.mr().rkey(), va: buffer.addr(), len: LEN as u64 };
        let granted = vec![open_mr, readable_mr, edge_mr, foreign_mr];
        Self { _granted: granted, buffer, content, open, readable, edge, stale, foreign, private }
    }

    /// Checks that only granted memory has changed.
    pub(crate) fn check(&self) {
        let mut now = vec![0; LEN];
        self.buffer.read(0, &mut now);
        // Compare the gaps between the parts that may change.
        let mut from = 0;
        for part in [OPEN, EDGE, INBOX, Part { at: LEN, len: 0 }] {
            let (before, after) = (&self.content[from..part.at], &now[from..part.at]);
            let changed = || before.iter().zip(after).position(|(a, b)| a != b).map(|at| from + at);
            assert!(before == after, "the byte at {:#x?} of the arena has changed", changed());
            from = part.at + part.len;
        }
    }

    /// Returns bytes of the part that permits all operations.
    pub(crate) fn open_bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(OPEN.at + offset, &mut bytes);
        bytes
    }
}

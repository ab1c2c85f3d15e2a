//! What is a finding only if the program fails, or never creates an object.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::observer::Kind;

use super::options::lock;
use super::report::FindingKind;
use super::stack::Site;

/// The kinds of objects that the process has created, as bits.
static CREATED: AtomicU32 = AtomicU32::new(0);

/// A finding if the program fails, or never creates such an object.
pub(super) struct Suspicion {
    pub(super) kind: FindingKind,
    pub(super) text: String,
    pub(super) sites: Vec<(&'static str, Site)>,
    pub(super) about: About,
}

/// What a suspicion is about.
#[derive(Clone, Copy)]
pub(super) enum About {
    /// A refused call would have created such an object.
    Creation(Kind),
    /// A thread waits for a completion queue, by its address.
    Wait {
        cq: usize,
        since_ns: u64,
        /// An idle thread of a correct program waits in the same way. SIGALRM, or an exit by this thread,
        /// suggests that the wait was too long.
        is_idle: bool,
    },
    /// A message or datagram was refused, on which a program need not count. The completion queue in which
    /// its completion is missing.
    Loss(usize),
}

impl Suspicion {
    /// The completion queue that a thread waits for, and since when.
    pub(super) fn wait(&self) -> Option<(usize, u64)> {
        match self.about {
            About::Wait { cq, since_ns, .. } => Some((cq, since_ns)),
            _ => None,
        }
    }
}

/// Suspicions that a process keeps; the first ones explain the others.
const SUSPICIONS_MAX: usize = 64;

pub(super) static SUSPECTED: Mutex<Vec<Suspicion>> = Mutex::new(Vec::new());

/// Keeps a suspicion; a later one of the same places replaces it.
pub(super) fn suspect(suspicion: Suspicion) {
    let mut suspected = lock(&SUSPECTED);
    let is_answered = matches!(suspicion.about, About::Creation(kind) if has_created(kind));
    // What a thread waited for when the first queue pair was destroyed is the reason.
    let wait = suspicion.wait();
    if is_answered || wait.is_some() && suspected.iter().any(|known| known.wait() == wait) {
        return;
    }
    suspected.retain(|known| (known.kind, &known.sites) != (suspicion.kind, &suspicion.sites));
    if suspected.len() < SUSPICIONS_MAX {
        suspected.push(suspicion);
    }
}

/// Whether the process has ever created such an object.
pub(super) fn has_created(kind: Kind) -> bool {
    CREATED.load(Ordering::Relaxed) & (1 << kind as u32) != 0
}

/// An object was created: refusals were answers to the question what is possible.
pub(super) fn succeeded(kind: Kind) {
    // Before the lock: a thread that suspects at this time sees the bit, or its suspicion is removed here.
    CREATED.fetch_or(1 << kind as u32, Ordering::Relaxed);
    lock(&SUSPECTED).retain(|known| !matches!(known.about, About::Creation(of) if of == kind));
}

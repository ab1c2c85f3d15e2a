//! Private data of connection events. rdma_ack_cm_event(3) frees it, so the application must have copied it.
//!
//! It is lent in a page of its own, which may not be used any more after the acknowledgement.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{HashMap, VecDeque};
use std::ptr;
use std::sync::{LazyLock, Mutex};

use sys::page_size;

use super::options::lock;
use super::pages::{self, Protection};
use super::stack::Site;

/// Pages that are kept after the acknowledgement. Half: of a server with many connections at once, fewer late
/// reads are found. Double: another 256 KiB.
const TAKEN_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Lent {
    /// The bytes in each page, by its address, of events that are not acknowledged.
    given: HashMap<usize, usize>,
    /// Pages of acknowledged events, oldest first.
    taken: VecDeque<(usize, Option<Protection>)>,
}

pub(super) static LENT: LazyLock<Mutex<Lent>> = LazyLock::new(Mutex::default);

fn layout() -> Layout {
    // The size of a page is a power of two.
    Layout::from_size_align(page_size(), page_size()).unwrap_or(Layout::new::<usize>())
}

/// Copies private data, which fits a page, to a page that the application may use until the acknowledgement.
#[cold]
pub(super) fn lend(data: &[u8]) -> *const u8 {
    if data.len() > layout().size() {
        return data.as_ptr();
    }
    // SAFETY: the layout is not empty.
    let page = unsafe { alloc_zeroed(layout()) };
    if page.is_null() {
        return data.as_ptr();
    }
    // SAFETY: a new page, and the bytes are not more.
    unsafe { ptr::copy_nonoverlapping(data.as_ptr(), page, data.len()) };
    lock(&LENT).given.insert(page.expose_provenance(), data.len());
    page
}

/// The event with the private data at this address was acknowledged.
pub(super) fn take(data: usize, acknowledged: Site) {
    let mut lent = lock(&LENT);
    let Some(bytes) = lent.given.remove(&data) else { return };
    lent.taken.push_back((data, pages::forbid(data, bytes, acknowledged)));
    if lent.taken.len() > TAKEN_MAX
        && let Some((oldest, protection)) = lent.taken.pop_front()
    {
        drop(protection);
        // SAFETY: allocated by `lend`, and not protected any more.
        unsafe { dealloc(ptr::with_exposed_provenance_mut(oldest), layout()) };
    }
}

//! What `roxie check` observes: the named points of the verbs, and the kinds of their objects.
//!
//! The verbs call [`observer`] at the points of [`Observer`] and know nothing of the module `check`, which
//! fills that table when the library is loaded. A process that is not checked has no observer: a call tests
//! one static. The data path (`ibv_post_send`, `ibv_poll_cq`) has no points: `check` replaces the operations
//! of a context and of a queue pair when these are [born](Observer::born).

use std::alloc::Layout;
use std::any::Any;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use roxie::finding::FindingKind;
use roxie::transport::{VerbsError, Wc};

use crate::abi::cm::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::abi::context::{ibv_device, verbs_context};
use crate::abi::counters::ibv_comp_cntr;
use crate::abi::memory::ibv_dm;
use crate::abi::objects::{
    ibv_comp_channel, ibv_cq_ex, ibv_mr, ibv_mw, ibv_pd, ibv_qp_ex, ibv_srq, ibv_td, ibv_xrcd,
};
use crate::abi::steering::{ibv_flow, ibv_rwq_ind_table, ibv_wq};
use crate::abi::work::ibv_ah;

/// A call that destroys an object waits so long for the acknowledgement of its events before the observer is
/// told: an event thread needs microseconds.
pub(crate) const BLOCKS_AFTER: Duration = Duration::from_secs(1);

/// The points. Objects are named by their addresses.
pub(crate) struct Observer {
    /// An object was allocated, which the application does not know yet.
    pub(crate) born: fn(Kind, usize),
    /// An object ends; its tail is dropped next.
    pub(crate) destroyed: fn(Kind, usize),
    /// The memory of an object that has ended: the observer keeps it, so that later uses of its address are
    /// noticed.
    pub(crate) keep_memory: fn(usize, Layout),
    /// ibv_rereg_mr has changed a region.
    pub(crate) changed: fn(usize),
    /// From now on the object belongs to another one: the application does not destroy it.
    pub(crate) owned: fn(usize),
    /// Returns whether an argument that is not NULL leads to a live object of this kind.
    pub(crate) is_usable: fn(Kind, usize, Purpose) -> bool,
    /// A call was refused; its function, and the line that says why.
    pub(crate) refused: fn(&VerbsError, Option<&str>, &str),
    /// A call with these objects was refused, each with the name of its argument ([`Between`]).
    pub(crate) refused_with: fn(&VerbsError, &[(&str, usize)]),
    /// The application polled these completions.
    pub(crate) completed: fn(&[Wc]),
    /// The application moved a queue pair to another state.
    pub(crate) moved: fn(usize),
    /// A completion counter was attached to a queue pair.
    pub(crate) counted: fn(usize),
    /// The thread waits for an event of a completion channel, until the returned value is dropped.
    pub(crate) waits: fn(usize) -> Box<dyn Any>,
    /// So many events of a completion queue were acknowledged, and in all so many more than were taken.
    pub(crate) acknowledged: fn(u32, u32),
    /// A call to destroy an object waits for the acknowledgement of so many events, modulo 2^32.
    pub(crate) blocks: fn(u32),
    /// The application gets these private data with an event. Returns where it finds them.
    pub(crate) lend: fn(&[u8]) -> *const u8,
    /// The call is a mistake, and is executed.
    pub(crate) mistaken: fn(FindingKind, &str),
    /// This library has read the GRH area at an address for the application.
    pub(crate) header_used: fn(usize),
}

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// The observer of this process, if it is checked.
#[inline(always)]
pub(crate) fn observer() -> Option<&'static Observer> {
    OBSERVER.get()
}

/// Sets the observer; called while the library is loaded, before there are objects.
pub(crate) fn observe(observer: Observer) {
    let _is_first = OBSERVER.set(observer).is_ok();
}

/// What a checked application did with a completion queue. Call stacks are numbers from 1 on.
#[derive(Default)]
pub(crate) struct ObservedCq {
    /// Since when it has polled without a result ([`sys::now_ns`]); 0: the last poll had one.
    pub(crate) in_vain_ns: AtomicU64,
    /// The call stack of these polls.
    pub(crate) poller: AtomicU32,
    /// When and where it armed the queue last.
    pub(crate) armed_ns: AtomicU64,
    pub(crate) armed_by: AtomicU32,
}

/// What a call does with an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    Use,
    Destroy,
}

/// A C structure that begins an object.
pub(crate) trait Public {
    const KIND: Kind;
}

/// The kinds of objects, in the order of findings: structures, what findings call the kind, the finding of a
/// leak, and the function that destroys such an object.
macro_rules! kinds {
    ($($kind:ident($($structure:ty),+) $name:literal, $leak:ident, $ends_by:literal;)+) => {
        /// A kind of objects.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub(crate) enum Kind { $($kind),+ }

        impl Kind {
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),+ }
            }

            pub(crate) fn leak(self) -> FindingKind {
                match self { $(Self::$kind => FindingKind::$leak),+ }
            }

            pub(crate) fn ends_by(self) -> &'static str {
                match self { $(Self::$kind => $ends_by),+ }
            }
        }

        $($(impl Public for $structure {
            const KIND: Kind = Kind::$kind;
        })+)+
    };
}

kinds! {
    QueuePair(ibv_qp_ex) "queue pair", LeakedQp, "ibv_destroy_qp";
    CompletionQueue(ibv_cq_ex) "completion queue", LeakedCq, "ibv_destroy_cq";
    Region(ibv_mr) "memory region", LeakedMr, "ibv_dereg_mr";
    Domain(ibv_pd) "protection domain", LeakedPd, "ibv_dealloc_pd";
    AddressHandle(ibv_ah) "address handle", LeakedAh, "ibv_destroy_ah";
    SharedQueue(ibv_srq) "shared receive queue", LeakedSrq, "ibv_destroy_srq";
    Channel(ibv_comp_channel) "completion channel", LeakedChannel, "ibv_destroy_comp_channel";
    Window(ibv_mw) "memory window", LeakedMw, "ibv_dealloc_mw";
    DeviceMemory(ibv_dm) "device memory", LeakedDm, "ibv_free_dm";
    XrcDomain(ibv_xrcd) "XRC domain", LeakedXrcd, "ibv_close_xrcd";
    Context(verbs_context) "device context", LeakedContext, "ibv_close_device";
    CmId(rdma_cm_id) "connection identifier", LeakedCmId, "rdma_destroy_id";
    CmEvent(rdma_cm_event) "connection event", UnacknowledgedCmEvent, "rdma_ack_cm_event";
    EventChannel(rdma_event_channel) "event channel", LeakedEventChannel, "rdma_destroy_event_channel";
    WorkQueue(ibv_wq) "work queue", LeakedWq, "ibv_destroy_wq";
    Flow(ibv_flow) "flow rule", LeakedFlow, "ibv_destroy_flow";
    Buffer([u8; 0]) "object", LeakedObject, "its function";
    Other(ibv_device, ibv_td, ibv_comp_cntr, ibv_rwq_ind_table) "object", LeakedObject, "its function";
}

/// Objects of two devices do not mix: the observer then says where they come from.
pub(crate) trait Between {
    /// Tells the observer the objects of a refused call, each with the name of its argument. The refusal
    /// compares the first one with another.
    #[must_use]
    fn between(self, parts: &[(&str, usize)]) -> Self;
}

impl<T> Between for Result<T, VerbsError> {
    fn between(self, parts: &[(&str, usize)]) -> Self {
        self.inspect_err(|refused| {
            if let Some(observer) = observer() {
                (observer.refused_with)(refused, parts);
            }
        })
    }
}

thread_local! {
    /// How many calls of [`owned`] this thread is in.
    static OWNED: Cell<u32> = const { Cell::new(0) };
    /// How many calls of [`quietly`] this thread is in.
    static QUIET: Cell<u32> = const { Cell::new(0) };
}

/// Runs `f` while a counter of this thread is one higher. At the end of a thread there is none.
fn counted<R>(counter: &'static std::thread::LocalKey<Cell<u32>>, f: impl FnOnce() -> R) -> R {
    let change = |by: i32| counter.try_with(|count| count.set(count.get().wrapping_add_signed(by))).ok();
    change(1);
    let result = f();
    change(-1);
    result
}

/// Runs `create`: the application does not destroy the objects that it creates.
pub(crate) fn owned<R>(create: impl FnOnce() -> R) -> R {
    counted(&OWNED, create)
}

/// Runs `f`, in which this library follows pointers of its own objects: that is no use by the application.
#[inline(always)]
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> R {
    if observer().is_none() { f() } else { counted(&QUIET, f) }
}

/// Whether this thread is in a call of [`owned`].
pub(crate) fn is_owned() -> bool {
    OWNED.try_with(Cell::get).is_ok_and(|calls| calls > 0)
}

/// Whether this thread is in a call of [`quietly`].
pub(crate) fn is_quiet() -> bool {
    QUIET.try_with(Cell::get).is_ok_and(|calls| calls > 0)
}

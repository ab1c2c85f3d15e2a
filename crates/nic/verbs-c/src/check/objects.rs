//! Every object that the application has or had: where it was created and destroyed.
//!
//! The memory of a destroyed object is kept, so that its address means no other object and the inline
//! functions of verbs.h, which read `qp->context`, still find their way here.

use std::alloc::{Layout, dealloc};
use std::any::{Any, type_name};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::{LazyLock, Mutex};

use roxie::transport::VerbsError;
use roxie::verbs::is_of_two_devices;
use sys::{generation, lock_until};

use crate::abi::objects::{ibv_cq_ex, ibv_mr, ibv_qp_ex};
use crate::ibv::cq::CqObject;

use super::calls::has_reported;
use super::report::report;
use super::stack::{Site, here};
use super::{lock, memory, work};

/// Destroyed objects of which the memory is kept: 65,536 need some 30 MB. Later uses of older ones are not
/// noticed.
const KEPT_MAX: usize = 1 << 16;

/// What a call does with an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    Use,
    Destroy,
}

/// A kind of objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Kind {
    /// The end of the path of the C structure.
    structure: &'static str,
    /// What findings call it.
    pub(super) name: &'static str,
    /// What the finding of a leak is called.
    pub(super) leak: &'static str,
    /// The function that ends it.
    pub(super) ends_by: &'static str,
}

const fn kind(
    structure: &'static str,
    name: &'static str,
    leak: &'static str,
    ends_by: &'static str,
) -> Kind {
    Kind { structure, name, leak, ends_by }
}

const KINDS: [Kind; 17] = [
    kind("ibv_qp_ex", "queue pair", "leaked-qp", "ibv_destroy_qp"),
    kind("ibv_cq_ex", "completion queue", "leaked-cq", "ibv_destroy_cq"),
    kind("ibv_mr", "memory region", "leaked-mr", "ibv_dereg_mr"),
    kind("ibv_pd", "protection domain", "leaked-pd", "ibv_dealloc_pd"),
    kind("ibv_ah", "address handle", "leaked-ah", "ibv_destroy_ah"),
    kind("ibv_srq", "shared receive queue", "leaked-srq", "ibv_destroy_srq"),
    kind("ibv_comp_channel", "completion channel", "leaked-channel", "ibv_destroy_comp_channel"),
    kind("ibv_mw", "memory window", "leaked-mw", "ibv_dealloc_mw"),
    kind("ibv_dm", "device memory", "leaked-dm", "ibv_free_dm"),
    kind("ibv_xrcd", "XRC domain", "leaked-xrcd", "ibv_close_xrcd"),
    kind("verbs_context", "device context", "leaked-context", "ibv_close_device"),
    kind("rdma_cm_id", "connection identifier", "leaked-cm-id", "rdma_destroy_id"),
    kind("rdma_cm_event", "connection event", "unacknowledged-cm-event", "rdma_ack_cm_event"),
    kind("rdma_event_channel", "event channel", "leaked-event-channel", "rdma_destroy_event_channel"),
    kind("ibv_wq", "work queue", "leaked-wq", "ibv_destroy_wq"),
    kind("ibv_flow", "flow rule", "leaked-flow", "ibv_destroy_flow"),
    kind("", "object", "leaked-object", "its function"),
];

impl Kind {
    fn of<P>() -> Self {
        let structure = type_name::<P>().rsplit("::").next().unwrap_or_default();
        let found = KINDS.iter().find(|kind| kind.structure == structure);
        *found.unwrap_or(&KINDS[KINDS.len() - 1])
    }
}

/// What is known about an object.
#[derive(Clone, Copy, Debug)]
struct Record {
    kind: Kind,
    created: Site,
    destroyed: Option<Site>,
    /// The fork that made this process, when the object was created.
    generation: u32,
    /// It belongs to another object or to this library: the application does not destroy it.
    is_owned: bool,
}

impl Record {
    /// Whether this process has created it and not destroyed it.
    fn is_alive(&self) -> bool {
        self.destroyed.is_none() && self.generation == generation()
    }
}

#[derive(Default)]
struct Objects {
    /// By address.
    records: HashMap<usize, Record>,
    /// Destroyed objects of which the memory is kept, oldest first.
    kept: VecDeque<(usize, Layout)>,
}

static OBJECTS: LazyLock<Mutex<Objects>> = LazyLock::new(Mutex::default);

thread_local! {
    /// How many calls of [`owned`] this thread is in.
    static OWNED: Cell<u32> = const { Cell::new(0) };
    /// How many calls of [`quietly`] this thread is in.
    static QUIET: Cell<u32> = const { Cell::new(0) };
}

/// Runs `create`: the application does not destroy the objects that it creates.
pub(crate) fn owned<R>(create: impl FnOnce() -> R) -> R {
    let change = |by: i32| {
        // At the end of a thread the objects count as those of the application.
        let _ = OWNED.try_with(|owned| owned.set(owned.get().wrapping_add_signed(by)));
    };
    change(1);
    let created = create();
    change(-1);
    created
}

/// From now on the object belongs to another one.
pub(crate) fn own<P>(object: *const P) {
    if super::on()
        && let Some(record) = lock(&OBJECTS).records.get_mut(&object.addr())
    {
        record.is_owned = true;
    }
}

/// Runs `f`, in which this library follows pointers of its own objects: that is no use by the application.
#[inline(always)]
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> R {
    if !super::on() {
        return f();
    }
    // At the end of a thread findings may be told that are none of the application's.
    let change = |by: i32| QUIET.try_with(|quiet| quiet.set(quiet.get().wrapping_add_signed(by))).ok();
    change(1);
    let result = f();
    change(-1);
    result
}

/// Notes a new object.
#[cold]
pub(crate) fn born<P>(object: *const P) {
    let is_owned = OWNED.try_with(Cell::get).unwrap_or(0) > 0;
    let record = Record {
        kind: Kind::of::<P>(),
        created: here(),
        destroyed: None,
        generation: generation(),
        is_owned,
    };
    lock(&OBJECTS).records.insert(object.addr(), record);
    if record.kind.structure == "ibv_mr" {
        memory::region_begins(object.cast());
    }
}

/// Notes the end of an object, before its tail is dropped.
#[cold]
pub(crate) fn destroyed<P>(object: *const P) {
    let site = here();
    let kind = Kind::of::<P>();
    match kind.structure {
        "ibv_mr" => work::region_ends(object.cast::<ibv_mr>(), site),
        "ibv_qp_ex" => work::queue_pair_ends(object.cast::<ibv_qp_ex>()),
        "ibv_srq" => work::shared_queue_ends(object.addr()),
        _ => {}
    }
    if let Some(record) = lock(&OBJECTS).records.get_mut(&object.addr()) {
        record.destroyed = Some(site);
    }
}

/// Keeps the memory of a destroyed object, and frees that of the oldest one if there are too many.
pub(crate) fn keep_memory(object: usize, layout: Layout) {
    let mut objects = lock(&OBJECTS);
    objects.kept.push_back((object, layout));
    if objects.kept.len() > KEPT_MAX
        && let Some((oldest, layout)) = objects.kept.pop_front()
    {
        objects.records.remove(&oldest);
        // SAFETY: `Box` allocated it with this layout; the object in it was dropped.
        unsafe { dealloc(oldest as *mut u8, layout) };
    }
}

/// Whether a pointer of the application leads to a live object of this kind; reports why not.
#[cold]
pub(crate) fn is_usable<P>(object: *const P, purpose: Purpose) -> bool {
    let kind = Kind::of::<P>();
    let found = lock(&OBJECTS).records.get(&object.addr()).copied();
    if QUIET.try_with(Cell::get).is_ok_and(|quiet| quiet > 0) {
        return found.is_some_and(|record| record.kind == kind && record.destroyed.is_none());
    }
    let (finding, text, record) = match found {
        None => {
            ("foreign-object", format!("the argument {object:p} is no {} of this library", kind.name), None)
        }
        Some(record) => match objection(&record, kind, purpose) {
            Some((finding, what)) => {
                (finding, format!("the {} {object:p} {what}", record.kind.name), Some(record))
            }
            None => return true,
        },
    };
    let call = here();
    let what = if finding == "foreign-object" { "passed" } else { "used" };
    let mut sites = vec![(what, call)];
    if let Some(record) = record {
        sites.extend(record.destroyed.map(|destroyed| ("destroyed", destroyed)));
        sites.push(("created", record.created));
    }
    has_reported(call);
    report(finding, &text, &sites);
    false
}

/// Why the application cannot use an object of this library as one of `kind`.
fn objection(record: &Record, kind: Kind, purpose: Purpose) -> Option<(&'static str, String)> {
    if record.kind != kind {
        return Some(("foreign-object", format!("is no {}", kind.name)));
    }
    if record.destroyed.is_some() {
        return Some(match purpose {
            Purpose::Use => ("use-after-destroy", "is used after its end".to_owned()),
            Purpose::Destroy => ("double-destroy", "is destroyed twice".to_owned()),
        });
    }
    // Threads that the child does not have may hold locks of the object.
    let is_parents = record.generation != generation() && !record.is_owned;
    is_parents.then(|| {
        let text = "belongs to the parent process; after fork the child must create its own";
        ("use-after-fork", text.to_owned())
    })
}

/// Reports a call that was refused because its objects are of two devices. `parts` are the arguments of the
/// call with the addresses of their objects; the refusal compares the first one with another.
#[cold]
pub(crate) fn mixed(refused: &VerbsError, parts: &[(&str, usize)]) {
    if !super::on() || !is_of_two_devices(refused) {
        return;
    }
    let call = here();
    let of_call = parts.iter().enumerate().filter(|(at, (name, _))| *at == 0 || *name == refused.field());
    let created: Vec<_> = of_call
        .filter_map(|(_, (name, object))| Some((format!("created ({name})"), created(*object)?)))
        .collect();
    let mut sites = vec![("passed", call)];
    sites.extend(created.iter().map(|(what, site)| (what.as_str(), *site)));
    has_reported(call);
    report("foreign-object", &refused.to_string(), &sites);
}

/// Objects of one kind that were created at one place, and are alive.
pub(super) struct Left {
    pub(super) kind: Kind,
    pub(super) created: Site,
    pub(super) addresses: Vec<usize>,
    /// What identifies the first one.
    pub(super) first: String,
}

/// Objects that this process created, did not destroy, and that belong to no other object. `describe` gets
/// the name of a leak and the address of such an object, which is not destroyed meanwhile.
pub(super) fn alive(describe: impl Fn(&str, usize) -> String) -> Vec<Left> {
    let objects = lock(&OBJECTS);
    let mut found: Vec<Left> = Vec::new();
    let left = objects.records.iter().filter(|(_, record)| record.is_alive() && !record.is_owned);
    for (address, record) in left {
        match found.iter_mut().find(|left| left.kind == record.kind && left.created == record.created) {
            Some(left) => left.addresses.push(*address),
            None => found.push(Left {
                kind: record.kind,
                created: record.created,
                addresses: vec![*address],
                first: describe(record.kind.leak, *address),
            }),
        }
    }
    let order = |kind: &Kind| KINDS.iter().position(|known| known == kind);
    found.sort_by_key(|left| (order(&left.kind), left.addresses.iter().min().copied()));
    found
}

/// Calls `f` with each live completion queue of this process, and where it was created. None is dropped
/// meanwhile: [`destroyed`] waits for the lock that is held here. So `f` must not report, nor ask this
/// module.
pub(super) fn for_each_cq(mut f: impl FnMut(&CqObject, Site)) {
    let kind = Kind::of::<ibv_cq_ex>();
    let objects = lock(&OBJECTS);
    for (address, record) in objects.records.iter().filter(|(_, record)| record.kind == kind) {
        // SAFETY: it is alive, and the lock that is held here keeps it so.
        let object = record.is_alive().then(|| unsafe { CqObject::from_ptr(*address as *mut ibv_cq_ex) });
        if let Some(object) = object.flatten() {
            f(object, record.created);
        }
    }
}

/// Where an object was created.
pub(super) fn created(object: usize) -> Option<Site> {
    lock(&OBJECTS).records.get(&object).map(|record| record.created)
}

/// Holds the lock of the objects until the returned value is dropped, or gives up at `until_ns`.
pub(super) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new(lock_until(&OBJECTS, until_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_their_kinds() {
        assert_eq!(Kind::of::<ibv_qp_ex>().leak, "leaked-qp");
        assert_eq!(Kind::of::<u64>().name, "object");
    }
}

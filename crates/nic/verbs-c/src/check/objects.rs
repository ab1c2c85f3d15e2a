//! Every object that the application has or had: where it was created and destroyed.
//!
//! The memory of a destroyed object is kept, so that its address means no other object and the inline
//! functions of verbs.h, which read `qp->context`, still find their way here.

use std::alloc::{Layout, dealloc};
use std::collections::VecDeque;
use std::ptr;
use std::sync::{LazyLock, Mutex};

use roxie::transport::VerbsError;
use roxie::verbs::is_of_two_devices;
use sys::generation;

use crate::abi::cm::rdma_cm_event;
use crate::abi::objects::ibv_cq_ex;
use crate::ibv::cq::CqObject;
use crate::observer::{Kind, Purpose, is_owned, is_quiet};

use super::calls::has_reported;
use super::numbers::NumberMap;
use super::options::lock;
use super::report::{FindingKind, report};
use super::stack::{Site, here};

/// Destroyed objects of which the memory is kept: 65,536 need some 30 MB. Later uses of older ones are not
/// noticed.
const KEPT_MAX: usize = 1 << 16;

/// Overwrites what an application must not read any more: easy to recognise in a debugger.
pub(super) const POISON_BYTE: u8 = 0x5a;
/// A pointer of an acknowledged event. librdmacm frees this memory, and the allocator reuses it.
const POISON: usize = usize::from_ne_bytes([POISON_BYTE; size_of::<usize>()]);

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
pub(super) struct Objects {
    /// By address.
    records: NumberMap<usize, Record>,
    /// Destroyed objects of which the memory is kept, oldest first.
    kept: VecDeque<(usize, Layout)>,
}

pub(super) static OBJECTS: LazyLock<Mutex<Objects>> = LazyLock::new(Mutex::default);

/// From now on the object belongs to another one.
pub(super) fn own(object: usize) {
    if let Some(record) = lock(&OBJECTS).records.get_mut(&object) {
        record.is_owned = true;
    }
}

/// Notes a new object.
pub(super) fn born(kind: Kind, object: usize) {
    let (created, generation, is_owned) = (here(), generation(), is_owned());
    let record = Record { kind, created, destroyed: None, generation, is_owned };
    lock(&OBJECTS).records.insert(object, record);
}

/// Notes the end of an object, before its tail is dropped.
pub(super) fn destroyed(object: usize, site: Site) {
    if let Some(record) = lock(&OBJECTS).records.get_mut(&object) {
        record.destroyed = Some(site);
    }
}

/// Keeps the memory of a destroyed object, and frees that of the oldest one if there are too many.
pub(super) fn keep_memory(object: usize, layout: Layout) {
    let mut objects = lock(&OBJECTS);
    if objects.records.get(&object).is_some_and(|record| record.kind == Kind::CmEvent) {
        // SAFETY: the public part, which begins the allocation; the event in it was dropped.
        unsafe { ptr::write_bytes(object as *mut u8, POISON_BYTE, size_of::<rdma_cm_event>()) };
    }
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
pub(super) fn is_usable(kind: Kind, object: usize, purpose: Purpose) -> bool {
    let found = lock(&OBJECTS).records.get(&object).copied();
    if is_quiet() {
        return found.is_some_and(|record| record.kind == kind && record.destroyed.is_none());
    }
    let (finding, text, record) = match found {
        None if object == POISON => (
            FindingKind::UseAfterDestroy,
            format!("the {} {object:#x} is read from an event after rdma_ack_cm_event", kind.name()),
            None,
        ),
        None => (
            FindingKind::ForeignObject,
            format!("the argument {object:#x} is no {} of this library", kind.name()),
            None,
        ),
        Some(record) => match objection(&record, kind, purpose) {
            Some((finding, what)) => {
                (finding, format!("the {} {object:#x} {what}", record.kind.name()), Some(record))
            }
            None => return true,
        },
    };
    let call = here();
    let what = if finding == FindingKind::ForeignObject { "passed" } else { "used" };
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
fn objection(record: &Record, kind: Kind, purpose: Purpose) -> Option<(FindingKind, String)> {
    if record.kind != kind {
        return Some((FindingKind::ForeignObject, format!("is no {}", kind.name())));
    }
    if record.destroyed.is_some() {
        return Some(match purpose {
            Purpose::Use => (FindingKind::UseAfterDestroy, "is used after its end".to_owned()),
            Purpose::Destroy => (FindingKind::DoubleDestroy, "is destroyed twice".to_owned()),
        });
    }
    // Threads that the child does not have may hold locks of the object.
    let is_parents = record.generation != generation() && !record.is_owned;
    is_parents.then(|| {
        let text = "belongs to the parent process; after fork the child must create its own";
        (FindingKind::UseAfterFork, text.to_owned())
    })
}

/// Reports a call that was refused because its objects are of two devices. `parts` are the arguments of the
/// call with the addresses of their objects; the refusal compares the first one with another.
#[cold]
pub(super) fn mixed(refused: &VerbsError, parts: &[(&str, usize)]) {
    if !is_of_two_devices(refused) {
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
    report(FindingKind::ForeignObject, &refused.to_string(), &sites);
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
/// the kind and the address of such an object, which is not destroyed meanwhile.
pub(super) fn alive(describe: impl Fn(Kind, usize) -> String) -> Vec<Left> {
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
                first: describe(record.kind, *address),
            }),
        }
    }
    found.sort_by_key(|left| (left.kind, left.addresses.iter().min().copied()));
    found
}

/// Calls `f` with each live completion queue of this process, and where it was created. None is dropped
/// meanwhile: [`destroyed`] waits for the lock that is held here. So `f` must not report, nor ask this
/// module.
pub(super) fn for_each_cq(mut f: impl FnMut(&CqObject, Site)) {
    let objects = lock(&OBJECTS);
    for (address, record) in &objects.records {
        let is_it = record.kind == Kind::CompletionQueue && record.is_alive();
        // SAFETY: it is alive, and the lock that is held here keeps it so.
        let object = is_it.then(|| unsafe { CqObject::from_ptr(*address as *mut ibv_cq_ex) });
        if let Some(object) = object.flatten() {
            f(object, record.created);
        }
    }
}

/// Where an object was created.
pub(super) fn created(object: usize) -> Option<Site> {
    lock(&OBJECTS).records.get(&object).map(|record| record.created)
}

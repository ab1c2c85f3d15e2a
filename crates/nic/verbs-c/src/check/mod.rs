//! `roxie check`: watches how the application uses verbs and rdma_cm, and records what is wrong.
//!
//! `roxie check` sets `ROXIE_CHECK` to a directory. Each process of the command appends its findings to a
//! file of its own there ([`report`]), with addresses instead of names; `roxie check` adds names and lines.
//! With the variable it becomes the [`Observer`] of the verbs, and replaces the functions of the data path
//! (`ibv_post_send`, `ibv_poll_cq`) that a context names ([`ops`]). Without it nothing here runs.
//!
//! The modules: [`stack`] captures call stacks; [`objects`] knows every object that was given to the
//! application, also after its end; [`work`] follows work requests from post to completion; [`calls`] judges
//! refused calls, [`failures`] failed completions and [`refused`] requests of peers; [`races`] records the
//! memory of work requests for the detector in `roxie check`; [`pages`] protects their memory, and [`lent`]
//! the private data of events; [`ending`] looks at what is left when the process ends; [`watch`] notices that
//! nothing moves, and [`waits`] which threads wait for what.
//!
//! Invariant: a finding is a mistake of the application. What a correct program may do is none, so every rule
//! here is silent when in doubt.

mod calls;
mod ending;
mod failures;
mod lent;
mod looks;
mod memory;
mod numbers;
mod objects;
mod ops;
mod options;
mod pages;
mod posted;
mod races;
mod refused;
mod report;
mod shared_queue;
mod stack;
mod suspicion;
mod waits;
mod watch;
mod work;

use std::any::Any;

use sys::lock_until;

use crate::abi::cm::rdma_cm_event;
use crate::abi::objects::ibv_qp_ex;
use crate::ibv::qp::QpObject;
use crate::observer::{Kind, Observer, observe, observer};

use stack::here;

pub(crate) use ending::interrupted;

/// Makes this module the observer, if `roxie check` started the process. Called when the library is loaded,
/// before any other function of it: all objects are known from then on.
pub(crate) fn start() {
    if std::env::var_os("ROXIE_CHECK").is_none_or(|dir| dir.is_empty()) {
        return;
    }
    observe(Observer {
        born,
        destroyed,
        keep_memory: objects::keep_memory,
        changed: memory::region_begins,
        owned: objects::own,
        is_usable: objects::is_usable,
        refused: calls::refused,
        refused_with: objects::mixed,
        completed: work::completed,
        moved: |qp| with(qp, work::moved),
        counted: |qp| with(qp, work::is_counted),
        waits: |channel| Box::new(waits::waits(channel)),
        acknowledged: calls::acknowledged,
        blocks: calls::blocks,
        lend: lent::lend,
        header_used: looks::header_used,
        mistaken: |kind, text| report::report(kind, text, &[("used", here())]),
    });
    ending::register();
}

#[cold]
fn born(kind: Kind, object: usize) {
    objects::born(kind, object);
    suspicion::succeeded(kind);
    match kind {
        Kind::Region => memory::region_begins(object),
        Kind::QueuePair => {
            ops::replace_builder(object);
            with(object, |qp| _ = work::of(qp));
        }
        Kind::Context => {
            ops::replace(object);
            ending::start_watching();
        }
        _ => {}
    }
}

#[cold]
fn destroyed(kind: Kind, object: usize) {
    let site = here();
    looks::judge_completion(false);
    match kind {
        Kind::Region => work::region_ends(object, site),
        Kind::QueuePair => work::queue_pair_ends(object),
        Kind::SharedQueue => work::shared_queue_ends(object),
        Kind::CmEvent => {
            // SAFETY: the event is alive until this call returns. Each member of the union begins with a
            // pointer or as many bits, so any bits are a valid address; it is not followed.
            let data = unsafe { (*(object as *const rdma_cm_event)).param.conn.private_data };
            lent::take(data.addr(), site);
        }
        _ => {}
    }
    objects::destroyed(object, site);
}

/// Calls `f` with the queue pair at an address.
fn with(address: usize, f: fn(&QpObject)) {
    // SAFETY: the verbs name a live object, which the application does not destroy during its call.
    let object = unsafe { QpObject::from_ptr(address as *mut ibv_qp_ex) };
    object.into_iter().for_each(f);
}

/// Holds the locks of this module until the returned value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new(observer().map(|_| {
        (
            // Before that of the pages, which it takes.
            lock_until(&lent::LENT, until_ns),
            pages::keep_locked(until_ns),
            lock_until(&work::WORK, until_ns),
            lock_until(&races::WRITTEN, until_ns),
            lock_until(&memory::REGIONS, until_ns),
            lock_until(&waits::THREADS, until_ns),
            lock_until(&looks::LOOKS, until_ns),
            lock_until(&objects::OBJECTS, until_ns),
            lock_until(&suspicion::SUSPECTED, until_ns),
            lock_until(&report::REPORTED, until_ns),
            lock_until(&stack::SITES, until_ns),
        )
    }))
}

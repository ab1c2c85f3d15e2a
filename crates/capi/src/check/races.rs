//! The memory that work requests use, for `roxie check --races`.
//!
//! Each post on an RC queue pair is recorded among the events of the trace, which have its execution by the
//! peer and its poll. The processes do not compare anything: `roxie check` does, at the end of the command.

use std::any::Any;
use std::collections::HashSet;
use std::process;
use std::sync::{LazyLock, Mutex};

use roxie::trace::{Access, Use};
use roxie::transport::{SendFlags, SendWr, WrOp};
use roxie::wire::{Qpn, Rkey};
use sys::{lock_until, now_ns};

use super::report;
use super::stack::Site;
use super::work::Queue;
use super::{OPTIONS, lock, memory};

/// Processes and call stacks that were written: a forked child has a file of its own.
static WRITTEN: LazyLock<Mutex<HashSet<(u32, Site)>>> = LazyLock::new(Mutex::default);

/// The application posts this.
#[cold]
pub(super) fn posts(queue: &Queue, wr: &SendWr<'_>, site: Site, is_first: bool) {
    let time_ns = now_ns();
    let (does, remote) = uses(&wr.op);
    // An inline send is copied by the post. Offsets, and addresses that the application has chosen, are not
    // those of memory.
    let is_memory = !wr.flags.contains(SendFlags::INLINE) && memory::are_addresses(wr.sg_list);
    let list = if is_memory { wr.sg_list } else { &[] };
    let access = Access {
        time_ns,
        qpn: Qpn::new(queue.number),
        does,
        is_first,
        has_fence: wr.flags.contains(SendFlags::FENCE),
        is_counted: queue.is_counted,
        site: site.number(),
        remote,
        local: list.iter().filter(|sge| sge.length > 0).map(|sge| (sge.addr, sge.length)).collect(),
    };
    access.record();
    if lock(&WRITTEN).insert((process::id(), site)) {
        report::place(site);
    }
}

/// A memory region was registered.
pub(super) fn region_begins(key: u32, first: u64, length: u64) {
    if OPTIONS.races {
        report::region(key, first, length);
    }
}

/// A memory region was deregistered.
pub(super) fn region_ends(key: u32) {
    if OPTIONS.races {
        report::region_end(key);
    }
}

fn uses(op: &WrOp) -> (Use, (u64, Rkey)) {
    match *op {
        WrOp::Send | WrOp::SendImm(_) | WrOp::SendInv(_) => (Use::Send, (0, Rkey(0))),
        WrOp::Write { remote_addr, r_key } | WrOp::WriteImm { remote_addr, r_key, .. } => {
            (Use::Write, (remote_addr, r_key))
        }
        WrOp::Read { remote_addr, r_key } => (Use::Read, (remote_addr, r_key)),
        WrOp::CompareSwap { remote_addr, r_key, .. } | WrOp::FetchAdd { remote_addr, r_key, .. } => {
            (Use::Atomic, (remote_addr, r_key))
        }
        WrOp::AtomicWrite { remote_addr, r_key } => (Use::AtomicWrite, (remote_addr, r_key)),
        WrOp::Flush { .. } | WrOp::LocalInv(_) | WrOp::BindMw(_) | WrOp::RegMr(_) => {
            (Use::Nothing, (0, Rkey(0)))
        }
    }
}

/// Holds the lock of what was written until the returned value is dropped, or gives up at `until_ns`.
pub(super) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new(lock_until(&WRITTEN, until_ns))
}

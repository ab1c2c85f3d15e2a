//! The memory that work requests use, for `roxie check --races`.
//!
//! Each post of a send is recorded among the events of the trace, which have its execution by the peer and
//! its poll. Each polled receive is recorded with its memory, where a SEND of the peer was placed. The
//! processes do not compare anything: `roxie check` does, at the end of the command.

use std::sync::{LazyLock, Mutex};

use roxie::trace::{Access, Landing, Use};
use roxie::transport::{Dest, SendFlags, SendWr, Sge, Wc, WcOpcode, WrOp};
use roxie::wire::{Qpn, Rkey};
use sys::{generation, now_ns};

use super::memory;
use super::numbers::{NumberMap, NumberSet};
use super::options::lock;
use super::posted::Posted;
use super::report;
use super::stack::Site;
use super::work::Queue;

/// Processes and call stacks that were written: a forked child has a file of its own.
pub(super) static WRITTEN: LazyLock<Mutex<NumberSet<(u32, Site)>>> = LazyLock::new(Mutex::default);

/// The messages of a queue pair that take receives, which both ends count from the last RESET on.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Posted, by the shared receive queue that XRC names; 0 for other services.
    sent: NumberMap<u32, u32>,
    received: NumberMap<u32, u32>,
    /// Those of the last call: places in its list, and shared receive queues.
    call: Vec<(usize, u32)>,
    /// Messages were not counted.
    are_lost: bool,
}

impl Numbers {
    /// The application posts a message as the `index`th of a call. Returns its number, 0 if it is not known.
    fn posts(&mut self, index: usize, srqn: u32) -> u32 {
        let sent = self.sent.entry(srqn).or_default();
        *sent = sent.wrapping_add(1);
        self.call.push((index, srqn));
        if self.are_lost { 0 } else { *sent }
    }

    /// A call begins to post.
    pub(super) fn begin(&mut self) {
        self.call.clear();
    }

    /// Of the last call, only the first `posted` ones were posted.
    pub(super) fn take_back(&mut self, posted: usize) {
        for (_, srqn) in self.call.drain(..).filter(|(index, _)| *index >= posted) {
            self.sent.entry(srqn).and_modify(|sent| *sent = sent.wrapping_sub(1));
        }
    }

    /// How many messages were posted is not known any more.
    pub(super) fn lose(&mut self) {
        self.are_lost = true;
    }

    fn receives(&mut self, srqn: u32) -> u32 {
        let received = self.received.entry(srqn).or_default();
        *received = received.wrapping_add(1);
        if self.are_lost { 0 } else { *received }
    }
}

/// The application posts this as the `index`th of a call.
#[cold]
pub(super) fn posts(queue: &mut Queue, wr: &SendWr<'_>, site: Site, index: usize) {
    let time_ns = now_ns();
    let target = match wr.dest {
        Some(Dest::Srq(srqn)) => srqn,
        Some(Dest::Ud(to)) => to.remote_qpn.value(),
        None => 0,
    };
    let takes_receive =
        matches!(wr.op, WrOp::WriteImm { .. } | WrOp::Send | WrOp::SendImm(_) | WrOp::SendInv(_));
    let is_numbered = takes_receive && !queue.service.is_datagram();
    let number = if is_numbered { queue.numbers.posts(index, target) } else { 0 };
    let (does, remote) = uses(&wr.op, target);
    let access = Access {
        time_ns,
        qpn: Qpn::new(queue.number),
        does,
        is_first: index == 0,
        has_fence: wr.flags.contains(SendFlags::FENCE),
        is_counted: queue.is_counted,
        site: site.number(),
        remote,
        number,
        // An inline send is copied by the post.
        local: if wr.flags.contains(SendFlags::INLINE) { Vec::new() } else { pieces(wr.sg_list) },
    };
    access.record();
    write(site);
}

/// The application has polled the completion of a receive; `receive` is not known if several of its queue
/// could be it. `srqn`: the queue's number on XRC, 0 for other services.
#[cold]
pub(super) fn lands(queue: &mut Queue, wc: &Wc, receive: Option<&Posted>, srqn: Option<u32>) {
    let number = match srqn {
        _ if queue.service.is_datagram() => 0,
        Some(srqn) => queue.numbers.receives(srqn),
        None => {
            queue.numbers.lose();
            0
        }
    };
    let receive = receive.filter(|_| wc.opcode == WcOpcode::Recv);
    let landing = Landing {
        time_ns: now_ns(),
        posted_ns: receive.map_or(0, |receive| receive.time_ns),
        qpn: Qpn::new(queue.number),
        srqn: srqn.unwrap_or_default(),
        number,
        bytes: wc.byte_len,
        src_qp: Qpn::new(wc.src_qp),
        site: receive.map_or(0, |receive| receive.posted.number()),
        local: receive.map_or(Vec::new(), |receive| pieces(&receive.list)),
    };
    landing.record();
    receive.into_iter().for_each(|receive| write(receive.posted));
}

/// The memory of a list. Offsets, and addresses that the application has chosen, are not those of memory.
fn pieces(list: &[Sge]) -> Vec<(u64, u32)> {
    let list = if memory::are_addresses(list) { list } else { &[] };
    list.iter().filter(|sge| sge.length > 0).map(|sge| (sge.addr, sge.length)).collect()
}

/// Writes a call stack once for each process.
fn write(site: Site) {
    if lock(&WRITTEN).insert((generation(), site)) {
        report::place(site);
    }
}

/// `target`: what receives a SEND.
fn uses(op: &WrOp, target: u32) -> (Use, (u64, Rkey)) {
    match *op {
        WrOp::Send | WrOp::SendImm(_) | WrOp::SendInv(_) => (Use::Send, (0, Rkey(target))),
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

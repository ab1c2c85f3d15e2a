//! The queues of work requests, from the post to the completion that the application polls.
//!
//! Locks: `WORK` is held for a look-up only, or for a whole pass over the queues; then a queue that is locked
//! is passed over. A thread that posts holds the lock of its queue, not `WORK`.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, LazyLock, Mutex};

use roxie::finding::RECEIVE_REFUSED;
use roxie::status::QpStatus;
use roxie::transport::{QpState, QpType, RecvWr, Refused, SendFlags, SendWr, Sge, Wc, WcOpcode, WcStatus};
use roxie::verbs::Qp;
use roxie::wire::Lkey;
use sys::guarded::pages::Rights;
use sys::now_ns;

use crate::abi::objects::{ibv_mr, ibv_qp_ex, ibv_srq};
use crate::ibv::pd_mr::MrObject;
use crate::ibv::qp::QpObject;
use crate::ibv::srq::SrqObject;
use crate::object::Object;

use super::looks::GRH_BYTES;
use super::numbers::NumberMap;
use super::objects::created;
use super::options::{OPTIONS, lock};
use super::pages::{self, User};
use super::posted::{Posted, bytes, compare, describe, freed, gets_result, have_overlap, overlap};
use super::races::Numbers;
use super::refused::{Refusal, explain};
use super::report::{self, FindingKind, connected, disconnected, report, report_between};
use super::shared_queue::{SharedQueue, take};
use super::stack::{Site, here};
use super::suspicion::{About, Suspicion, suspect};
use super::{failures, looks, memory, races, waits};

/// The work requests of a queue pair that the application has not got back.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) number: u32,
    pub(super) service: QpType,
    /// The longest datagram.
    mtu: u64,
    max_send_wr: u32,
    sends_all_signaled: bool,
    /// A send was signaled.
    pub(super) has_signaled: bool,
    pub(super) sends: VecDeque<Posted>,
    pub(super) receives: VecDeque<Posted>,
    /// For `--races`.
    pub(super) numbers: Numbers,
    /// The shared receive queue, by its address.
    pub(super) srq: Option<usize>,
    /// Completion queues, by their addresses, and how many work requests can complete there.
    needs: [(usize, u32); 2],
    /// Where it got its Q_Key or access flags.
    pub(super) initialized: Option<Site>,
    /// Where the last receive was posted.
    pub(super) last_receive: Option<Site>,
    /// The last refusal that was reported.
    pub(super) told: Option<Refused>,
    /// Where it was connected, if `roxie check` knows the attributes of its connection.
    connected: Option<Site>,
    /// Where ibv_post_recv was first refused because the queue was full, since RESET.
    refused_receive: Option<Site>,
    /// `roxie check --races` knows its peer.
    is_linked: bool,
    /// Its completions show in a counter, too.
    pub(super) is_counted: bool,
    /// A work request has failed: what follows is a consequence.
    has_failed: bool,
    /// The application got a failed completion.
    has_given_failure: bool,
    /// When the application last got a completion of a send, or posted to an empty send queue.
    pub(super) moved_ns: u64,
}

type Shared<T> = Arc<Mutex<T>>;

#[derive(Default)]
pub(super) struct Work {
    /// By the address of the queue pair.
    queues: NumberMap<usize, Shared<Queue>>,
    by_number: NumberMap<u32, (usize, Shared<Queue>)>,
    /// By the address of the shared receive queue.
    srqs: NumberMap<usize, Shared<SharedQueue>>,
}

pub(super) static WORK: LazyLock<Mutex<Work>> = LazyLock::new(Mutex::default);

/// Returns the queue of a live queue pair.
pub(super) fn of(object: &QpObject) -> Shared<Queue> {
    let address = object.public().addr();
    let mut work = lock(&WORK);
    if let Some(queue) = work.queues.get(&address) {
        return Arc::clone(queue);
    }
    let queue = Arc::new(Mutex::new(Queue::new(object)));
    work.queues.insert(address, Arc::clone(&queue));
    work.by_number.insert(object.tail.qp.number().value(), (address, Arc::clone(&queue)));
    if OPTIONS.strict {
        work.compare_sizes(object);
    }
    queue
}

/// A completion counter was attached to a queue pair.
#[cold]
pub(super) fn is_counted(object: &QpObject) {
    lock(&of(object)).is_counted = true;
}

/// Returns the receives of a shared receive queue.
pub(super) fn of_srq(address: usize) -> Shared<SharedQueue> {
    Arc::clone(lock(&WORK).srqs.entry(address).or_default())
}

/// Calls `f` with each queue pair that has work and that no thread uses now. None is destroyed meanwhile.
pub(super) fn for_each(mut f: impl FnMut(&QpObject, &mut Queue)) {
    for (address, queue) in &lock(&WORK).queues {
        let Ok(mut queue) = queue.try_lock() else { continue };
        // SAFETY: `queue_pair_ends` removes a queue pair from the map, under the lock that is held here,
        // before its tail is dropped.
        if let Some(object) = unsafe { Object::from_ptr(*address as *mut ibv_qp_ex) } {
            f(object, &mut queue);
        }
    }
}

/// Calls `f` with each shared receive queue that has no receives. None is destroyed meanwhile.
pub(super) fn for_each_empty_srq(mut f: impl FnMut(usize, &SrqObject)) {
    for (address, queue) in &lock(&WORK).srqs {
        let is_empty = queue.try_lock().is_ok_and(|queue| queue.receives.is_empty());
        // SAFETY: as in `for_each`, by `shared_queue_ends`.
        let object: Option<&SrqObject> = unsafe { Object::from_ptr(*address as *mut ibv_srq) };
        object.filter(|_| is_empty).into_iter().for_each(|object| f(*address, object));
    }
}

/// A queue pair is destroyed.
pub(super) fn queue_pair_ends(address: usize) {
    let object = address as *mut ibv_qp_ex;
    // SAFETY: the public part, which stays in memory, is read here only.
    let number = unsafe { (*object).qp_base.qp_num };
    pages::end_flights(Some(number), true);
    pages::report_uses(is_ready);
    looks::judge_datagram(|of, _| of == number);
    waits::suspect();
    let mut work = lock(&WORK);
    work.by_number.remove(&number);
    let queue = work.queues.remove(&address);
    drop(work);
    if let Some(queue) = queue {
        let mut queue = lock(&queue);
        queue.disconnect();
        // SAFETY: as above; the tail is dropped after this call.
        let object: Option<&QpObject> = unsafe { Object::from_ptr(object) };
        let refusal = object.and_then(|object| explain(object, &mut queue));
        refusal.into_iter().for_each(|refusal| report_refusal(number, refusal));
    }
}

/// A shared receive queue is destroyed.
pub(super) fn shared_queue_ends(address: usize) {
    lock(&WORK).srqs.remove(&address);
}

/// A memory region is deregistered: reports a send that still uses it.
pub(super) fn region_ends(region: usize, site: Site) {
    // A request that was refused before found the region.
    look_at_refusals();
    let region = region as *mut ibv_mr;
    // SAFETY: the tail is dropped after this call.
    let object: Option<&MrObject> = unsafe { Object::from_ptr(region) };
    if object.is_some_and(|object| object.tail.remote().is_some()) {
        // ibv_unimport_mr: the region stays.
        return;
    }
    // SAFETY: the public part, which stays in memory, is read here only.
    let (lkey, addr, length) = unsafe { ((*region).lkey, (*region).addr, (*region).length) };
    if let Some((first, length)) = memory::region_ends(lkey, site) {
        pages::release_memory(first, length);
    }
    let mut found = None;
    for_each(|object, queue| {
        let uses = |sge: &Sge| sge.length > 0 && sge.lkey == Lkey(lkey);
        let last_signaled = queue.sends.iter().rposition(|send| send.is_signaled);
        let certain = &queue.sends.make_contiguous()[..last_signaled.map_or(0, |last| last + 1)];
        let user = certain.iter().find(|send| !send.may_be_done && send.list.iter().any(uses));
        let Some(user) = user.filter(|_| !queue.has_failed) else { return };
        // The device may have finished what the application has not polled yet.
        let Ok(qp) = object.tail.qp.transport() else { return };
        let is_busy = qp.status().is_some_and(|status| status.in_flight + status.pending > 0);
        if is_busy && qp.send_cq().waiting() == 0 {
            let text = format!(
                "the memory region {addr:p} ({length} bytes, lkey {lkey:#x}) is deregistered while the {} \
                 with wr_id {:#x} on queue pair {:#08x} uses it; wait for its completion",
                user.operation, user.wr_id, queue.number
            );
            found = Some((text, user.posted));
        }
    });
    if let Some((text, posted)) = found {
        report(FindingKind::DeregInUse, &text, &[("deregistered", site), ("posted", posted)]);
    }
}

/// The application polled these completions.
#[cold]
pub(super) fn completed(polled: &[Wc]) {
    for wc in polled {
        let work = lock(&WORK);
        let Some((address, queue)) = work.by_number.get(&wc.qp_num).cloned() else { continue };
        let peer = (wc.status != WcStatus::Success).then(|| peer(address)).flatten();
        drop(work);
        lock(&queue).completed(wc, peer);
    }
    pages::report_uses(is_ready);
}

/// Whether the application gets the first failed completion of a queue pair.
#[cold]
pub(super) fn is_first_failure(number: u32) -> bool {
    let queue = lock(&WORK).by_number.get(&number).map(|(_, queue)| Arc::clone(queue));
    queue.is_some_and(|queue| !mem::replace(&mut lock(&queue).has_given_failure, true))
}

/// The state of the connection of a queue pair; `None` for a raw packet queue pair, which has none.
pub(super) fn status(object: &QpObject) -> Option<QpStatus> {
    object.tail.qp.transport().ok()?.status()
}

/// Whether a queue pair can still complete its work requests with success.
pub(super) fn is_ready(number: u32) -> bool {
    let work = lock(&WORK);
    let Some((address, _)) = work.by_number.get(&number) else { return false };
    // SAFETY: as in `for_each`.
    let object: Option<&QpObject> = unsafe { Object::from_ptr(*address as *mut ibv_qp_ex) };
    object.and_then(|object| object.tail.qp.transport().ok()).is_some_and(|qp| qp.state() != QpState::Err)
}

/// The number of the peer of a queue pair that is in the map; `WORK` is locked.
fn peer(address: usize) -> Option<u32> {
    // SAFETY: as in `for_each`.
    let object: Option<&QpObject> = unsafe { Object::from_ptr(address as *mut ibv_qp_ex) };
    status(object?)?.dest_qpn.map(|number| number.value())
}

/// The application moved a queue pair to another state: notes the attributes of its connection, or forgets
/// them and the work requests, which RESET discards.
#[cold]
pub(super) fn moved(object: &QpObject) {
    let queue = of(object);
    match (object.tail.qp.state(), object.tail.qp.transport()) {
        (QpState::Reset, _) => lock(&queue).reset(),
        (QpState::Err, Ok(_)) => lock(&queue).release(),
        (QpState::Init, Ok(_)) => lock(&queue).initialized = Some(here()),
        (QpState::Rtr | QpState::Rts, Ok(qp)) => {
            let mut queue = lock(&queue);
            queue.connected = Some(here());
            queue.tell_connected(qp);
        }
        _ => {}
    }
}

/// Reports requests and datagrams of peers that were refused.
pub(super) fn look_at_refusals() {
    let mut found = Vec::new();
    for_each(|object, queue| found.extend(explain(object, queue).map(|refusal| (queue.number, refusal))));
    found.into_iter().for_each(|(number, refusal)| report_refusal(number, refusal));
}

fn report_refusal(number: u32, refusal: Refusal) {
    let Refusal { kind, text, sites, sender, missing_in } = refusal;
    match missing_in {
        None => report_between(kind, &text, &sites, Some((number, sender))),
        Some(cq) => suspect(Suspicion { kind, text, sites, about: About::Loss(cq) }),
    }
}

impl Work {
    /// Reports completion queues of this queue pair that are smaller than what can complete there at once.
    fn compare_sizes(&self, object: &QpObject) {
        for cq in [object.send_cq_object(), object.recv_cq_object()].into_iter().flatten() {
            let address = cq.public().addr();
            let queues = self.queues.values().filter_map(|queue| queue.try_lock().ok());
            let needs = queues.flat_map(|queue| queue.needs).filter(|(cq, _)| *cq == address);
            let needed: u32 = needs.map(|(_, count)| count).sum();
            let capacity = cq.tail.cq.capacity();
            if needed > capacity
                && let Some(created) = created(address)
            {
                let text = format!(
                    "a completion queue has {capacity} entries, and its queue pairs have room for \
                     {needed} work requests: it can overflow"
                );
                report(FindingKind::CqCanOverflow, &text, &[("created", created)]);
            }
        }
    }
}

impl Queue {
    fn new(object: &QpObject) -> Self {
        let qp = &object.tail.qp;
        let srq = object.srq().get();
        Self {
            number: qp.number().value(),
            // Raw packet queue pairs have no service; their sends complete in order, as those of RC.
            service: qp.transport().map_or(QpType::Rc, Qp::ty),
            mtu: qp.transport().map_or(0, |qp| qp.pd().context().query_port().active_mtu.bytes() as u64),
            max_send_wr: qp.cap().max_send_wr,
            sends_all_signaled: object.tail.sq_sig_all,
            has_signaled: false,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            numbers: Numbers::default(),
            srq: (!srq.is_null()).then(|| srq.addr()),
            needs: [
                (object.send_cq().get().addr(), qp.cap().max_send_wr),
                (object.recv_cq().get().addr(), qp.cap().max_recv_wr),
            ],
            initialized: None,
            last_receive: None,
            told: None,
            connected: None,
            refused_receive: None,
            is_linked: false,
            is_counted: false,
            has_failed: false,
            has_given_failure: false,
            moved_ns: now_ns(),
        }
    }

    /// Begins again.
    fn reset(&mut self) {
        self.sends.clear();
        self.receives.clear();
        self.numbers = Numbers::default();
        (self.has_failed, self.has_given_failure, self.is_linked) = (false, false, false);
        (self.refused_receive, self.moved_ns) = (None, now_ns());
        self.disconnect();
    }

    /// The application may use the memory of all work requests.
    fn release(&mut self) {
        self.sends.iter_mut().chain(&mut self.receives).for_each(|work| work.pages = None);
    }

    /// Its completion queues, by their addresses: of sends, of receives.
    pub(super) fn cqs(&self) -> [usize; 2] {
        self.needs.map(|(cq, _)| cq)
    }

    fn disconnect(&mut self) {
        if self.connected.take().is_some() || OPTIONS.races {
            disconnected(self.number);
        }
    }

    /// A receive was refused because the queue is full: if the peer finds none later, that is why.
    #[cold]
    pub(super) fn receive_refused(&mut self, object: &QpObject) {
        if let (None, Ok(qp)) = (self.refused_receive, object.tail.qp.transport()) {
            self.refused_receive = Some(here());
            self.tell_connected(qp);
        }
    }

    fn tell_connected(&self, qp: &Qp) {
        let sites = [("connected", self.connected), (RECEIVE_REFUSED, self.refused_receive)];
        let known = sites.into_iter().filter_map(|(what, site)| Some((what, site?)));
        if self.connected.is_some() {
            connected(qp, &known.collect::<Vec<_>>());
        }
    }

    /// The application posts sends: the first ones tell the peer, for `--races`.
    pub(super) fn begin_post(&mut self, object: &QpObject) {
        self.numbers.begin();
        if OPTIONS.races && !self.is_linked && !self.service.is_datagram() {
            self.is_linked = status(object).is_some_and(|status| report::linked(&status));
        }
    }

    /// The application posts this as the `index`th of a list.
    pub(super) fn send(&mut self, wr: &SendWr<'_>, index: usize) {
        let (operation, reads_memory, atomic_at) = describe(&wr.op);
        let posted = here();
        if OPTIONS.races {
            races::posts(self, wr, posted, index);
        }
        if let Some(address) = atomic_at.filter(|address| address % 8 != 0) {
            let text = format!(
                "the {operation} with wr_id {:#x} names the remote address {address:#x}, which is no \
                 multiple of 8",
                wr.wr_id
            );
            report(FindingKind::MisalignedAtomic, &text, &[("posted", posted)]);
        }
        let is_inline = wr.flags.contains(SendFlags::INLINE);
        // The device may write what the peer sends to memory that is also sent, and with a fence the results
        // of READs and atomics before it is sent.
        let is_fenced = wr.flags.contains(SendFlags::FENCE);
        let shares = |work: &Posted| have_overlap(&work.list, wr.sg_list);
        let is_shared = || {
            self.receives.iter().any(shares)
                || is_fenced && self.sends.iter().any(|send| send.gets_result && shares(send))
        };
        let is_comparable = reads_memory && !is_inline && memory::are_addresses(wr.sg_list) && !is_shared();
        let sum = is_comparable.then(|| memory::checksum(wr.sg_list).ok()).flatten();
        let gets_result = gets_result(&wr.op);
        if gets_result {
            // The responder has executed the earlier ones before it answers.
            self.sends.iter_mut().filter(|send| shares(send)).for_each(Posted::forget);
        }
        if self.sends.is_empty() {
            self.moved_ns = now_ns();
        }
        let bytes = bytes(wr.sg_list);
        if self.service == QpType::Ud && bytes > self.mtu {
            let text = format!(
                "the datagram with wr_id {:#x} has {bytes} bytes, more than the MTU of the port, {}: it is \
                 not sent, and its completion has no error (IBA C10-93.1.1)",
                wr.wr_id, self.mtu
            );
            report(FindingKind::DatagramDropped, &text, &[("posted", posted)]);
        }
        if gets_result {
            let results = self.sends.iter().filter(|send| send.gets_result);
            overlap((operation, wr.wr_id, posted), wr.sg_list, self.receives.iter().chain(results));
        }
        let is_signaled = self.sends_all_signaled || wr.flags.contains(SendFlags::SIGNALED);
        self.has_signaled |= is_signaled;
        let user = User { operation, bytes, ..User::own(Some(self.number), wr.wr_id, posted) };
        let pages = match gets_result {
            true => pages::protect(wr.sg_list, Rights::Nothing, user),
            false => sum.and_then(|_| pages::protect(wr.sg_list, Rights::Read, user)),
        };
        self.sends.push_back(Posted {
            wr_id: wr.wr_id,
            operation,
            bytes,
            is_signaled,
            may_be_done: false,
            posted,
            time_ns: 0,
            list: if is_inline { Box::default() } else { wr.sg_list.into() },
            gets_result,
            sum,
            pages,
        });
        self.fits(posted);
    }

    /// Reports the first post for which a NIC has no place: it frees a place when the application polls a
    /// completion that covers it (mlx5_wq_overflow of rdma-core). The device frees it with the ACK.
    fn fits(&self, posted: Site) {
        let (outstanding, places) = (self.sends.len(), self.max_send_wr as usize);
        if outstanding != places + 1 || self.has_failed || self.is_counted {
            return;
        }
        let signaled = self.sends.iter().filter(|send| send.is_signaled).count();
        let why = match signaled {
            0 => "none of them is signaled; set IBV_SEND_SIGNALED at least once per queue length",
            _ => "completions of signaled ones were not polled",
        };
        let text = format!(
            "{outstanding} work requests were posted to the send queue of queue pair {:#08x} ({places} \
             places) since the last polled completion, and {why}. A NIC frees places when such a completion \
             is polled, and refuses this post with ENOMEM",
            self.number
        );
        let sites = [("posted", posted), ("oldest posted", self.sends[0].posted)];
        report(FindingKind::QueueFullUnsignaled, &text, &sites);
    }

    /// The application posts this receive.
    pub(super) fn receive(&mut self, wr: &RecvWr<'_>) {
        if self.service == QpType::Ud {
            looks::judge_datagram(|_, list| have_overlap(list, wr.sg_list));
            let length = bytes(wr.sg_list);
            if length < GRH_BYTES {
                let text = format!(
                    "a receive of {length} bytes on UD queue pair {:#08x}: each datagram needs \
                     {GRH_BYTES} bytes more than its payload, for the GRH area",
                    self.number
                );
                report(FindingKind::UdReceiveWithoutGrh, &text, &[("posted", here())]);
            }
        }
        let receive = Posted::receive(wr, Some(self.number));
        self.last_receive = Some(receive.posted);
        let sent = self.sends.iter().filter(|send| !send.may_be_done);
        overlap(("receive", wr.wr_id, receive.posted), &receive.list, self.receives.iter().chain(sent));
        self.sends.iter_mut().filter(|send| have_overlap(&send.list, &receive.list)).for_each(Posted::forget);
        self.receives.push_back(receive);
    }

    fn completed(&mut self, wc: &Wc, peer: Option<u32>) {
        let failed = wc.status != WcStatus::Success;
        let is_receive = wc.is_receive();
        if is_receive {
            self.answered();
        }
        let (mut found, is_certain, srqn) = match is_receive {
            true => self.received(wc),
            false => (self.sent(wc), true, None),
        };
        if let Some(receive) = found.as_mut().filter(|_| is_receive && !failed) {
            // A WRITE with immediate data uses the receive, not its memory.
            let bytes = if wc.opcode == WcOpcode::RecvRdmaWithImm { 0 } else { wc.byte_len };
            if let Some(protection) = receive.pages.take() {
                pages::report_uses(is_ready);
                protection.received(bytes.into());
            }
            freed(receive, self.number);
            if self.service == QpType::Ud {
                looks::datagram(&receive.list, wc.byte_len.into(), self.number, receive.posted);
            }
        }
        if OPTIONS.races && is_receive && !failed {
            races::lands(self, wc, found.as_ref().filter(|_| is_certain), srqn);
        }
        if failed {
            if !self.has_failed {
                failures::judge(wc, self, found.as_ref(), is_receive, peer);
            }
            self.has_failed |= !self.service.is_datagram();
            if self.has_failed {
                self.release();
            }
        }
    }

    /// Takes the receive that has completed. Also returns whether no other one can be it, and the number
    /// of the shared receive queue: 0 without XRC, `None` if it is not known.
    fn received(&mut self, wc: &Wc) -> (Option<Posted>, bool, Option<u32>) {
        let of_xrc = if self.service == QpType::XrcTgt { only_srq() } else { None };
        let srq = self.srq.map(of_srq).or(of_xrc);
        if let Some(srq) = srq {
            let mut srq = lock(&srq);
            let (found, is_certain) = srq.take(wc.wr_id);
            return (found, is_certain, Some(srq.srqn));
        }
        let srqn = (self.service != QpType::XrcTgt).then_some(0);
        (take(&mut self.receives, wc.wr_id), true, srqn)
    }

    /// A message of the peer arrived. It may answer the posted sends: then the application knows that the
    /// peer has their content, and may change or deregister the memory before it polls their completions.
    fn answered(&mut self) {
        for send in &mut self.sends {
            send.may_be_done = true;
            send.forget();
        }
    }

    /// Takes a send and the unsignaled ones before it.
    fn sent(&mut self, wc: &Wc) -> Option<Posted> {
        self.moved_ns = now_ns();
        let success = wc.status == WcStatus::Success;
        let is_it = |send: &Posted| send.wr_id == wc.wr_id && (send.is_signaled || !success);
        let Some(at) = self.sends.iter().position(is_it) else {
            // Not posted by functions that are watched.
            self.sends.clear();
            return None;
        };
        for mut send in self.sends.drain(..at) {
            compare(&mut send, self.number, success);
        }
        let mut send = self.sends.pop_front()?;
        compare(&mut send, self.number, success);
        Some(send)
    }
}

/// The shared receive queue of this process, if it has one only: a completion of XRC does not name it.
fn only_srq() -> Option<Shared<SharedQueue>> {
    let work = lock(&WORK);
    let mut srqs = work.srqs.values();
    srqs.next().filter(|_| srqs.next().is_none()).map(Arc::clone)
}

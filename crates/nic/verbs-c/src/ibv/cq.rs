//! Completion queues and channels (ibv_create_cq(3), ibv_poll_cq(3), ibv_get_cq_event(3)).

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use roxie::transport::{VerbsError, Wc, refuse};
use roxie::verbs::{AsyncElement, CompChannel, Cq, Pd};

use crate::abi::Zeroed;
use crate::abi::context::ibv_context;
use crate::abi::objects::{IBV_CQ_ATTR_MODERATE, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr};
use crate::errno::{Failure, busy, code, done, failed, given, known_bits, minus_code, minus1, null};
use crate::handle::{FromC, GivenUp, Hot, Out, members, typed};
use crate::object::Object;
use crate::observer::{Between, ObservedCq, observer};
use crate::refused::note_completions;

use super::context::ContextObject;
use super::cq_ex::Cursor;
use super::events::{ObjectId, Queue, acknowledge, wait_acknowledged};

pub(crate) type ChannelObject = Object<ibv_comp_channel, CompChannel>;
/// Every CQ has the size of an `ibv_cq_ex`, which begins with an `ibv_cq`.
pub(crate) type CqObject = Object<ibv_cq_ex, CqTail>;

pub(crate) struct CqTail {
    pub(crate) cq: Cq,
    id: ObjectId,
    /// The completion that extended polling is at.
    pub(crate) cursor: Cursor,
    /// The parent domain that the CQ keeps in use.
    pub(crate) parent: Option<Pd>,
    /// For `roxie check`.
    pub(crate) observed: ObservedCq,
}

members! { ChannelObject {
    // The number of CQs that use the channel.
    refcnt: refcnt as c_int;
} }

members! { CqObject {
    context: base.context => ContextObject;
    channel: base.channel => ChannelObject;
    cq_context: base.cq_context as *mut c_void;
    cqe: base.cqe as c_int;
    comp_events_completed: base.comp_events_completed as u32;
    async_events_completed: base.async_events_completed as u32;
    status: status as c_int;
    wr_id: wr_id as u64;
} }

impl FromC<*mut ibv_cq> for Option<&CqObject> {
    #[inline(always)]
    unsafe fn from_c(cq: *mut ibv_cq) -> Self {
        // SAFETY: an `ibv_cq` of this library is the beginning of an `ibv_cq_ex`.
        unsafe { typed(cq.cast::<ibv_cq_ex>()) }
    }
}

impl FromC<Hot<ibv_cq>> for Option<&CqObject> {
    #[inline(always)]
    unsafe fn from_c(Hot(cq): Hot<ibv_cq>) -> Self {
        // SAFETY: an `ibv_cq` of this library is the beginning of an `ibv_cq_ex`.
        unsafe { typed(Hot(cq.cast::<ibv_cq_ex>())) }
    }
}

impl FromC<*mut ibv_cq> for Option<GivenUp<'_, CqObject>> {
    unsafe fn from_c(cq: *mut ibv_cq) -> Self {
        // SAFETY: an `ibv_cq` of this library is the beginning of an `ibv_cq_ex`.
        unsafe { typed(cq.cast::<ibv_cq_ex>()) }
    }
}

/// Implements `ibv_modify_cq`: moderation.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: ibv_modify_cq(3).
    let (cq, attr): (Option<&CqObject>, Option<&ibv_modify_cq_attr>) =
        unsafe { typed((cq, attr.cast_const())) };
    given!(code; cq, attr);
    known_bits!(code; EOPNOTSUPP, "completion queue", "attr_mask"; attr.attr_mask, IBV_CQ_ATTR_MODERATE);
    if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 {
        let [count, period_us] = attr.moderate;
        cq.tail.cq.moderate(count, period_us);
    }
    0
}

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: ibv_create_comp_channel(3).
    let context: Option<&ContextObject> = unsafe { typed(context) };
    given!(null; context);
    create_comp_channel(context).map_or_else(|errno| null(errno), ChannelObject::give)
}

/// Creates a channel, or returns the refusal.
pub(crate) fn create_comp_channel(context: &ContextObject) -> Result<Box<ChannelObject>, Failure> {
    let channel = context.tail.context.create_comp_channel();
    let channel = channel.map_err(
        |error| failed!(error, "completion channel", "fd"; "a completion channel cannot be created"),
    )?;
    let public = ibv_comp_channel { context: context.public_context(), fd: channel.fd(), refcnt: 0 };
    Ok(ChannelObject::boxed(public, channel))
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: ibv_destroy_comp_channel(3).
    let channel: Option<GivenUp<ChannelObject>> = unsafe { typed(channel) };
    given!(code; channel);
    destroy_comp_channel(channel)
}

/// Destroys a channel that no CQ uses; returns 0 or an errno.
#[track_caller]
pub(crate) fn destroy_comp_channel(channel: GivenUp<ChannelObject>) -> c_int {
    if channel.refcnt().atomic().load(Ordering::Acquire) != 0 {
        return code(busy!("completion channel"; "completion queues use the channel"));
    }
    channel.free();
    0
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: ibv_create_cq(3).
    let (context, channel): (Option<&ContextObject>, Option<&ChannelObject>) =
        unsafe { typed((context, channel)) };
    let cqe = done!(null; check_size(cqe));
    let Ok(vector) = u32::try_from(comp_vector) else {
        return null(refuse!(EINVAL, "completion queue", "comp_vector"; comp_vector as i32;
            is "{comp_vector}; vectors are numbered from 0"));
    };
    given!(null; context);
    create(context, cqe, cq_context, channel, vector).map_or_else(|errno| null(errno), |cq| cq.give().cast())
}

/// Creates a CQ with a zero extended part, or returns the refusal.
pub(crate) fn create(
    context: &ContextObject,
    cqe: u32,
    cq_context: *mut c_void,
    channel: Option<&ChannelObject>,
    comp_vector: u32,
) -> Result<Box<CqObject>, VerbsError> {
    let id = ObjectId::new();
    let handle = channel.map(|c| &c.tail);
    let parts = [("context", context.address()), ("channel", channel.map_or(0, Object::address))];
    let cq = context.tail.context.create_cq_at(cqe, handle, id.0, comp_vector).between(&parts)?;
    let mut public = ibv_cq_ex::zeroed();
    public.base.context = context.public_context();
    public.base.channel = channel.map_or(std::ptr::null_mut(), Object::public);
    public.base.cq_context = cq_context;
    public.base.handle = id.0 as u32;
    public.base.cqe = cq.capacity() as c_int;
    if let Some(channel) = channel {
        channel.refcnt().atomic().fetch_add(1, Ordering::AcqRel);
    }
    let (cursor, observed) = (Cursor::default(), ObservedCq::default());
    let object = CqObject::boxed(public, CqTail { cq, id, cursor, parent: None, observed });
    id.register(object.public());
    Ok(object)
}

fn check_size(cqe: c_int) -> Result<u32, VerbsError> {
    u32::try_from(cqe)
        .map_err(|_| refuse!(EINVAL, "completion queue", "cqe"; cqe as i32; is "{cqe}: a number of entries"))
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: ibv_resize_cq(3).
    let cq: Option<&CqObject> = unsafe { typed(cq) };
    given!(code; cq);
    let cqe = done!(code; check_size(cqe));
    done!(code; cq.tail.cq.resize(cqe));
    cq.cqe().set(cq.tail.cq.capacity() as c_int);
    0
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: ibv_destroy_cq(3).
    let cq: Option<GivenUp<CqObject>> = unsafe { typed(cq) };
    given!(code; cq);
    destroy(cq)
}

/// Destroys a CQ that no queue uses, once the application has acknowledged its events; returns 0 or an errno.
#[track_caller]
pub(crate) fn destroy(cq: GivenUp<CqObject>) -> c_int {
    if cq.tail.cq.in_use() {
        return code(
            busy!("completion queue"; "queue pairs or shared receive queues use the completion queue"),
        );
    }
    let id = cq.tail.id;
    let delivered = id.unregister();
    if let Some(context) = cq.context() {
        context.tail.context.forget_async_events(AsyncElement::Cq(id.0));
    }
    wait_acknowledged(cq.comp_events_completed(), delivered[Queue::Completion as usize]);
    wait_acknowledged(cq.async_events_completed(), delivered[Queue::Async as usize]);
    // The channel is alive until the counter says that no CQ uses it. The CQ goes first, and its public part
    // with it.
    let channel = cq.channel().map(|channel| std::ptr::from_ref(channel.refcnt()));
    cq.free();
    if let Some(users) = channel {
        // SAFETY: destroying a channel that a CQ uses is refused, and this CQ has not been subtracted yet.
        unsafe { &*users }.atomic().fetch_sub(1, Ordering::AcqRel);
    }
    0
}

/// Implements `ibv_poll_cq`: completions go straight into the application's array.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut Wc) -> c_int {
    let Ok(count) = usize::try_from(entries) else {
        return minus_code(refuse!(EINVAL, "argument", "num_entries"; entries as i32; is "{entries}"));
    };
    // SAFETY: ibv_poll_cq(3); `Wc` is laid out as `ibv_wc`.
    let (cq, room): (Option<&CqObject>, Option<&mut [MaybeUninit<Wc>]>) =
        unsafe { typed((Hot(cq), (wc.cast(), count))) };
    given!(minus_code; cq, room as "wc");
    let count = cq.tail.cq.poll(room);
    // SAFETY: `poll` has written that many.
    note_completions(&cq.tail.cq, unsafe { room[..count].assume_init_ref() });
    count as c_int
}

/// Implements `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: ibv_req_notify_cq(3).
    let cq: Option<&CqObject> = unsafe { typed(Hot(cq)) };
    given!(code; cq);
    cq.tail.cq.req_notify(solicited_only != 0);
    0
}

pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: ibv_get_cq_event(3).
    let (channel, cq, cq_context): (
        Option<&ChannelObject>,
        Option<Out<*mut ibv_cq>>,
        Option<Out<*mut c_void>>,
    ) = unsafe { typed((channel, cq, cq_context)) };
    given!(minus1; channel, cq, cq_context);
    let _waiting = observer().map(|observer| (observer.waits)(channel.address()));
    loop {
        let id = match channel.tail.get_event() {
            Ok(id) => ObjectId(id),
            Err(error) => {
                let failure = failed!(error, "completion channel", "events"; "no event can be read");
                return minus1(failure);
            }
        };
        // SAFETY: registered by `create`; a call to destroy it waits until this event is acknowledged.
        let found: Option<&CqObject> = unsafe { id.deliver(Queue::Completion) };
        if let Some(found) = found {
            cq.write(found.public().cast());
            cq_context.write(found.cq_context().get());
            return 0;
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32) {
    // SAFETY: ibv_ack_cq_events(3).
    let cq: Option<&CqObject> = unsafe { typed(cq) };
    if let Some(cq) = cq {
        // Afterwards another thread may destroy the queue.
        let id = cq.tail.id;
        let acknowledged = acknowledge(cq.comp_events_completed(), events);
        if let Some(observer) = observer()
            && let Some(surplus) = id.surplus(acknowledged)
        {
            (observer.acknowledged)(events, surplus);
        }
    }
}

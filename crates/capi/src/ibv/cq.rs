//! Completion queues and channels (ibv_create_cq(3), ibv_poll_cq(3), ibv_get_cq_event(3)).

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::slice;
use std::sync::atomic::{AtomicI32, Ordering};

use roxie::transport::Wc;
use roxie::verbs::{AsyncElement, CompChannel, Cq};

use crate::abi::context::ibv_context;
use crate::abi::objects::{ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr};
use crate::errno::{code, minus1, null, of_io};
use crate::object::Object;

use super::cq_ex::Cursor;
use super::device::ContextObject;
use super::events::{ObjectId, Queue, acknowledge, wait_acknowledged};

pub(crate) type ChannelObject = Object<ibv_comp_channel, CompChannel>;
/// Every CQ has the room of an `ibv_cq_ex`, which begins with an `ibv_cq`.
pub(crate) type CqObject = Object<ibv_cq_ex, CqTail>;

pub(crate) struct CqTail {
    pub(crate) cq: Cq,
    id: ObjectId,
    /// Where the extended polling is.
    pub(crate) cursor: Cursor,
}

impl CqObject {
    /// # Safety
    /// `cq` is NULL or one of ours.
    #[inline]
    pub(crate) unsafe fn from_cq<'a>(cq: *mut ibv_cq) -> Option<&'a Self> {
        // SAFETY: upheld by the caller.
        unsafe { Self::from_ptr(cq.cast()) }
    }
}

/// The operation behind `ibv_modify_cq`: moderation.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    /// IBV_CQ_ATTR_MODERATE.
    const MODERATE: u32 = 1;
    // SAFETY: one of ours or NULL; NULL or the program's attributes.
    let (Some(object), Some(attr)) = (unsafe { (CqObject::from_cq(cq), attr.as_ref()) }) else {
        return code(libc::EINVAL);
    };
    if attr.attr_mask & !MODERATE != 0 {
        return code(libc::EOPNOTSUPP);
    }
    if attr.attr_mask & MODERATE != 0 {
        let [count, period_us] = attr.moderate;
        object.tail.cq.moderate(count, period_us);
    }
    0
}

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: a context of ours or NULL.
    let Some(object) = (unsafe { ContextObject::from_ptr(context) }) else { return null(libc::EINVAL) };
    match object.tail.context.create_comp_channel() {
        Ok(channel) => {
            let fd = channel.fd();
            ChannelObject::export(ibv_comp_channel { context, fd, refcnt: 0 }, channel)
        }
        Err(error) => null(of_io(&error)),
    }
}

/// The number of CQs that use a channel.
///
/// # Safety
/// `channel` is one of ours.
unsafe fn users<'a>(channel: *mut ibv_comp_channel) -> &'a AtomicI32 {
    // SAFETY: upheld by the caller; programs do not write the member.
    unsafe { AtomicI32::from_ptr(&raw mut (*channel).refcnt) }
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    if channel.is_null() {
        return code(libc::EINVAL);
    }
    // SAFETY: not NULL, hence one of ours.
    if unsafe { users(channel) }.load(Ordering::Acquire) != 0 {
        return code(libc::EBUSY);
    }
    // SAFETY: the caller gives it up, and no CQ uses it.
    drop(unsafe { ChannelObject::retire(channel) });
    0
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let (Ok(cqe), Ok(vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return null(libc::EINVAL);
    };
    // SAFETY: as the caller's.
    match unsafe { create(context, cqe, cq_context, channel, vector) } {
        Ok(cq) => cq.cast(),
        Err(errno) => null(errno),
    }
}

/// A CQ whose extended part is empty.
///
/// # Safety
/// `context` and `channel` are ours or NULL.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
) -> Result<*mut ibv_cq_ex, c_int> {
    // SAFETY: upheld by the caller.
    let (object, channel_object) =
        unsafe { (ContextObject::from_ptr(context), ChannelObject::from_ptr(channel)) };
    let object = object.ok_or(libc::EINVAL)?;
    let id = ObjectId::new();
    let channel_handle = channel_object.map(|c| &c.tail);
    let cq =
        object.tail.context.create_cq_at(cqe, channel_handle, id.0, comp_vector).map_err(|e| e.errno())?;
    // SAFETY: zero bytes are a valid `ibv_cq_ex`.
    let mut public: ibv_cq_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    public.base.context = context;
    public.base.channel = channel;
    public.base.cq_context = cq_context;
    public.base.handle = id.0 as u32;
    public.base.cqe = cq.capacity() as c_int;
    if channel_object.is_some() {
        // SAFETY: not NULL, hence ours.
        unsafe { users(channel) }.fetch_add(1, Ordering::AcqRel);
    }
    let exported = CqObject::export(public, CqTail { cq, id, cursor: Cursor::default() });
    id.register(exported);
    Ok(exported)
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { CqObject::from_cq(cq) }) else { return code(libc::EINVAL) };
    let Ok(cqe) = u32::try_from(cqe) else { return code(libc::EINVAL) };
    match object.tail.cq.resize(cqe) {
        Ok(()) => {
            // SAFETY: a member of a live object; programs only read it.
            unsafe { (*cq).cqe = object.tail.cq.capacity() as c_int };
            0
        }
        Err(error) => code(error.errno()),
    }
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { CqObject::from_cq(cq) }) else { return code(libc::EINVAL) };
    if object.tail.cq.in_use() {
        return code(libc::EBUSY);
    }
    let id = object.tail.id;
    let delivered = id.unregister();
    // SAFETY: a member of a live object.
    let (context, channel) = unsafe { ((*cq).context, (*cq).channel) };
    // SAFETY: the context outlives its CQs (ibv_close_device(3)).
    if let Some(context) = unsafe { ContextObject::from_ptr(context) } {
        context.tail.context.forget_async_events(AsyncElement::Cq(id.0));
    }
    // SAFETY: counters of a live object.
    unsafe {
        wait_acknowledged(&raw mut (*cq).comp_events_completed, delivered[Queue::Completion as usize]);
        wait_acknowledged(&raw mut (*cq).async_events_completed, delivered[Queue::Async as usize]);
    }
    // SAFETY: the caller gives it up, nothing uses it, and every event is acknowledged.
    drop(unsafe { CqObject::retire(cq.cast()) });
    if !channel.is_null() {
        // SAFETY: a channel outlives its CQs: destroying it earlier is refused.
        unsafe { users(channel) }.fetch_sub(1, Ordering::AcqRel);
    }
    0
}

/// The operation behind `ibv_poll_cq`: completions go straight into the program's array.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { CqObject::from_cq(cq) }) else { return -libc::EINVAL };
    let Ok(entries) = usize::try_from(entries) else { return -libc::EINVAL };
    if wc.is_null() && entries != 0 {
        return -libc::EINVAL;
    }
    let to = if entries == 0 {
        &mut []
    } else {
        // SAFETY: the caller passes room for `entries` completions, and `Wc` is laid out as `ibv_wc`.
        unsafe { slice::from_raw_parts_mut(wc.cast::<MaybeUninit<Wc>>(), entries) }
    };
    object.tail.cq.poll(to) as c_int
}

/// The operation behind `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { CqObject::from_cq(cq) }) else { return code(libc::EINVAL) };
    object.tail.cq.req_notify(solicited_only != 0);
    0
}

pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { ChannelObject::from_ptr(channel) }) else { return minus1(libc::EINVAL) };
    if cq.is_null() || cq_context.is_null() {
        return minus1(libc::EINVAL);
    }
    loop {
        match object.tail.get_event() {
            Ok(id) => {
                if let Some(found) = ObjectId(id).deliver::<ibv_cq>(Queue::Completion) {
                    // SAFETY: the CQ waits for the acknowledgement of this event before it is freed; the caller
                    // passes room for two pointers.
                    unsafe {
                        cq.write(found);
                        cq_context.write((*found).cq_context);
                    }
                    return 0;
                }
            }
            Err(error) => return minus1(of_io(&error)),
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32) {
    if !cq.is_null() {
        // SAFETY: not NULL, hence a live CQ of ours.
        unsafe { acknowledge(&raw mut (*cq).comp_events_completed, events) };
    }
}

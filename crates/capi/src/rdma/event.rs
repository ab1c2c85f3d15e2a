//! Events of connections (rdma_get_cm_event(3), rdma_ack_cm_event(3), rdma_event_str(3)).

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use roxie::cm::{CmEvent, CmEventKind, EventChannel, Param};

use crate::abi::cm::{
    EventParam, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use crate::errno::{minus1, of_io};
use crate::ibv::ah::ah_attr;
use crate::object::Object;

use super::addr::call;
use super::channel::{self, rdma_migrate_id};
use super::id::{by_cookie, channel_of, create_child, find, rdma_destroy_id, refresh, set_path_record};

/// Dropping the tail acknowledges the event and frees its private data.
type EventObject = Object<rdma_cm_event, CmEvent>;

/// A program ends by destroying its channel while its event thread is about to wait there again (rping). The kernel is
/// slow enough at this that the thread sleeps by then and the process exits in peace; an error at once would end it first.
const GONE_WAIT: Duration = Duration::from_millis(500);

pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let Some(channel) = channel::find(channel) else {
        std::thread::sleep(GONE_WAIT);
        return minus1(libc::EINVAL);
    };
    if event.is_null() {
        return minus1(libc::EINVAL);
    }
    match next(&channel) {
        Ok(next) => {
            // SAFETY: the caller passes room for a pointer.
            unsafe { event.write(next) };
            0
        }
        Err(errno) => minus1(errno),
    }
}

/// The next event whose identifier still exists.
fn next(channel: &EventChannel) -> Result<*mut rdma_cm_event, c_int> {
    loop {
        let event = channel.get_event().map_err(|error| of_io(&error))?;
        if let Some(event) = export(event) {
            return Ok(event);
        }
    }
}

/// The C form of an event; `None` if its identifier is gone.
fn export(event: CmEvent) -> Option<*mut rdma_cm_event> {
    let (id, listen_id) = match &event.listen_id {
        Some(listener) => {
            let listener = by_cookie(listener)?;
            // SAFETY: found by its cookie, so alive until this event is acknowledged.
            (unsafe { request(listener, &event) }?, listener)
        }
        None => (by_cookie(&event.id)?, ptr::null_mut()),
    };
    // SAFETY: as above.
    unsafe {
        refresh(id);
        if event.kind == CmEventKind::RouteResolved {
            set_path_record(id);
        }
    }
    let (kind, status, param) = (event.kind as c_int, event.status, param(&event));
    Some(EventObject::export(rdma_cm_event { id, listen_id, event: kind, status, param }, event))
}

/// A new identifier for a request; a synchronous listener's children are synchronous.
///
/// # Safety
/// `listener` is live.
unsafe fn request(listener: *mut rdma_cm_id, event: &CmEvent) -> Option<*mut rdma_cm_id> {
    // SAFETY: upheld by the caller.
    unsafe {
        let child = create_child(listener, &event.id);
        let sync = find(listener).is_some_and(|object| object.tail.is_sync());
        if sync && rdma_migrate_id(child, ptr::null_mut()) != 0 {
            rdma_destroy_id(child);
            return None;
        }
        Some(child)
    }
}

fn param(event: &CmEvent) -> EventParam {
    let data = &event.private_data;
    let private_data = if data.is_empty() { ptr::null() } else { data.as_ptr().cast() };
    let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    // SAFETY: zero bytes are a valid parameter; the rest of the union stays zero.
    let mut to: EventParam = unsafe { MaybeUninit::zeroed().assume_init() };
    match &event.param {
        Param::Conn(conn) => {
            to.conn = rdma_conn_param {
                private_data,
                private_data_len,
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                flow_control: u8::from(conn.flow_control),
                retry_count: conn.retry_count,
                rnr_retry_count: conn.rnr_retry_count,
                srq: u8::from(conn.srq),
                qp_num: conn.qp_num.value(),
            };
        }
        Param::Own(argument) => to.arg = *argument,
        Param::Ud(ud) => {
            to.ud = rdma_ud_param {
                // Of a group: what the program gave with the join.
                private_data: event.join.map_or(private_data, |join| join as *const _),
                private_data_len,
                ah_attr: ah_attr(&ud.av),
                qp_num: ud.qp_num.value(),
                qkey: ud.q_key.0,
            };
        }
    }
    to
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return minus1(libc::EINVAL);
    }
    // SAFETY: not NULL, hence one that `export` made; the caller gives it up.
    drop(unsafe { EventObject::retire(event) });
    0
}

/// Acknowledges the event that a synchronous identifier keeps.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn drop_own_event(id: *mut rdma_cm_id) {
    // SAFETY: upheld by the caller.
    unsafe {
        let own = std::mem::replace(&mut (*id).event, ptr::null_mut());
        if !own.is_null() {
            rdma_ack_cm_event(own);
        }
    }
}

/// On a synchronous identifier: waits for the event of the call that was just made and keeps it in `id->event`.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn complete(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: upheld by the caller.
    let Some(object) = (unsafe { find(id) }) else { return minus1(libc::EINVAL) };
    if !object.tail.is_sync() {
        return 0;
    }
    // SAFETY: upheld by the caller; the event is the identifier's own.
    unsafe {
        drop_own_event(id);
        let Some(channel) = channel_of(id) else { return minus1(libc::EINVAL) };
        let event = match next(&channel) {
            Ok(event) => event,
            Err(errno) => return minus1(errno),
        };
        (*id).event = event;
        match (*event).status {
            0 => 0,
            _ if (*event).event == CmEventKind::Rejected as c_int => minus1(libc::ECONNREFUSED),
            status => minus1(status.abs()),
        }
    }
}

/// An event of the program's own.
pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: c_int,
    status: c_int,
    argument: u64,
) -> c_int {
    if event != CmEventKind::User as c_int {
        return minus1(libc::EINVAL);
    }
    // SAFETY: as the caller's.
    unsafe { call(id, false, |tail| tail.id.report(CmEventKind::User, status, argument)) }
}

pub(crate) unsafe extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        c"RDMA_CM_EVENT_USER",
        c"RDMA_CM_EVENT_INTERNAL",
    ];
    let name = usize::try_from(event).ok().and_then(|i| NAMES.get(i));
    name.unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}

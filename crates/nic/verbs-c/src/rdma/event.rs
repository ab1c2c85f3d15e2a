//! Events of connections (rdma_get_cm_event(3), rdma_ack_cm_event(3), rdma_event_str(3)).

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roxie::cm::{CmEvent, CmEventKind, EventChannel, Id, Param};

use crate::abi::Zeroed;
use crate::abi::cm::{
    EventParam, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use crate::errno::{Failure, done, failed, given, minus1, no_argument};
use crate::exiting;
use crate::handle::{GivenUp, Out, members, typed};
use crate::ibv::ah::ah_attr;
use crate::object::Object;
use crate::observer::observer;
use roxie::transport::refusal::Os;
use roxie::transport::{Errno, VerbsError, refuse};

use super::addr::call;
use super::channel::{self, migrate};
use super::id::{self, IdObject, by_cookie, channel_of, create_child, refresh, set_path_record};

/// Dropping the tail acknowledges the event and frees its private data.
pub(crate) type EventObject = Object<rdma_cm_event, CmEvent>;

members! { EventObject {
    id: id => IdObject;
    kind: event as c_int;
    status: status as c_int;
} }

/// How long rdma_get_cm_event waits before it fails for a destroyed channel.
///
/// A program ends by destroying its channel while its event thread is about to wait there again (rping). With
/// the kernel the thread sleeps by then, and the process exits. An immediate error would end the program with
/// a failure.
const DESTROYED_WAIT: Duration = Duration::from_millis(500);

pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    exiting::note_use();
    let Some(channel) = channel::find(channel) else {
        sys::pause(DESTROYED_WAIT);
        return minus1(no_argument!("channel"));
    };
    // SAFETY: rdma_get_cm_event(3).
    let event: Option<Out<*mut rdma_cm_event>> = unsafe { typed(event) };
    given!(minus1; event);
    let next = done!(minus1; next(&channel));
    exiting::withhold_event();
    event.write(next.public());
    0
}

/// As [`next`], for an event that a synchronous identifier keeps.
pub(crate) fn next_own(channel: &EventChannel) -> Result<&'static EventObject, Failure> {
    let event = next(channel)?;
    if let Some(observer) = observer() {
        (observer.owned)(event.address());
    }
    Ok(event)
}

/// Waits for the next event that names a live identifier. The event lives until it is acknowledged.
fn next(channel: &EventChannel) -> Result<&'static EventObject, Failure> {
    loop {
        let changes_qp = Cell::new(ptr::null_mut());
        let before = |id: &Id| {
            // SAFETY: the event that is being read counts as unacknowledged.
            if let Some(id) = unsafe { by_cookie(id) } {
                changes_qp.set(id.public());
                // A raw packet QP is none that the event can change.
                let _known = id.with_qp(|_| Ok(()));
            }
        };
        let event = channel
            .get_event_after(before)
            .map_err(|error| failed!(error, "event channel", "events"; "no event can be read"))?;
        explain(&event);
        if let Some(event) = export(event) {
            event.id().filter(|id| id.public() == changes_qp.get()).inspect(|id| id.show_qp_state());
            return Ok(Box::leak(event));
        }
    }
}

/// Prints why a connection was not made, once per process: programs print a number, or nothing.
fn explain(event: &CmEvent) {
    // Not a `Once`, in which a forked child could wait for a thread that it does not have.
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if event.status != 0
        && !IS_SAID.load(Ordering::Relaxed)
        && let Some(why) = event.failure()
        && !IS_SAID.swap(true, Ordering::Relaxed)
    {
        roxie::notice(why);
    }
}

/// Returns the C form of an event; `None` if its identifier was destroyed.
fn export(event: CmEvent) -> Option<Box<EventObject>> {
    // SAFETY: destroying an identifier waits for the acknowledgement of the events that name it.
    let (id, listener) = unsafe {
        match &event.listen_id {
            Some(listener) => {
                let listener = by_cookie(listener)?;
                (request(listener, &event)?, Some(listener))
            }
            None => (by_cookie(&event.id)?, None),
        }
    };
    refresh(id);
    if event.kind == CmEventKind::RouteResolved {
        set_path_record(id);
    }
    let public = rdma_cm_event {
        id: id.public(),
        listen_id: listener.map_or(ptr::null_mut(), Object::public),
        event: event.kind as c_int,
        status: event.status,
        param: param(&event),
    };
    Some(EventObject::boxed(public, event))
}

/// Creates the identifier of a request; a synchronous listener's requests are synchronous.
fn request(listener: &IdObject, event: &CmEvent) -> Option<&'static IdObject> {
    let child = create_child(listener, &event.id);
    if listener.tail.is_sync() && migrate(&child, ptr::null_mut()) != 0 {
        id::destroy(GivenUp::never_given(child));
        return None;
    }
    Some(Box::leak(child))
}

fn param(event: &CmEvent) -> EventParam {
    let data = &event.private_data;
    let private_data = match observer() {
        _ if data.is_empty() => ptr::null(),
        Some(observer) => (observer.lend)(data).cast(),
        None => data.as_ptr().cast(),
    };
    let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    let mut to = EventParam::zeroed();
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
                // For a multicast group: the context that the application passed with the join.
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
    // SAFETY: rdma_ack_cm_event(3).
    let event: Option<GivenUp<EventObject>> = unsafe { typed(event) };
    given!(minus1; event);
    event.free();
    0
}

/// Acknowledges the event that a synchronous identifier keeps.
pub(crate) fn drop_own_event(id: &IdObject) {
    let own = id.event().replace(ptr::null_mut());
    // SAFETY: NULL or an event that this library stored there and that nothing else refers to.
    let own: Option<GivenUp<EventObject>> = unsafe { typed(own) };
    own.into_iter().for_each(GivenUp::free);
}

/// Waits for the event of the call that was just made, and keeps it in `id->event`. Does nothing for an
/// asynchronous identifier. Returns 0, or -1 with `errno` set.
#[track_caller]
pub(crate) fn complete(id: &IdObject) -> c_int {
    if !id.tail.is_sync() {
        return 0;
    }
    drop_own_event(id);
    let channel = done!(minus1; channel_of(id));
    let event = done!(minus1; next_own(&channel));
    id.event().set(event.public());
    match event.status().get() {
        0 => 0,
        status => minus1(event_failed(event.kind().get(), status)),
    }
}

/// Makes the refusal of a call that waited for an event, and the event reports a failure.
#[cold]
pub(super) fn event_failed(kind: c_int, status: c_int) -> VerbsError {
    if kind == CmEventKind::Rejected as c_int {
        return refuse!(ECONNREFUSED, "connection", "status"; status as i32;
            "the peer rejected the connection with reason {status} ('roxie explain' knows reasons)");
    }
    refuse!((Errno::new(status.abs())), "connection", "status"; status as i32, kind as i32;
        let os = Os(status.abs()); "the event {kind} of the call reports {os}")
}

/// Reports an event that the application defines.
pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: c_int,
    status: c_int,
    argument: u64,
) -> c_int {
    if event != CmEventKind::User as c_int {
        return minus1(refuse!(EINVAL, "event", "event"; event as i32;
            is "{event}; programs report RDMA_CM_EVENT_USER"));
    }
    // SAFETY: rdma_write_cm_event(3).
    call(unsafe { typed(id) }, false, |tail| tail.id.report(CmEventKind::User, status, argument))
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

//! Asynchronous events (ibv_get_async_event(3)).

use std::ffi::c_int;

use roxie::verbs::{AsyncElement, AsyncEvent};

use crate::abi::context::ibv_context;
use crate::abi::work::{
    Element, IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR,
    IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event,
};
use crate::errno::{failed, given, minus1};
use crate::handle::{Out, typed};

use super::context::ContextObject;
use super::cq::CqObject;
use super::events::{ObjectId, Queue, acknowledge};
use super::qp::QpObject;
use super::srq::SrqObject;

/// Adds to the public counter of the object of an event, if events of this type have an object.
///
/// # Safety
/// [`ibv_get_async_event`] filled `event`, and the application has not acknowledged it.
unsafe fn acknowledge_async(event: &ibv_async_event) {
    // SAFETY: the type of the event says which member is set, and the object is live until this
    // acknowledgement.
    let counter = unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => {
                typed::<Option<&CqObject>, _>(event.element.cq).map(CqObject::async_events_completed)
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                typed::<Option<&QpObject>, _>(event.element.qp).map(QpObject::events_completed)
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                typed::<Option<&SrqObject>, _>(event.element.srq).map(SrqObject::events_completed)
            }
            _ => None,
        }
    };
    if let Some(counter) = counter {
        acknowledge(counter, 1);
    }
}

/// Returns the C form of an event, or `None` if its object was destroyed.
fn deliver(event: AsyncEvent) -> Option<ibv_async_event> {
    // SAFETY: the engine names a CQ, a QP or an SRQ by the number that its constructor here registered, and
    // destroying the object waits for the acknowledgement of this event.
    let element = unsafe {
        match event.element {
            AsyncElement::Cq(id) => {
                let cq: &CqObject = ObjectId(id).deliver(Queue::Async)?;
                Element { cq: cq.public().cast() }
            }
            AsyncElement::Qp(id) => {
                let qp: &QpObject = ObjectId(id).deliver(Queue::Async)?;
                Element { qp: qp.public().cast() }
            }
            AsyncElement::Srq(id) => {
                let srq: &SrqObject = ObjectId(id).deliver(Queue::Async)?;
                Element { srq: srq.public() }
            }
            AsyncElement::Port(number) => {
                // Sets the whole union, so that the bytes after the port number are not left over from the
                // stack.
                let mut element = Element { cq: std::ptr::null_mut() };
                element.port_num = c_int::from(number);
                element
            }
        }
    };
    Some(ibv_async_event { element, event_type: event.kind as c_int })
}

pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: ibv_get_async_event(3).
    let (context, event): (Option<&ContextObject>, Option<Out<ibv_async_event>>) =
        unsafe { typed((context, event)) };
    given!(minus1; context, event);
    loop {
        match context.tail.context.get_async_event() {
            Ok(raw) => {
                if let Some(ready) = deliver(raw) {
                    event.write(ready);
                    return 0;
                }
            }
            Err(error) => {
                return minus1(failed!(error, "context", "events"; "no event can be read"));
            }
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: ibv_ack_async_event(3): the event is NULL or one that ibv_get_async_event filled.
    let event: Option<&ibv_async_event> = unsafe { typed(event.cast_const()) };
    if let Some(event) = event {
        // SAFETY: as above; it was not acknowledged before.
        unsafe { acknowledge_async(event) };
    }
}

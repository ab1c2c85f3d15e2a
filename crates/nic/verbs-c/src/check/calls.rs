//! Calls that the library refuses, and calls that do not return.

use std::cell::Cell;

use roxie::transport::VerbsError;

use crate::observer::Kind;

use super::report::{FindingKind, report};
use super::stack::{Site, here};
use super::suspicion::{About, Suspicion, suspect};

/// Functions that correct programs call to find out what is possible, or when it may be too late. Their
/// refusals are answers.
const QUESTIONS: [&str; 13] = [
    "ibv_create_ah_from_wc",
    "ibv_get_pkey_index",
    "ibv_get_srq_num",
    "ibv_init_ah_from_wc",
    "ibv_qp_to_qp_ex",
    "ibv_set_ece",
    "rdma_disconnect",
    "rdma_get_cm_event",
    "rdma_getaddrinfo",
    "rdma_notify",
    "rdma_reject",
    "rdma_resolve_addr",
    "rdma_set_option",
];
/// Functions that correct programs call to find out which sizes, types and flags are possible, also until
/// the first refusal: no mistake if the process has ever created such an object.
const CREATIONS: [(&str, Kind); 6] = [
    ("ibv_create_cq", Kind::CompletionQueue),
    ("ibv_create_cq_ex", Kind::CompletionQueue),
    ("ibv_create_qp", Kind::QueuePair),
    ("ibv_create_qp_ex", Kind::QueuePair),
    ("ibv_create_srq", Kind::SharedQueue),
    ("rdma_create_qp", Kind::QueuePair),
];
/// As these, with other ways that need no such object.
const OPTIONAL: [&str; 2] = ["ibv_create_ah", "ibv_create_flow"];

thread_local! {
    /// The place of the last call of this thread with an argument that was reported: its refusal is no
    /// further finding. A call that is not refused leaves it; the next one has another place.
    static REPORTED: Cell<Option<Site>> = const { Cell::new(None) };
}

/// The refusal that follows in this call is the consequence of a reported finding.
pub(super) fn has_reported(call: Site) {
    // At the end of a thread the refusal is reported, too.
    let _ = REPORTED.try_with(|reported| reported.set(Some(call)));
}

/// Judges a refused call; `line` says why it was refused.
#[cold]
pub(super) fn refused(refused: &VerbsError, function: Option<&str>, line: &str) {
    let reported = REPORTED.try_with(Cell::take).ok().flatten();
    let Some(function) = function.filter(|_| reported.is_none_or(|call| call != here())) else { return };
    if is_answer(function, refused) {
        return;
    }
    if let Some(creates) = creates(function, refused) {
        let sites = vec![("refused", here())];
        let (kind, text) = (FindingKind::RefusedCall, line.to_owned());
        return suspect(Suspicion { kind, text, sites, about: About::Creation(creates) });
    }
    let kind = match refused.errno() {
        libc::EBUSY => FindingKind::ObjectInUse,
        libc::EINVAL => FindingKind::RefusedCall,
        // Memory that is not mapped, or not with the rights of the region.
        libc::EFAULT if function.starts_with("ibv_reg_") => FindingKind::RefusedCall,
        _ => return,
    };
    report(kind, line, &[("refused", here())]);
}

/// Whether a correct program may have asked for this refusal.
fn is_answer(function: &str, refused: &VerbsError) -> bool {
    // The programs of rsockets are written for sockets, and try what is possible.
    let is_socket_call = !function.starts_with("ibv_") && !function.starts_with("rdma_");
    QUESTIONS.contains(&function)
        || function.starts_with("ibv_query")
        || is_socket_call
        || OPTIONAL.contains(&function) && !is_mistake(refused)
}

/// What a call would have created that is a mistake only if no such object is ever created.
fn creates(function: &str, refused: &VerbsError) -> Option<Kind> {
    let is_question = refused.errno() == libc::EINVAL && !is_mistake(refused);
    CREATIONS.iter().find(|(name, _)| is_question && *name == function).map(|(_, kind)| *kind)
}

/// No program asks whether there can be an object of size 0, without its queue, or on another port.
fn is_mistake(refused: &VerbsError) -> bool {
    refused.value() == 0 || matches!(refused.field(), "port_num" | "sgid_index")
}

/// Reports the acknowledgement of `events` events of a completion queue: `surplus` more are then acknowledged
/// than were taken.
#[cold]
pub(super) fn acknowledged(events: u32, surplus: u32) {
    let text = format!(
        "{events} events of a completion queue are acknowledged, {surplus} more in all than \
         ibv_get_cq_event has returned; ibv_destroy_cq then waits for ever. Acknowledge events, not \
         completions"
    );
    report(FindingKind::AcknowledgedTooOften, &text, &[("acknowledged", here())]);
}

/// Reports that a call to destroy an object waits for the acknowledgement of so many events, modulo 2^32.
#[cold]
pub(super) fn blocks(events: u32) {
    let text = match events.cast_signed() {
        surplus @ ..0 => format!(
            "the call waits for ever: {} more event(s) of the object were acknowledged than taken",
            surplus.unsigned_abs()
        ),
        _ => format!(
            "the call waits until {events} event(s) of the object are acknowledged (ibv_ack_cq_events, \
             ibv_ack_async_event, rdma_ack_cm_event); if no other thread does that, it waits for ever"
        ),
    };
    report(FindingKind::UnacknowledgedEvents, &text, &[("waits", here())]);
}

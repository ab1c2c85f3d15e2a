//! The fault table of the responder for memory (IBA 9.4, 10.6): requests for memory that the application has
//! not granted, or has deregistered.

use transport::AsyncEventKind::{QpAccessErr, QpLastWqeReached, QpReqErr};
use transport::WcStatus::{LocAccessErr, RemAccessErr, WrFlushErr};
use transport::{Access, MwBind};
use wire::{Lkey, Qpn, Rkey};

use super::end::{ALL_RIGHTS, Granted, MTU, OTHER_PD, PD};
use super::pair::{Pair, Setup};
use super::responder::{ADD, RC, READ, SETUP, WRITES};
use super::row::{Expected, IN_ERR, Row, check, fails};
use crate::keys::MwType;

/// At the responder, for a fault outside a receive.
const ACCESS_ERR: Expected =
    Expected { events: &[QpAccessErr], counted: &["rx_wrong_state 1", "rx_access_fault 1"], ..IN_ERR };
/// At the requester: the responder has sent a NAK "remote access error".
const FORBIDDEN: Expected = fails(&[RemAccessErr, WrFlushErr]);
const NAK_ACCESS: &[&str] = &["NAK Remote access error 100"];

/// Registers memory of the protection domain of the responder with these rights.
fn with_rights(pair: &mut Pair, access: Access) -> Granted {
    pair.there.grant(PD, access)
}

/// Binds a memory window for queue pair `qpn`: 16 bytes at 0x100 of a region with all rights, for writing.
fn window(pair: &mut Pair, qpn: Qpn) -> Granted {
    let key = pair.there.window(MwType::Type2);
    let open = pair.there.open;
    let bind = MwBind {
        r_key: Rkey(key),
        mr: Lkey(open.key),
        addr: open.va + 0x100,
        len: 16,
        access: Access::REMOTE_WRITE,
    };
    pair.there.core.tables.mrs.bind(PD, qpn, &bind).expect("a bind that is permitted");
    Granted { va: open.va + 0x100, key, len: 16 }
}

/// A request that the memory registration of the responder does not permit.
const WRITE: Row = Row {
    rule: "responder: R_Key, PD, bounds, MR/MW permission",
    requests: WRITES,
    responses: NAK_ACCESS,
    here: FORBIDDEN,
    there: ACCESS_ERR,
    ..RC
};

#[test]
fn writes_outside_the_granted_memory_are_remote_access_errors() {
    check(&[
        Row {
            name: "WRITE with an unknown R_Key",
            act: |pair| {
                let open = pair.there.open;
                pair.post(Granted { key: open.key ^ 1, ..open }.write(0), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE with the R_Key of a deregistered region",
            act: |pair| {
                let deregistered = with_rights(pair, ALL_RIGHTS);
                pair.there.deregister(deregistered);
                pair.post(deregistered.write(0), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE with an R_Key of another protection domain",
            act: |pair| {
                let foreign = pair.there.grant(OTHER_PD, ALL_RIGHTS);
                pair.post(foreign.write(0), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE to memory with REMOTE_READ only",
            act: |pair| {
                let readable = with_rights(pair, Access::REMOTE_READ);
                pair.post(readable.write(0), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE past the end of the region",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(open.len - 7), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE that wraps around the address space",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(u64::MAX - open.va - 3), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE with its second packet past the end of the region",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(open.len - MTU as u64), 2 * MTU);
            },
            requests: &["WRITE First 100", "WRITE Last 101", "WRITE Only 102"],
            there: Expected { counted: &["rx_wrong_state 2", "rx_access_fault 1"], ..ACCESS_ERR },
            ..WRITE
        },
        Row {
            name: "WRITE with Immediate; its receive completes in error",
            act: |pair| {
                let open = pair.there.open;
                pair.post(Granted { key: open.key ^ 1, ..open }.write_imm(0), 8);
            },
            requests: &["WRITE Only Immediate 100", "WRITE Only 101"],
            there: Expected { recvs: &[LocAccessErr], events: &[], ..ACCESS_ERR },
            ..WRITE
        },
    ]);
}

#[test]
fn a_memory_window_limits_access_to_its_bounds_rights_and_queue_pair() {
    check(&[
        Row {
            name: "WRITE outside the window and inside its region",
            act: |pair| {
                let qpn = pair.there.qpn;
                let window = window(pair, qpn);
                pair.post(window.write(window.len - 7), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE through a window of another queue pair",
            act: |pair| {
                let other = Qpn::new(pair.there.qpn.value() ^ 1);
                let window = window(pair, other);
                pair.post(window.write(0), 8);
            },
            ..WRITE
        },
        Row {
            name: "READ through a window with REMOTE_WRITE only",
            act: |pair| {
                let qpn = pair.there.qpn;
                let window = window(pair, qpn);
                pair.post(window.read(0), 8);
            },
            requests: READ,
            ..WRITE
        },
    ]);
}

#[test]
fn reads_atomics_and_flushes_without_their_access_right_are_remote_access_errors() {
    check(&[
        Row {
            name: "READ of memory with REMOTE_WRITE only",
            act: |pair| {
                let writable = with_rights(pair, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
                pair.post(writable.read(0), 8);
            },
            requests: READ,
            ..WRITE
        },
        Row {
            name: "atomic on memory without REMOTE_ATOMIC",
            act: |pair| {
                let writable = with_rights(pair, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
                pair.post(writable.add(0), 8);
            },
            requests: ADD,
            ..WRITE
        },
        Row {
            name: "FLUSH of memory without FLUSH_GLOBAL",
            act: |pair| {
                let writable = with_rights(pair, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
                pair.post(writable.flush(1, 0), 0);
            },
            requests: &["FLUSH 100", "WRITE Only 101"],
            ..WRITE
        },
    ]);
}

#[test]
fn memory_deregistered_during_a_read_response_is_a_remote_access_error() {
    check(&[
        Row {
            name: "memory that is deregistered during a READ response",
            rule: "responder: READ: re-check the MR",
            act: |pair| {
                pair.there.entry().qp.set_initial_rate_limit(100_000);
                let granted = with_rights(pair, ALL_RIGHTS);
                pair.post(granted.read(0), 4 * MTU);
                pair.run_for_us(100);
                pair.there.deregister(granted);
            },
            follower: false,
            requests: &["READ Request 100"],
            responses: &[
                "READ Response First 100",
                "READ Response Middle 101",
                "NAK Remote access error 102",
            ],
            here: fails(&[RemAccessErr]),
            there: Expected { events: &[QpAccessErr], counted: &["rate_waits"], ..IN_ERR },
            ..WRITE
        },
        Row {
            name: "the same, after the responder has refused a later request",
            rule: "responder: either way the QP goes to ERR, once",
            setup: Setup { shared: true, ..SETUP },
            act: |pair| {
                pair.there.entry().qp.set_initial_rate_limit(100_000);
                let granted = with_rights(pair, ALL_RIGHTS);
                pair.post(granted.read(0), 4 * MTU);
                pair.post(granted.add(4), 8);
                pair.run_for_us(100);
                pair.there.deregister(granted);
            },
            follower: false,
            requests: &["READ Request 100", "Fetch Add 104"],
            responses: &[
                "READ Response First 100",
                "READ Response Middle 101",
                "NAK Remote access error 102",
            ],
            here: fails(&[RemAccessErr, WrFlushErr]),
            there: Expected {
                recvs: &[],
                events: &[QpReqErr, QpLastWqeReached],
                counted: &["rx_access_fault 1", "rate_waits"],
                ..IN_ERR
            },
            ..WRITE
        },
    ]);
}

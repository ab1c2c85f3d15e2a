//! The responder's table, of memory (IBA 9.4, 10.6): requests for what is not granted, or no more.

use transport::AsyncEventKind::{QpAccessErr, QpLastWqeReached, QpReqErr};
use transport::WcStatus::{LocAccessErr, RemAccessErr, WrFlushErr};
use transport::{Access, MwBind};
use wire::{Lkey, Qpn, Rkey};

use super::end::{ALL_RIGHTS, Granted, MTU, OTHER_PD, PD};
use super::pair::{Pair, Setup};
use super::responder::{ADD, RC, READ, SETUP, WRITES};
use super::row::{DEAD, Row, Told, fails, show};
use crate::keys::MwType;

/// There, without a receive to blame.
const ACCESS_ERR: Told =
    Told { events: &[QpAccessErr], counted: &["rx_wrong_state 1", "rx_access_fault 1"], ..DEAD };
/// Here.
const FORBIDDEN: Told = fails(&[RemAccessErr, WrFlushErr]);
const NAK_ACCESS: &[&str] = &["NAK Remote access error 100"];

/// A key of the peer's domain that was given for something else.
fn with_rights(pair: &mut Pair, access: Access) -> Granted {
    pair.there.grant(PD, access)
}

/// 16 bytes at 0x100 of a region that grants everything, for writing; bound for this queue pair.
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

#[test]
fn memory_that_is_not_granted_is_a_remote_access_error() {
    const OF: &str = "responder: R_Key, PD, bounds, MR/MW permission";
    const WRITE: Row =
        Row { of: OF, asks: WRITES, answers: NAK_ACCESS, here: FORBIDDEN, there: ACCESS_ERR, ..RC };
    show(&[
        Row {
            name: "WRITE with a key that was never given",
            act: |pair| {
                let open = pair.there.open;
                pair.post(Granted { key: open.key ^ 1, ..open }.write(0), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE with a key that was taken back",
            act: |pair| {
                let gone = with_rights(pair, ALL_RIGHTS);
                pair.there.take_back(gone);
                pair.post(gone.write(0), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE with a key of another domain",
            act: |pair| {
                let foreign = pair.there.grant(OTHER_PD, ALL_RIGHTS);
                pair.post(foreign.write(0), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE to memory that may be read",
            act: |pair| {
                let readable = with_rights(pair, Access::REMOTE_READ);
                pair.post(readable.write(0), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE past the end",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(open.len - 7), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE that wraps",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(u64::MAX - open.va - 3), 8);
            },
            ..WRITE
        },
        Row {
            name: "WRITE beside a window, inside its region",
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
            name: "READ through a window for writing",
            act: |pair| {
                let qpn = pair.there.qpn;
                let window = window(pair, qpn);
                pair.post(window.read(0), 8);
            },
            asks: READ,
            ..WRITE
        },
        Row {
            name: "READ of memory that may be written",
            act: |pair| {
                let writable = with_rights(pair, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
                pair.post(writable.read(0), 8);
            },
            asks: READ,
            ..WRITE
        },
        Row {
            name: "atomic on memory without that right",
            act: |pair| {
                let writable = with_rights(pair, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
                pair.post(writable.add(0), 8);
            },
            asks: ADD,
            ..WRITE
        },
        Row {
            name: "FLUSH of memory without that right",
            act: |pair| {
                let writable = with_rights(pair, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
                pair.post(writable.flush(1, 0), 0);
            },
            asks: &["FLUSH 100", "WRITE Only 101"],
            ..WRITE
        },
        Row {
            name: "WRITE with Immediate, whose receive is to blame",
            act: |pair| {
                let open = pair.there.open;
                pair.post(Granted { key: open.key ^ 1, ..open }.write_imm(0), 8);
            },
            asks: &["WRITE Only Immediate 100", "WRITE Only 101"],
            there: Told { recvs: &[LocAccessErr], events: &[], ..ACCESS_ERR },
            ..WRITE
        },
        Row {
            name: "a WRITE that begins inside and ends outside",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(open.len - MTU as u64), 2 * MTU);
            },
            asks: &["WRITE First 100", "WRITE Last 101", "WRITE Only 102"],
            there: Told { counted: &["rx_wrong_state 2", "rx_access_fault 1"], ..ACCESS_ERR },
            ..WRITE
        },
        Row {
            name: "memory that is taken back while a READ is answered",
            of: "responder: READ: re-check the MR",
            act: |pair| {
                pair.there.entry().qp.set_initial_rate_limit(100_000);
                let granted = with_rights(pair, ALL_RIGHTS);
                pair.post(granted.read(0), 4 * MTU);
                pair.run_for_us(100);
                pair.there.take_back(granted);
            },
            follower: false,
            asks: &["READ Request 100"],
            answers: &["READ Response First 100", "READ Response Middle 101", "NAK Remote access error 102"],
            here: fails(&[RemAccessErr]),
            there: Told { events: &[QpAccessErr], counted: &["rate_waits"], ..DEAD },
            ..WRITE
        },
        Row {
            name: "... and a request behind it was refused before",
            of: "responder: either way the QP goes to ERR, once",
            setup: Setup { shared: true, ..SETUP },
            act: |pair| {
                pair.there.entry().qp.set_initial_rate_limit(100_000);
                let granted = with_rights(pair, ALL_RIGHTS);
                pair.post(granted.read(0), 4 * MTU);
                pair.post(granted.add(4), 8);
                pair.run_for_us(100);
                pair.there.take_back(granted);
            },
            follower: false,
            asks: &["READ Request 100", "Fetch Add 104"],
            answers: &["READ Response First 100", "READ Response Middle 101", "NAK Remote access error 102"],
            here: fails(&[RemAccessErr, WrFlushErr]),
            there: Told {
                recvs: &[],
                events: &[QpReqErr, QpLastWqeReached],
                counted: &["rx_access_fault 1", "rate_waits"],
                ..DEAD
            },
            ..WRITE
        },
    ]);
}

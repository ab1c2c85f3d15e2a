//! Names and rates: pure tables (ibv_event_type_str(3), ibv_rate_to_mbps(3)).

use std::ffi::{CStr, c_char, c_int};

fn pick(table: &[&'static CStr], index: c_int, otherwise: &'static CStr) -> *const c_char {
    let entry = usize::try_from(index).ok().and_then(|i| table.get(i));
    entry.unwrap_or(&otherwise).as_ptr()
}

pub(crate) unsafe extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    pick(&NAMES, status, c"unknown")
}

pub(crate) unsafe extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    pick(&NAMES, event, c"unknown")
}

pub(crate) unsafe extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    pick(&NAMES, node_type, c"unknown")
}

pub(crate) unsafe extern "C" fn ibv_port_state_str(port_state: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    pick(&NAMES, port_state, c"unknown")
}

pub(crate) unsafe extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"IBV_WR_RDMA_WRITE",
        c"IBV_WR_RDMA_WRITE_WITH_IMM",
        c"IBV_WR_SEND",
        c"IBV_WR_SEND_WITH_IMM",
        c"IBV_WR_RDMA_READ",
        c"IBV_WR_ATOMIC_CMP_AND_SWP",
        c"IBV_WR_ATOMIC_FETCH_AND_ADD",
        c"IBV_WR_LOCAL_INV",
        c"IBV_WR_BIND_MW",
        c"IBV_WR_SEND_WITH_INV",
        c"IBV_WR_TSO",
        c"IBV_WR_DRIVER1",
        c"unknown",
        c"unknown",
        c"IBV_WR_FLUSH",
        c"IBV_WR_ATOMIC_WRITE",
    ];
    pick(&NAMES, opcode, c"unknown")
}

/// A link rate: its `ibv_rate` value, the multiple of 2.5 Gbit/s if it is one, and Mbit/s (verbs.h `enum ibv_rate`).
struct Rate {
    value: c_int,
    mult: Option<c_int>,
    mbps: c_int,
}

const fn rate(value: c_int, mult: c_int, mbps: c_int) -> Rate {
    Rate { value, mult: if mult > 0 { Some(mult) } else { None }, mbps }
}

/// Values as libibverbs 44 returns them; its multiples of the later rates are those of 2.578125 Gbit/s lanes rounded.
const RATES: [Rate; 23] = [
    rate(2, 1, 2500),
    rate(5, 2, 5000),
    rate(3, 4, 10_000),
    rate(6, 8, 20_000),
    rate(4, 12, 30_000),
    rate(7, 16, 40_000),
    rate(8, 24, 60_000),
    rate(9, 32, 80_000),
    rate(10, 48, 120_000),
    rate(11, 0, 14_062),
    rate(12, 0, 56_250),
    rate(13, 0, 112_500),
    rate(14, 0, 168_750),
    rate(15, 0, 25_781),
    rate(16, 0, 103_125),
    rate(17, 0, 206_250),
    rate(18, 0, 309_375),
    rate(19, 11, 28_125),
    rate(20, 20, 53_125),
    rate(21, 160, 425_000),
    rate(22, 240, 637_500),
    rate(23, 320, 850_000),
    rate(24, 480, 1_275_000),
];

/// IBV_RATE_MAX, the answer for a rate that no value means.
const RATE_MAX: c_int = 0;

pub(crate) unsafe extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.value == rate).and_then(|r| r.mult).unwrap_or(-1)
}

pub(crate) unsafe extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|r| r.mult == Some(mult)).map_or(RATE_MAX, |r| r.value)
}

pub(crate) unsafe extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.value == rate).map_or(-1, |r| r.mbps)
}

pub(crate) unsafe extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.mbps == mbps).map_or(RATE_MAX, |r| r.value)
}

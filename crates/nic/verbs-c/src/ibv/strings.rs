//! Tables of names and rates (ibv_event_type_str(3), ibv_rate_to_mbps(3)).

use std::ffi::{CStr, c_char, c_int};

use crate::abi::work::{
    IBV_RATE_2_5_GBPS, IBV_RATE_5_GBPS, IBV_RATE_10_GBPS, IBV_RATE_14_GBPS, IBV_RATE_20_GBPS,
    IBV_RATE_25_GBPS, IBV_RATE_28_GBPS, IBV_RATE_30_GBPS, IBV_RATE_40_GBPS, IBV_RATE_50_GBPS,
    IBV_RATE_56_GBPS, IBV_RATE_60_GBPS, IBV_RATE_80_GBPS, IBV_RATE_100_GBPS, IBV_RATE_112_GBPS,
    IBV_RATE_120_GBPS, IBV_RATE_168_GBPS, IBV_RATE_200_GBPS, IBV_RATE_300_GBPS, IBV_RATE_400_GBPS,
    IBV_RATE_600_GBPS, IBV_RATE_800_GBPS, IBV_RATE_1200_GBPS, IBV_RATE_MAX,
};

/// Returns the entry of an enum's value.
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

/// A link rate: its `enum ibv_rate` value, its multiple of 2.5 Gbit/s if it is one, and its Mbit/s.
struct Rate {
    value: c_int,
    mult: Option<c_int>,
    mbps: c_int,
}

const fn rate(value: c_int, mult: c_int, mbps: c_int) -> Rate {
    Rate { value, mult: if mult > 0 { Some(mult) } else { None }, mbps }
}

/// The values that libibverbs 44 returns. Its multiples of the later rates count lanes of 2.578125 Gbit/s,
/// rounded.
const RATES: [Rate; 23] = [
    rate(IBV_RATE_2_5_GBPS, 1, 2500),
    rate(IBV_RATE_5_GBPS, 2, 5000),
    rate(IBV_RATE_10_GBPS, 4, 10_000),
    rate(IBV_RATE_20_GBPS, 8, 20_000),
    rate(IBV_RATE_30_GBPS, 12, 30_000),
    rate(IBV_RATE_40_GBPS, 16, 40_000),
    rate(IBV_RATE_60_GBPS, 24, 60_000),
    rate(IBV_RATE_80_GBPS, 32, 80_000),
    rate(IBV_RATE_120_GBPS, 48, 120_000),
    rate(IBV_RATE_14_GBPS, 0, 14_062),
    rate(IBV_RATE_56_GBPS, 0, 56_250),
    rate(IBV_RATE_112_GBPS, 0, 112_500),
    rate(IBV_RATE_168_GBPS, 0, 168_750),
    rate(IBV_RATE_25_GBPS, 0, 25_781),
    rate(IBV_RATE_100_GBPS, 0, 103_125),
    rate(IBV_RATE_200_GBPS, 0, 206_250),
    rate(IBV_RATE_300_GBPS, 0, 309_375),
    rate(IBV_RATE_28_GBPS, 11, 28_125),
    rate(IBV_RATE_50_GBPS, 20, 53_125),
    rate(IBV_RATE_400_GBPS, 160, 425_000),
    rate(IBV_RATE_600_GBPS, 240, 637_500),
    rate(IBV_RATE_800_GBPS, 320, 850_000),
    rate(IBV_RATE_1200_GBPS, 480, 1_275_000),
];

pub(crate) unsafe extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.value == rate).and_then(|r| r.mult).unwrap_or(-1)
}

pub(crate) unsafe extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|r| r.mult == Some(mult)).map_or(IBV_RATE_MAX, |r| r.value)
}

pub(crate) unsafe extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.value == rate).map_or(-1, |r| r.mbps)
}

pub(crate) unsafe extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.mbps == mbps).map_or(IBV_RATE_MAX, |r| r.value)
}

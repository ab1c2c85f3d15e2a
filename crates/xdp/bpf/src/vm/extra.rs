//! Helpers besides maps, packets and records: queues, spin locks, MTU, text; and functions of the kernel.

use super::Env;
use super::call::{Call, E2BIG, EINVAL, failed};
use super::control::ITERATIONS_MAX;
use super::memory::Memory;
use super::outcome::FaultKind;
use super::space;
use crate::map::MapError;
use crate::program::Kfunc;

type Answer = Result<u64, FaultKind>;

const ENODEV: i64 = -19;
const ENODATA: i64 = -61;
const EOPNOTSUPP: i64 = -95;
/// Duration of a tick in nanoseconds: the kernel's jiffies with HZ 250, the default of most distributions.
const JIFFY_NS: u64 = 4_000_000;
/// The packet exceeds the MTU (`BPF_MTU_CHK_RET_FRAG_NEEDED`).
const FRAG_NEEDED: u64 = 1;
/// Length of an Ethernet header in bytes.
const ETHERNET_LEN: i64 = 14;
/// Maximum length of a text that is compared, in bytes.
const TEXT_MAX: u64 = 1 << 16;

fn errno(error: MapError) -> u64 {
    failed(-i64::from(error.errno()))
}

/// `bpf_map_push_elem(map, value, flags)`
pub(super) fn push(call: &mut Call<'_, '_, '_>) -> Answer {
    let (_, map) = call.map(0)?;
    let pushed = map.pushed().ok_or(FaultKind::Argument)?;
    call.read_value(call.args[1], map.def().value_size.into())?;
    Ok(pushed.push(&call.scratch.value, call.args[2]).map_or_else(errno, |()| 0))
}

/// `bpf_map_pop_elem(map, value)` and `bpf_map_peek_elem(map, value)`. The value of an empty queue is zeros.
pub(super) fn take(call: &mut Call<'_, '_, '_>, remove: bool) -> Answer {
    let (_, map) = call.map(0)?;
    let (pushed, address) = (map.pushed().ok_or(FaultKind::Argument)?, call.args[1]);
    let len = map.def().value_size as usize;
    let Some(taken) = pushed.take(remove) else {
        if remove {
            return Ok(failed(EOPNOTSUPP));
        }
        call.read_value(address, len as u64)?;
        let found = pushed.may_have(&call.scratch.value).unwrap_or(false);
        return Ok(if found { 0 } else { errno(MapError::NoEntry) });
    };
    let (value, result) = match taken {
        Ok(value) => (value, 0),
        Err(error) => (vec![0; len], errno(error)),
    };
    call.memory.write(address, &value).ok_or(FaultKind::Access { address })?;
    Ok(result)
}

/// `bpf_spin_lock` and `bpf_spin_unlock`. Each run has its maps for itself while the engine's lock admits
/// one thread, so the lock is always free.
pub(super) fn spin_lock(call: &mut Call<'_, '_, '_>) -> Answer {
    let address = call.args[0];
    call.memory.load::<4>(address).ok_or(FaultKind::Access { address })?;
    Ok(0)
}

/// `bpf_jiffies64`
pub(super) fn jiffies(env: &mut dyn Env) -> u64 {
    env.ktime_ns() / JIFFY_NS
}

/// `bpf_check_mtu(ctx, ifindex, mtu_len, len_diff, flags)`
pub(super) fn check_mtu(call: &mut Call<'_, '_, '_>, env: &mut dyn Env) -> Answer {
    call.context(0)?;
    let [_, ifindex, address, difference, flags] = call.args;
    if flags != 0 {
        return Ok(failed(EINVAL));
    }
    let wanted = call.memory.load::<4>(address).ok_or(FaultKind::Access { address })? as i64;
    let ifindex = if ifindex as u32 == 0 { call.memory.buff.ingress_ifindex } else { ifindex as u32 };
    let Some(mtu) = env.mtu(ifindex) else { return Ok(failed(ENODEV)) };
    let packet_len = call.memory.buff.total_len() as i64 - ETHERNET_LEN;
    let len = if wanted == 0 { packet_len } else { wanted } + i64::from(difference as i32);
    call.memory.store::<4>(address, mtu.into()).ok_or(FaultKind::Access { address })?;
    Ok(if len > i64::from(mtu) { FRAG_NEEDED } else { 0 })
}

/// `bpf_strncmp(text, len, other)`
pub(super) fn strncmp(call: &mut Call<'_, '_, '_>) -> Answer {
    let [text, len, other, ..] = call.args;
    if len > TEXT_MAX {
        return Err(FaultKind::Argument);
    }
    for at in 0..len & 0xffff_ffff {
        let mut byte = |address: u64| {
            let address = address.wrapping_add(at);
            call.memory.load::<1>(address).ok_or(FaultKind::Access { address })
        };
        let (a, b) = (byte(text)?, byte(other)?);
        if a != b {
            return Ok(if a < b { -1_i64 as u64 } else { 1 });
        }
        if a == 0 {
            break;
        }
    }
    Ok(0)
}

/// Returns whether the machine has this function of the kernel.
pub(super) fn has_kfunc(kfunc: &Kfunc) -> bool {
    kfunc.is_device_bound()
        || matches!(kfunc.name.as_str(), "bpf_rcu_read_lock" | "bpf_rcu_read_unlock")
        || kfunc.name.starts_with(NUMBERS)
}

/// `bpf_iter_num_new`, `_next` and `_destroy`: the iterator of `bpf_for` is the number before the next one,
/// and the one behind the last.
const NUMBERS: &str = "bpf_iter_num_";

fn numbers(what: &str, args: &[u64], memory: &mut Memory<'_, '_>) -> Answer {
    let [at, start, end] = *args else { return Err(FaultKind::Argument) };
    let fault = FaultKind::Access { address: at };
    let (start, end) = (start as i32, end as i32);
    let put = |memory: &mut Memory<'_, '_>, current: i32, end: i32| {
        let word = u64::from(current.cast_unsigned()) | u64::from(end.cast_unsigned()) << 32;
        memory.store::<8>(at, word)
    };
    let (stored, result) = match what {
        "new" if start > end => (put(memory, 0, 0), failed(EINVAL)),
        "new" if i64::from(end) - i64::from(start) > ITERATIONS_MAX as i64 => {
            (put(memory, 0, 0), failed(E2BIG))
        }
        "new" => (put(memory, start.wrapping_sub(1), end), 0),
        "next" => {
            let word = memory.load::<8>(at).ok_or(fault)?;
            let (next, end) = ((word as i32).wrapping_add(1), (word >> 32) as i32);
            if next < end { (put(memory, next, end), at) } else { (put(memory, 0, 0), 0) }
        }
        _ => (put(memory, 0, 0), 0),
    };
    stored.map(|()| result).ok_or(fault)
}

/// Calls it with the first three of `args`. A hint that the host does not give is one that the driver gives
/// for other packets only.
pub(super) fn kfunc(kfunc: &Kfunc, args: &[u64], memory: &mut Memory<'_, '_>, env: &mut dyn Env) -> Answer {
    if let Some(what) = kfunc.name.strip_prefix(NUMBERS) {
        return numbers(what, args, memory);
    }
    if !kfunc.is_device_bound() {
        return Ok(0);
    }
    let [ctx, first, second] = *args else { return Err(FaultKind::Argument) };
    if ctx != space::base(space::CTX) {
        return Err(FaultKind::Argument);
    }
    let hints = env.rx_hints();
    let mut put = |address, bytes: &[u8]| memory.write(address, bytes).ok_or(FaultKind::Access { address });
    match kfunc.name.as_str() {
        "bpf_xdp_metadata_rx_timestamp" => {
            let Some(time) = hints.timestamp_ns else { return Ok(failed(ENODATA)) };
            put(first, &time.to_le_bytes())?;
        }
        "bpf_xdp_metadata_rx_hash" => {
            let Some((hash, kind)) = hints.hash else { return Ok(failed(ENODATA)) };
            put(first, &hash.to_le_bytes())?;
            put(second, &u32::from(kind).to_le_bytes())?;
        }
        "bpf_xdp_metadata_rx_vlan_tag" => {
            let Some((protocol, tci)) = hints.vlan else { return Ok(failed(ENODATA)) };
            put(first, &protocol.to_be_bytes())?;
            put(second, &tci.to_le_bytes())?;
        }
        _ => return Ok(failed(EOPNOTSUPP)),
    }
    Ok(0)
}

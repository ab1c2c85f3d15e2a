//! The helper functions. Arguments that the kernel's verifier rejects are faults. For arguments that the
//! kernel's helper rejects at run time, the helper returns the same negative error number.

use std::sync::Arc;

use super::Env;
use super::image::Image;
use super::memory::Memory;
use super::outcome::{FaultKind, Redirect};
use super::{extra, output, space, trace};
use crate::helper::Helper;
use crate::map::{Map, MapError, MapKind, MapRef, UpdateMode};
use crate::xdp::XdpAction;

/// State of a run besides registers and memory.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) cpu: u32,
    pub(super) redirect: Option<Redirect>,
    /// Records that are reserved but neither submitted nor discarded: index of the map, and offset.
    pub(super) reserved: Vec<(usize, u32)>,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) tail_calls: u32,
}

impl Scratch {
    pub(super) fn begin(&mut self, cpu: u32) {
        self.cpu = cpu;
        self.redirect = None;
        self.tail_calls = 0;
    }

    /// Discards the records that the program left reserved. Returns the redirect that the program requested.
    #[inline]
    pub(super) fn end(&mut self, image: &Image) -> Option<Redirect> {
        if !self.reserved.is_empty() {
            self.discard(image);
        }
        self.redirect
    }

    #[cold]
    fn discard(&mut self, image: &Image) {
        for (map, offset) in self.reserved.drain(..) {
            if let Some(ring) = image.maps.get(map).and_then(|map| map.ring()) {
                ring.finish(offset, true);
            }
        }
    }
}

/// One call of a helper.
pub(super) struct Call<'c, 'r, 'b> {
    pub(super) args: [u64; 5],
    pub(super) image: &'c Image,
    pub(super) memory: &'c mut Memory<'r, 'b>,
    pub(super) scratch: &'c mut Scratch,
}

type Answer = Result<u64, FaultKind>;

pub(super) const EFAULT: i64 = -14;
pub(super) const EINVAL: i64 = -22;
pub(super) const E2BIG: i64 = -7;

/// Maximum number of bytes that a helper moves at once: the size of the largest packet or map value.
const MEMORY_MAX: u64 = 1 << 24;

// Redirect flags of `linux/bpf.h`. The low bits are the verdict for a miss.
const REDIRECT_ACTIONS: u64 = 3;
const BROADCAST: u64 = 1 << 3;
const EXCLUDE_INGRESS: u64 = 1 << 4;

/// Returns whether programs may call this helper.
pub(super) fn available(id: i32) -> bool {
    match Helper::from_id(id) {
        Some(Helper::SkbLoadBytes) | None => false,
        Some(_) => true,
    }
}

/// Calls the helper with the contents of R1..R5. Returns the new R0.
pub(super) fn helper(
    id: i32,
    args: [u64; 5],
    image: &Image,
    memory: &mut Memory<'_, '_>,
    scratch: &mut Scratch,
    env: &mut dyn Env,
) -> Answer {
    let mut call = Call { args, image, memory, scratch };
    let helper = Helper::from_id(id).ok_or(FaultKind::Argument)?;
    match helper {
        Helper::MapLookupPercpuElem => call.map_lookup(Some(args[2] as u32)),
        Helper::MapUpdateElem => call.map_update(),
        Helper::MapDeleteElem => call.map_delete(),
        Helper::KtimeGetNs | Helper::KtimeGetBootNs | Helper::KtimeGetCoarseNs | Helper::KtimeGetTaiNs => {
            Ok(env.ktime_ns())
        }
        Helper::GetPrandomU32 => Ok(env.random().into()),
        Helper::GetSmpProcessorId => Ok(call.scratch.cpu.into()),
        Helper::GetNumaNodeId => Ok(0),
        Helper::TracePrintk => trace::printk(&mut call, env),
        Helper::Redirect => Ok(call.redirect()),
        Helper::RedirectMap => call.redirect_map(),
        Helper::CsumDiff => call.csum_diff(),
        Helper::FibLookup => call.fib_lookup(env),
        Helper::XdpAdjustHead => call.adjust(|call, delta| call.memory.buff.adjust_head(delta)),
        Helper::XdpAdjustMeta => call.adjust(|call, delta| call.memory.buff.adjust_meta(delta)),
        Helper::XdpAdjustTail => call.adjust(|call, delta| call.memory.buff.adjust_tail(delta)),
        Helper::XdpGetBuffLen => {
            call.context(0)?;
            Ok(call.memory.buff.total_len() as u64)
        }
        Helper::XdpLoadBytes => call.load_bytes(),
        Helper::XdpStoreBytes => call.store_bytes(),
        Helper::RingbufOutput => output::ringbuf_output(&mut call),
        Helper::RingbufReserve => output::ringbuf_reserve(&mut call),
        Helper::RingbufSubmit => output::ringbuf_finish(&mut call, false),
        Helper::RingbufDiscard => output::ringbuf_finish(&mut call, true),
        Helper::RingbufQuery => output::ringbuf_query(&mut call),
        Helper::PerfEventOutput => output::perf_event_output(&mut call),
        Helper::MapPushElem => extra::push(&mut call),
        Helper::MapPopElem => extra::take(&mut call, true),
        Helper::MapPeekElem => extra::take(&mut call, false),
        Helper::SpinLock | Helper::SpinUnlock => extra::spin_lock(&mut call),
        Helper::Jiffies64 => Ok(extra::jiffies(env)),
        Helper::CheckMtu => extra::check_mtu(&mut call, env),
        Helper::Strncmp => extra::strncmp(&mut call),
        Helper::TraceVprintk => trace::vprintk(&mut call, env),
        // These have their own operation codes, or are not available.
        Helper::MapLookupElem
        | Helper::TailCall
        | Helper::ForEachMapElem
        | Helper::Loop
        | Helper::SkbLoadBytes => Err(FaultKind::Argument),
    }
}

/// `bpf_map_lookup_elem` on a map of any type.
pub(super) fn map_lookup(
    args: [u64; 5],
    image: &Image,
    memory: &mut Memory<'_, '_>,
    scratch: &mut Scratch,
) -> Answer {
    Call { args, image, memory, scratch }.map_lookup(None)
}

/// Returns an error number in the form that R0 has.
pub(super) fn failed(errno: i64) -> u64 {
    errno as u64
}

fn of_map(result: Result<(), MapError>) -> Answer {
    Ok(match result {
        Ok(()) => 0,
        Err(error) => failed(-i64::from(error.errno())),
    })
}

impl<'c> Call<'c, '_, '_> {
    /// Checks that argument `n` is the context.
    pub(super) fn context(&self, n: usize) -> Result<(), FaultKind> {
        if self.args[n] == space::base(space::CTX) { Ok(()) } else { Err(FaultKind::Argument) }
    }

    /// Returns the map in argument `n` and its index.
    pub(super) fn map(&self, n: usize) -> Result<(usize, &'c Arc<Map>), FaultKind> {
        if self.args[n] >> space::SEGMENT_BITS != space::HANDLES {
            return Err(FaultKind::Argument);
        }
        let index = space::offset(self.args[n]);
        let image: &'c Image = self.image;
        Ok((index, image.maps.get(index).ok_or(FaultKind::Argument)?))
    }

    /// Copies `len` bytes at `address` to `scratch.value`.
    pub(super) fn read_value(&mut self, address: u64, len: u64) -> Result<(), FaultKind> {
        let len = if len <= MEMORY_MAX { len as usize } else { return Err(FaultKind::Argument) };
        self.memory.read(address, len, &mut self.scratch.value).ok_or(FaultKind::Access { address })
    }

    fn read_key(&mut self, map: &Map) -> Result<(), FaultKind> {
        let address = self.args[1];
        let len = map.def().key_size as usize;
        self.memory.read(address, len, &mut self.scratch.key).ok_or(FaultKind::Access { address })
    }

    fn map_lookup(&mut self, cpu: Option<u32>) -> Answer {
        let (index, map) = self.map(0)?;
        self.read_key(map)?;
        let values = map.values().ok_or(FaultKind::Argument)?;
        let base = self.image.space.base_of(index).ok_or(FaultKind::Argument)?;
        let cpu = match cpu {
            // As in the kernel, a CPU that does not exist has no value.
            Some(cpu) if cpu >= values.copies() => return Ok(0),
            Some(cpu) => cpu,
            None => self.scratch.cpu,
        };
        let entry = map.entry(&self.scratch.key);
        if map.def().kind.holds_maps() {
            // The value is the index of the inner map plus one.
            let inner = entry.and_then(|entry| (values.first_word(entry) as u32).checked_sub(1));
            return Ok(inner.map_or(0, |inner| space::base(space::HANDLES) + u64::from(inner)));
        }
        Ok(entry.map_or(0, |entry| base + values.offset(cpu, entry) as u64))
    }

    /// Returns the map in argument 0, if programs may write its entries.
    fn written_map(&self) -> Result<&'c Arc<Map>, FaultKind> {
        let (_, map) = self.map(0)?;
        let kind = map.def().kind;
        let is_written = !kind.holds_maps() && kind != MapKind::ProgArray && !is_target(map);
        if map.values().is_some() && is_written { Ok(map) } else { Err(FaultKind::Argument) }
    }

    fn map_update(&mut self) -> Answer {
        let map = self.written_map()?;
        self.read_key(map)?;
        self.read_value(self.args[2], map.def().value_size.into())?;
        let Some(mode) = UpdateMode::from_flags(self.args[3]) else { return Ok(failed(EINVAL)) };
        of_map(map.update_by_program(&self.scratch.key, &self.scratch.value, mode, self.scratch.cpu))
    }

    fn map_delete(&mut self) -> Answer {
        let map = self.written_map()?;
        self.read_key(map)?;
        of_map(map.delete_by_program(&self.scratch.key))
    }

    fn redirect(&mut self) -> u64 {
        let [interface, flags, ..] = self.args;
        if flags != 0 {
            return XdpAction::Aborted.number().into();
        }
        self.scratch.redirect = Some(Redirect::Interface(interface as u32));
        XdpAction::Redirect.number().into()
    }

    fn redirect_map(&mut self) -> Answer {
        let (index, map) = self.map(0)?;
        let [_, key, flags, ..] = self.args;
        let device = matches!(map.def().kind, MapKind::Devmap | MapKind::DevmapHash);
        if !is_target(map) {
            return Err(FaultKind::Argument);
        }
        let extra = if device { BROADCAST | EXCLUDE_INGRESS } else { 0 };
        if flags & !(REDIRECT_ACTIONS | extra) != 0 {
            return Ok(XdpAction::Aborted.number().into());
        }
        let key = key as u32;
        let values = map.values().ok_or(FaultKind::Argument)?;
        let value = if flags & BROADCAST != 0 {
            Some(0)
        } else {
            map.entry(&key.to_le_bytes()).map(|entry| values.first_word(entry))
        };
        let Some(value) = value else {
            self.scratch.redirect = None;
            return Ok(flags & REDIRECT_ACTIONS);
        };
        let map = MapRef(index as u32);
        self.scratch.redirect = Some(Redirect::Map { map, key, value, flags });
        Ok(XdpAction::Redirect.number().into())
    }

    /// Ones' complement sum of `to` minus `from`, folded to 16 bits as Linux 6.13 and later do.
    fn csum_diff(&mut self) -> Answer {
        let [from, from_len, to, to_len, seed] = self.args;
        let (from_len, to_len) = (from_len & 0xffff_ffff, to_len & 0xffff_ffff);
        if (from_len | to_len) % 4 != 0 {
            return Ok(failed(EINVAL));
        }
        let mut sum = seed & 0xffff_ffff;
        for (address, len, invert) in [(to, to_len, 0), (from, from_len, u32::MAX)] {
            if len > 0 {
                self.read_value(address, len)?;
                let words = self.scratch.value.as_chunks::<4>().0.iter();
                let part = fold(words.map(|word| u64::from(u32::from_le_bytes(*word))).sum());
                sum += u64::from(part ^ invert);
            }
        }
        let sum = fold(sum);
        let sum = (sum & 0xffff) + (sum >> 16);
        Ok(u64::from((sum & 0xffff) + (sum >> 16)))
    }

    fn fib_lookup(&mut self, env: &mut dyn Env) -> Answer {
        self.context(0)?;
        let (address, len) = (self.args[1], self.args[2]);
        self.read_value(address, len)?;
        let Some(query) = self.scratch.value.first_chunk_mut::<64>() else { return Ok(failed(EINVAL)) };
        let answer = env.fib_lookup(query);
        self.memory.write(address, query).ok_or(FaultKind::Access { address })?;
        Ok(answer as u64)
    }

    fn adjust(&mut self, how: impl FnOnce(&mut Self, i32) -> i64) -> Answer {
        self.context(0)?;
        let delta = self.args[1] as i32;
        Ok(how(self, delta) as u64)
    }

    fn load_bytes(&mut self) -> Answer {
        self.context(0)?;
        let [_, offset, address, len, _] = self.args;
        let Scratch { value, .. } = &mut *self.scratch;
        value.clear();
        let len = u32::try_from(len).map_err(|_| FaultKind::Argument)?;
        let result = self.memory.buff.pieces(offset as u32, len, |piece| value.extend_from_slice(piece));
        if result == 0 {
            self.memory.write(address, value).ok_or(FaultKind::Access { address })?;
        }
        Ok(result as u64)
    }

    fn store_bytes(&mut self) -> Answer {
        self.context(0)?;
        let [_, offset, address, len, _] = self.args;
        self.read_value(address, len)?;
        Ok(self.memory.buff.store(offset as u32, &self.scratch.value) as u64)
    }
}

/// Returns whether the map holds redirect targets. Programs may only read those.
fn is_target(map: &Map) -> bool {
    matches!(map.def().kind, MapKind::Devmap | MapKind::DevmapHash | MapKind::Cpumap | MapKind::Xskmap)
}

/// Returns the ones' complement sum of the two halves.
fn fold(sum: u64) -> u32 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

//! Hooks: what sees every packet of the device, on its way in and on its way out.
//!
//! `ingress` is between the port and the transport, `egress` between the transport and the port: the transmit hook that
//! the kernel does not have. A [`Hook`] is a chain of [`Stage`]s, eBPF programs in the user-space machine or native
//! ones; its verdict decides about the packet. Programs see frames that begin with the Ethernet header and end with the
//! ICRC; a port that has no such bytes has them made, as long as a hook is attached and asks for them.
//!
//! | verdict | ingress | egress |
//! |---|---|---|
//! | PASS | to the transport | to the port |
//! | DROP, ABORTED, any other number | dropped | dropped |
//! | REDIRECT | to another process of this host: a CPUMAP's entry is the process with that slot (bits 23..16 of its QPNs), and what came from one goes to the transport instead; to the device's own interface: as TX; to an XSKMAP: to whoever reads ('roxie hook frames') | as PASS to the device's own interface, to whoever reads an XSKMAP, else dropped |
//! | TX | out again, to the destination that is now in its IP header, through `egress` | as any other number, as behind a devmap of the kernel |
//!
//! What a program changes counts, but what it leaves is taken apart anew: an Ethernet, IPv4 or IPv6 and UDP header for
//! the RoCE port, or the packet is dropped as malformed. On the way in the ICRC is still to be checked, so only what it
//! does not cover may differ (TOS, TTL, Ethernet). On the way out the ICRC, the last four bytes, is made afterwards (it
//! reads as zeros), so the change reaches the peer as if we had meant it; addresses, TOS and TTL are taken from the IP
//! header, the rest of the headers is the port's own.
//!
//! Beyond both, next to the port, taps copy what passes (`tap.rs`).
//!
//! Start with `ingress.rs` and `egress.rs`.

mod chain;
mod chosen;
pub mod control;
mod copies;
mod counters;
mod egress;
mod error;
mod held;
mod impair;
mod ingress;
mod object;
mod packet;
mod parameters;
mod plan;
mod police;
mod program;
mod reader;
mod redirect;
mod ring;
mod stage;
mod tap;

pub use chain::Hook;
pub use chosen::Chosen;
pub use counters::HookCounters;
pub use error::HookError;
pub use impair::Impair;
pub use packet::HookPacket;
pub use parameters::quantity;
pub use plan::{HookPlan, absolute};
pub use police::{Police, PoliceUnit};
pub use program::{Aborted, ProgramStage};
pub use ring::KeptFrame;
pub use stage::{Count, Stage, Target, Verdict};
pub use tap::TapFilter;

use std::fmt;

use transport::Instant;

use crate::engine::OwnedPacket;
use crate::port::FlowId;
use crate::registry::{ForwardOutcome, SLOTS};
use crate::stats::Row;
pub(crate) use redirect::RedirectOutcome;
use sys::now_ns;

use std::sync::Arc;

use egress::{Foreseen, Outgoing};
use held::Held;
use packet::Scratch;
use reader::Reader;
use tap::Taps;

/// Where a hook is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum HookPoint {
    /// On the way in, before the transport.
    Ingress,
    /// On the way out, after the transport has built the packet.
    Egress,
}

impl HookPoint {
    /// Both, ingress first.
    pub const ALL: [HookPoint; 2] = [HookPoint::Ingress, HookPoint::Egress];

    /// The point of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<HookPoint> {
        Self::ALL.into_iter().find(|point| point.to_string() == name)
    }
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HookPoint::Ingress => "ingress",
            HookPoint::Egress => "egress",
        })
    }
}

/// What is attached somewhere and what came of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HookStatus {
    /// Where.
    pub point: HookPoint,
    /// [`Hook::name`] of what is there.
    pub name: String,
    /// Verdicts since it was attached.
    pub counters: HookCounters,
    /// What its stages count themselves.
    pub rows: Vec<(String, u64)>,
    /// What else a person should know.
    pub notes: Vec<String>,
}

/// Both hooks of an engine.
#[derive(Debug)]
pub(crate) struct Hooks {
    ingress: Point,
    egress: Point,
    scratch: Scratch,
    held: Held,
    /// Frames that an ingress hook sent out again; they wait until the port has handed over its batch.
    bounced: Vec<Outgoing>,
    /// Packets for other processes, by slot; they wait for the same.
    redirected: Vec<(u8, OwnedPacket)>,
    redirects: Arc<RedirectOutcome>,
    reader: Reader,
    taps: Taps,
    slot: u8,
    /// The flow whose headers `scratch` has, while packets leave.
    egress_flow: Option<FlowId>,
    foreseen: Foreseen,
    xmit: u64,
    xmit_errors: u64,
}

/// One of them.
#[derive(Debug, Default)]
struct Point {
    hook: Option<Hook>,
    /// Whether packets are looked at here, by a hook or by a tap: all that is asked while they are not.
    is_watched: bool,
    /// Verdicts since the hook was attached, and those of the ones before it.
    counters: HookCounters,
    retired: HookCounters,
}

impl Hooks {
    /// No hooks on a device on interface `ifindex`.
    pub(crate) fn new(ifindex: u32) -> Hooks {
        Hooks {
            ingress: Point::default(),
            egress: Point::default(),
            scratch: Scratch::new(ifindex),
            held: Held::default(),
            bounced: Vec::new(),
            redirected: Vec::new(),
            redirects: Arc::default(),
            reader: Reader::default(),
            taps: Taps::default(),
            slot: SLOTS,
            egress_flow: None,
            foreseen: Foreseen::default(),
            xmit: 0,
            xmit_errors: 0,
        }
    }

    fn point(&mut self, point: HookPoint) -> &mut Point {
        match point {
            HookPoint::Ingress => &mut self.ingress,
            HookPoint::Egress => &mut self.egress,
        }
    }

    /// The process has this slot.
    pub(crate) fn set_slot(&mut self, slot: u8) {
        self.slot = slot;
    }

    /// Whether there are packets for other processes.
    #[inline]
    pub(crate) fn has_redirected(&self) -> bool {
        !self.redirected.is_empty()
    }

    /// Packets for other processes, by slot. Whoever hands them over says what came of it to [`redirects`](Self::redirects).
    pub(crate) fn take_redirected(&mut self) -> Vec<(u8, OwnedPacket)> {
        std::mem::take(&mut self.redirected)
    }

    /// Frames that were redirected to an XSKMAP, the oldest first, of at most `bytes_max` bytes; the caller is their reader
    /// for as long as it asks again.
    pub(crate) fn read_frames(&mut self, now_ns: u64, bytes_max: usize) -> Vec<KeptFrame> {
        let Hooks { reader, ingress, egress, .. } = self;
        reader.open(now_ns, ingress.hook.iter().chain(&egress.hook));
        reader.take(bytes_max)
    }

    /// A frame is redirected to an XSKMAP. Nobody may read any more, which the map did not know; a ring without room
    /// slows the source.
    fn keep_for_reader(&mut self, point: HookPoint, key: u32, bytes: Vec<u8>) {
        let Hooks { reader, ingress, egress, redirects, .. } = self;
        let (now_ns, len) = (now_ns(), bytes.len() as u32);
        if !reader.is_there(now_ns, ingress.hook.iter().chain(&egress.hook)) {
            self.point(point).counters.redirect_errors += 1;
        } else if !reader.push(KeptFrame { time_ns: now_ns, point, key, len, bytes }) {
            redirects.count(Ok(ForwardOutcome::Full), now_ns);
        }
    }

    pub(crate) fn redirects(&self) -> &Arc<RedirectOutcome> {
        &self.redirects
    }

    /// Whether nothing is to be received now, because what was redirected found no room.
    #[inline]
    pub(crate) fn is_paused(&self, now: Instant) -> bool {
        self.ingress.hook.is_some() && self.redirects.is_paused(now.0)
    }

    /// Attaches a hook; with `replace` in place of what is there, which is returned.
    pub(crate) fn attach(
        &mut self,
        at: HookPoint,
        hook: Hook,
        replace: bool,
    ) -> Result<Option<Hook>, HookError> {
        let point = self.point(at);
        if let Some(there) = point.hook.as_ref().filter(|_| !replace) {
            return Err(HookError::Occupied { point: at, name: there.name().to_owned() });
        }
        point.retired.absorb(&std::mem::take(&mut point.counters));
        let before = point.hook.replace(hook);
        self.watch();
        Ok(before)
    }

    /// Takes the hook off. What it holds back is still released.
    pub(crate) fn detach(&mut self, at: HookPoint) -> Result<Hook, HookError> {
        let point = self.point(at);
        point.retired.absorb(&std::mem::take(&mut point.counters));
        let there = point.hook.take().ok_or(HookError::NothingThere { point: at });
        self.watch();
        there
    }

    /// To be called when a hook or a tap has come or gone.
    fn watch(&mut self) {
        let is_tapped = !self.taps.is_empty();
        for point in [&mut self.ingress, &mut self.egress] {
            point.is_watched = is_tapped || point.hook.is_some();
        }
    }

    /// The hooks that are attached.
    pub(crate) fn status(&self) -> Vec<HookStatus> {
        [(HookPoint::Ingress, &self.ingress), (HookPoint::Egress, &self.egress)]
            .into_iter()
            .filter_map(|(at, point)| {
                let hook = point.hook.as_ref()?;
                let (name, counters) = (hook.name().to_owned(), point.counters);
                Some(HookStatus { point: at, name, counters, rows: hook.rows(), notes: hook.notes() })
            })
            .collect()
    }

    /// The device's counters of both, whichever hooks were there.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let sum = |point: &Point| {
            let mut sum = point.retired;
            sum.absorb(&point.counters);
            sum
        };
        let mut rows = sum(&self.ingress).rx_rows();
        rows.extend(sum(&self.egress).tx_rows());
        rows.extend(self.redirects.rows());
        rows.extend([("tx_xdp_xmit", self.xmit), ("tx_xdp_xmit_errors", self.xmit_errors)]);
        rows
    }
}

#[cfg(test)]
mod tests;

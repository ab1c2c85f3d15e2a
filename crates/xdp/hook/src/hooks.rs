//! Both hooks of an engine: attaching and detaching, and what all packets share. `ingress.rs` and `egress.rs`
//! are the ways of the packets.

use std::sync::Arc;

use transport::Instant;

use super::chain::Hook;
use super::counters::HookCounters;
use super::data;
use super::egress::Foreseen;
use super::error::HookError;
use super::held::Held;
use super::log::LogLine;
use super::outgoing::Outgoing;
use super::packet::Scratch;
use super::point::HookPoint;
use super::reader::Reader;
use super::redirect::RedirectOutcome;
use super::ring::KeptFrame;
use super::tap::Taps;
use roxie::port::FlowId;
use roxie::registry::ForwardOutcome;
use roxie::runtime::Runtime;
use roxie::stages::Redirected;
use roxie::status::Row;

/// Status of an attached hook.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HookStatus {
    /// The hook point.
    pub point: HookPoint,
    /// [`Hook::name`] of the hook.
    pub name: String,
    /// Verdicts since it was attached.
    pub counters: HookCounters,
    /// The stages' own counters, and those of redirects that found no space, which count from the engine's
    /// start.
    pub rows: Vec<(String, u64)>,
    /// Further information for people.
    pub notes: Vec<String>,
}

/// Both hooks of an engine.
#[derive(Debug)]
pub(crate) struct Hooks {
    pub(super) ingress: Point,
    pub(super) egress: Point,
    pub(super) scratch: Scratch,
    pub(super) held: Held,
    /// Frames that an ingress hook sent back; they wait until the port has delivered all batches.
    pub(super) bounced: Vec<Outgoing>,
    /// Packets for other processes, by slot; they wait for the same moment.
    pub(super) redirected: Vec<Redirected>,
    pub(super) redirects: Arc<RedirectOutcome>,
    /// Of the egress hook.
    pub(super) tx_redirects: RedirectOutcome,
    pub(super) reader: Reader,
    pub(super) taps: Taps,
    /// Those of the engine; empty before it starts.
    pub(super) slots: Vec<u16>,
    /// The engine's clock: hooks read no other.
    pub(super) runtime: Runtime,
    /// The flow of the headers in `scratch`, while packets are sent.
    pub(super) egress_flow: Option<FlowId>,
    pub(super) foreseen: Foreseen,
    /// Hooks attached so far.
    pub(super) attached: u64,
    pub(super) xmit: u64,
    pub(super) xmit_errors: u64,
}

/// One hook point.
#[derive(Debug, Default)]
pub(super) struct Point {
    pub(super) hook: Option<Hook>,
    /// Number of the hook, for references to its maps.
    pub(super) id: u64,
    /// The control connection that holds the hook: it is detached with it.
    pub(super) held_by: Option<u64>,
    /// Whether a hook or a tap needs the packets here; nothing else is checked while this is false.
    pub(super) is_active: bool,
    /// Verdicts since the hook was attached, and those of earlier hooks.
    pub(super) counters: HookCounters,
    pub(super) retired: HookCounters,
}

impl Hooks {
    /// Creates the hook points of a device on interface `ifindex`, without hooks.
    pub(crate) fn new(ifindex: u32) -> Hooks {
        Hooks {
            ingress: Point::default(),
            egress: Point::default(),
            scratch: Scratch::new(ifindex),
            held: Held::default(),
            bounced: Vec::new(),
            redirected: Vec::new(),
            redirects: Arc::default(),
            tx_redirects: RedirectOutcome::default(),
            reader: Reader::default(),
            taps: Taps::default(),
            slots: Vec::new(),
            runtime: Runtime::Kernel,
            egress_flow: None,
            foreseen: Foreseen::default(),
            attached: 0,
            xmit: 0,
            xmit_errors: 0,
        }
    }

    pub(super) fn point(&mut self, point: HookPoint) -> &mut Point {
        match point {
            HookPoint::Ingress => &mut self.ingress,
            HookPoint::Egress => &mut self.egress,
        }
    }

    /// Sets the first slot of the engine, and the clock of its engine.
    pub(crate) fn set_engine(&mut self, slot: u16, runtime: Runtime) {
        (self.slots, self.runtime) = (vec![slot], runtime);
    }

    /// Adds a slot of the engine.
    pub(crate) fn add_slot(&mut self, slot: u16) {
        self.slots.push(slot);
    }

    /// Whether there are packets for other processes.
    #[inline]
    pub(crate) fn has_redirected(&self) -> bool {
        !self.redirected.is_empty()
    }

    /// Takes the packets for other processes, by slot. The caller hands them over and reports the results
    /// to [`redirects`](Self::redirects).
    pub(crate) fn take_redirected(&mut self) -> Vec<Redirected> {
        std::mem::take(&mut self.redirected)
    }

    /// Takes the frames that were redirected to an XSKMAP, the oldest first, of at most `bytes_max`
    /// bytes. The caller counts as their reader as long as it calls this regularly.
    pub(crate) fn read_frames(&mut self, now_ns: u64, bytes_max: usize) -> Vec<KeptFrame> {
        let Hooks { reader, ingress, egress, .. } = self;
        reader.open(now_ns, ingress.hook.iter().chain(&egress.hook));
        reader.take(bytes_max)
    }

    /// Keeps a frame that was redirected to an XSKMAP. If the reader has stopped, the map's entries are
    /// removed only now; a full ring slows the source down.
    pub(super) fn keep_for_reader(&mut self, point: HookPoint, key: u32, bytes: Vec<u8>) {
        let Hooks { reader, ingress, egress, redirects, tx_redirects, runtime, .. } = self;
        let (now_ns, len) = (runtime.now_ns(), bytes.len() as u32);
        if !reader.is_there(now_ns, ingress.hook.iter().chain(&egress.hook)) {
            self.point(point).counters.redirect_errors += 1;
        } else if !reader.push(KeptFrame { time_ns: now_ns, point, key, len, bytes }) {
            let source: &RedirectOutcome = match point {
                HookPoint::Ingress => redirects,
                HookPoint::Egress => tx_redirects,
            };
            source.count(Ok(ForwardOutcome::Full), now_ns);
        }
    }

    /// Whether receiving is paused because there was no space for redirected packets, or because the reader
    /// of a recording is slow.
    #[inline]
    pub(crate) fn is_paused(&mut self, now: Instant) -> bool {
        self.taps.is_reader_slow(now.0) || self.ingress.hook.is_some() && self.redirects.is_paused(now.0)
    }

    /// Whether queue pairs keep their packets because there was no space for what the egress hook redirects,
    /// or because the reader of a recording is slow.
    #[inline]
    pub(crate) fn is_tx_paused(&mut self, now: Instant) -> bool {
        self.taps.is_reader_slow(now.0) || self.egress.hook.is_some() && self.tx_redirects.is_paused(now.0)
    }

    /// Whether packets wait for the reader of a recording, as the last call of these two found.
    #[inline]
    pub(crate) fn is_waiting_for_reader(&self) -> bool {
        self.taps.is_waiting
    }

    /// Attaches a hook; with `replace` instead of the present one, which is returned.
    pub(crate) fn attach(
        &mut self,
        at: HookPoint,
        hook: Hook,
        replace: bool,
    ) -> Result<Option<Hook>, HookError> {
        let id = self.attached + 1;
        let point = self.point(at);
        if let Some(there) = point.hook.as_ref().filter(|_| !replace) {
            return Err(HookError::Occupied { point: at, name: there.name().to_owned() });
        }
        (point.id, point.held_by) = (id, None);
        point.retired.absorb(&std::mem::take(&mut point.counters));
        let before = point.hook.replace(hook);
        self.attached = id;
        self.update_active();
        Ok(before)
    }

    /// Adds the stages of `hook` behind those that are attached.
    pub(crate) fn append(&mut self, at: HookPoint, hook: Hook) -> Result<(), HookError> {
        let hook = match self.detach(at) {
            Ok(there) => there.then(hook),
            Err(_nothing_there) => hook,
        };
        self.attach(at, hook, false).map(drop)
    }

    /// Detaches the hook. Packets that it holds back are still released.
    pub(crate) fn detach(&mut self, at: HookPoint) -> Result<Hook, HookError> {
        let point = self.point(at);
        point.retired.absorb(&std::mem::take(&mut point.counters));
        point.held_by = None;
        let there = point.hook.take().ok_or(HookError::NothingThere { point: at });
        self.update_active();
        there
    }

    /// Ties the hook at a point to a control connection.
    pub(crate) fn hold(&mut self, at: HookPoint, client: u64) {
        self.point(at).held_by = Some(client);
    }

    /// Detaches the hooks that a control connection holds, and returns them.
    pub(crate) fn release_held(&mut self, client: u64) -> Vec<Hook> {
        let is_held = |hooks: &mut Self, at| hooks.point(at).held_by == Some(client);
        let points = HookPoint::ALL.into_iter();
        points.filter_map(|at| if is_held(self, at) { self.detach(at).ok() } else { None }).collect()
    }

    /// To be called after a hook or a tap was added or removed.
    pub(super) fn update_active(&mut self) {
        let is_tapped = !self.taps.is_empty();
        for point in [&mut self.ingress, &mut self.egress] {
            point.is_active = is_tapped || point.hook.is_some();
        }
    }

    /// Whether a hook is attached, or another process reads copies of the packets (not `roxie run --capture`,
    /// which every engine serves).
    pub(crate) fn are_used(&self) -> bool {
        self.ingress.hook.is_some() || self.egress.hook.is_some() || self.taps.has_clients()
    }

    /// Takes the lines that the programs printed, of at most [`data::DATA_BYTES_MAX`] bytes, in order of
    /// time, and the number of lost ones. The caller counts as their reader for two seconds.
    pub(super) fn read_log(&mut self, now_ns: u64) -> (Vec<LogLine>, u64) {
        let (mut lines, mut lost, mut room) = (Vec::new(), 0, data::DATA_BYTES_MAX);
        for at in HookPoint::ALL {
            if let Some(hook) = &mut self.point(at).hook {
                lost += hook.read_log(at, now_ns, &mut room, &mut lines);
            }
        }
        lines.sort_by_key(|line| line.time_ns);
        (lines, lost)
    }

    /// The attached hooks.
    pub(crate) fn status(&self) -> Vec<HookStatus> {
        let points = [
            (HookPoint::Ingress, &self.ingress, &*self.redirects),
            (HookPoint::Egress, &self.egress, &self.tx_redirects),
        ];
        let status = |(at, point, redirects): (HookPoint, &Point, &RedirectOutcome)| {
            let hook = point.hook.as_ref()?;
            let (name, counters) = (hook.name().to_owned(), point.counters);
            let rows = [hook.rows(), redirects.status_rows()].concat();
            Some(HookStatus { point: at, name, counters, rows, notes: hook.notes() })
        };
        points.into_iter().filter_map(status).collect()
    }

    /// The device's counters of both points, over all hooks that were attached.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let sum = |point: &Point| {
            let mut sum = point.retired;
            sum.absorb(&point.counters);
            sum
        };
        let mut rows = sum(&self.ingress).rx_rows();
        rows.extend(sum(&self.egress).tx_rows());
        rows.extend(self.redirects.rx_rows());
        rows.extend(self.tx_redirects.tx_rows());
        rows.extend([("tx_xdp_xmit", self.xmit), ("tx_xdp_xmit_errors", self.xmit_errors)]);
        rows
    }
}

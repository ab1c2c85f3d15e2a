//! What sees each packet between the port and the transport: hooks and taps, which are a plug-in.
//!
//! The device knows the plug-in (the crate `roxie-hook`) only by the traits of this file. A process gets it
//! by [`plug_in`], before its first engine. The control socket, through which other processes attach hooks
//! and read the state of an engine, comes with it. Without a hook or a tap each point costs one comparison.

use std::any::Any;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use transport::Instant;
use transport::chaos::Chaos;
use wire::Qpn;

pub use crate::port::OwnedPacket;
use crate::port::{FlowId, Port, RxBatch};
use crate::registry::{DomainConfig, ForwardOutcome};
use crate::runtime::Runtime;
use crate::status::{EngineStatus, ObjectKind, ObjectPage, QpPage, Row};

/// The next step for packets that pass.
pub type Deliver<'f> = &'f mut dyn FnMut(&RxBatch<'_>);

/// Hooks as text, in the syntax of the plug-in; empty for none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HookConfig {
    /// Hook for received packets.
    pub ingress: String,
    /// Hook for packets to send.
    pub egress: String,
}

impl HookConfig {
    /// Takes the hooks from `ROXIE_INGRESS` and `ROXIE_EGRESS`.
    #[must_use]
    pub fn from_env() -> HookConfig {
        let get = |name| std::env::var_os(name).unwrap_or_default().to_string_lossy().into_owned();
        HookConfig { ingress: get("ROXIE_INGRESS"), egress: get("ROXIE_EGRESS") }
    }
}

/// Why hooks cannot be had.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BadHook {
    /// The reason.
    pub why: String,
    /// What the user can do about it, if anything is known.
    pub remedy: Option<String>,
}

/// Makes the parts of an engine that are not in this crate.
pub trait PlugIn: Sync {
    /// The stages of an engine on interface `ifindex`, with the hooks of the configuration.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn stages(&self, ifindex: u32, hooks: &HookConfig) -> Result<Box<dyn Stages>, BadHook>;

    /// The control socket of the engine with this slot.
    ///
    /// # Errors
    /// `EMFILE`.
    fn control(&self, domain: &DomainConfig, slot: u16) -> io::Result<Box<dyn Control>>;
}

/// Hooks and taps of one engine. Runs under the engine's lock, so it must not wait.
pub trait Stages: Any + Send {
    /// Whether packets pass it or wait in it. Otherwise no function is called for a packet.
    fn is_active(&self) -> bool;

    /// Whether received packets must come here first.
    fn has_ingress(&self) -> bool;

    /// Judges a received batch; packets that pass go to `deliver`.
    fn receive(&mut self, batch: &RxBatch<'_>, deliver: Deliver<'_>);

    /// Sends what [`receive`](Self::receive) has sent back.
    fn send_bounced(&mut self, port: &mut dyn Port);

    /// Whether receiving is paused.
    fn is_paused(&mut self, now: Instant) -> bool;

    /// Whether queue pairs keep their packets for now.
    fn is_tx_paused(&mut self, now: Instant) -> bool;

    /// Whether packets wait for the reader of a recording, as the last call of these two found.
    fn is_waiting_for_reader(&self) -> bool;

    /// When the next packet that is held back is due.
    fn next_due_ns(&self) -> Option<u64>;

    /// Releases the packets that were held back until now.
    fn release(&mut self, now_ns: u64, port: &mut dyn Port, deliver: Deliver<'_>);

    /// Copies a request that this device handles, or that is lost here.
    fn tap_request(&mut self, packet: &RxBatch<'_>);

    /// The next packets are of another flow, or none follow for now.
    fn change_flow(&mut self);

    /// As [`change_flow`](Self::change_flow); this queue pair sends the next packets.
    fn begin(&mut self, sender: Qpn);

    /// Commits the `len` bytes at the start of the port's slot to `flow`, if they pass.
    fn commit(&mut self, port: &mut dyn Port, flow: FlowId, len: usize);

    /// Whether there are packets for other processes.
    fn has_redirected(&self) -> bool;

    /// Takes them. The caller hands them over and reports the results to [`redirects`](Self::redirects).
    fn take_redirected(&mut self) -> Vec<Redirected>;

    /// Counts what becomes of them, without the engine's lock.
    fn redirects(&self) -> Arc<dyn Redirects>;

    /// Sets the first slot of the engine, and the clock.
    fn set_engine(&mut self, slot: u16, runtime: Runtime);

    /// Adds a slot of the engine.
    fn add_slot(&mut self, slot: u16);

    /// Starts the tap of a recording, with this many bytes of each packet (0 for all); returns its memory.
    ///
    /// # Errors
    /// `ENOMEM`; there are too many taps.
    fn record(&mut self, snap_len: u32) -> io::Result<OwnedFd>;

    /// Adds the faults of the network to the packets that leave.
    ///
    /// # Errors
    /// The hook cannot be attached.
    fn disturb(&mut self, chaos: &Arc<Chaos>) -> Result<(), BadHook>;

    /// Drops all taps, in a forked child.
    fn forget_taps(&mut self);

    /// Whether a hook is attached, or another process reads packets (beside a recording).
    fn are_used(&self) -> bool;

    /// The counters.
    fn rows(&self) -> Vec<Row>;
}

/// A packet that a program redirects to another process.
#[derive(Debug)]
pub struct Redirected {
    /// Slot of that process.
    pub slot: u16,
    /// The packet passes if no process has the slot; otherwise it is dropped then.
    pub passes: bool,
    /// The packet.
    pub packet: OwnedPacket,
}

/// Results of handing packets over.
pub trait Redirects: Send + Sync {
    /// Counts the result of one packet. Returns whether no process has the slot.
    fn count(&self, outcome: io::Result<ForwardOutcome>, now_ns: u64) -> bool;
}

/// The control socket of an engine.
pub trait Control: Send + Sync {
    /// Readable when [`serve`](Self::serve) has something to do.
    fn fd(&self) -> RawFd;

    /// Answers the pending requests, without waiting.
    fn serve(&self, engine: &dyn Served);

    /// Disconnects the copies of the descriptors in a forked child.
    fn disinherit(&self);
}

/// An engine as its control socket sees it. Each call but `now_ns` takes the engine's lock.
pub trait Served {
    /// The time of the engine's clock.
    fn now_ns(&self) -> u64;

    /// Runs `work` on the stages.
    fn with_stages(&self, work: &mut dyn FnMut(&mut dyn Stages));

    /// The queue pairs that are connected to one of these.
    fn connected_to(&self, peers: &[Qpn]) -> Vec<Qpn>;

    /// The status of the engine.
    fn status(&self) -> EngineStatus;

    /// Some objects of a kind, from a number on.
    fn objects(&self, kind: ObjectKind, from: u32) -> ObjectPage;

    /// Some queue pairs, from an index on.
    fn queue_pairs(&self, from: u32) -> QpPage;
}

static PLUG_IN: OnceLock<&'static dyn PlugIn> = OnceLock::new();

/// Sets the plug-in of this process. Only the first one counts.
pub fn plug_in(plug_in: &'static dyn PlugIn) {
    let _is_first = PLUG_IN.set(plug_in).is_ok();
}

/// The control socket of an engine; `None` without the plug-in, or without a free descriptor.
pub(crate) fn control(domain: &DomainConfig, slot: u16) -> Option<Box<dyn Control>> {
    PLUG_IN.get()?.control(domain, slot).ok()
}

/// What an engine has of the plug-in.
#[derive(Default)]
pub(crate) struct Hooks {
    stages: Option<Box<dyn Stages>>,
    /// [`Stages::is_active`], as the last change left it.
    is_active: bool,
}

impl Hooks {
    /// The hooks of an engine on interface `ifindex`.
    ///
    /// # Errors
    /// What is wrong with the configuration; it names hooks, and the process has no plug-in.
    pub(crate) fn open(ifindex: u32, config: &HookConfig) -> Result<Hooks, BadHook> {
        let Some(plug_in) = PLUG_IN.get() else {
            return if *config == HookConfig::default() {
                Ok(Hooks::default())
            } else {
                Err(BadHook::absent())
            };
        };
        let stages = plug_in.stages(ifindex, config)?;
        let is_active = stages.is_active();
        Ok(Hooks { stages: Some(stages), is_active })
    }

    /// Whether the process has the plug-in.
    pub(crate) fn exist(&self) -> bool {
        self.stages.is_some()
    }

    /// Runs `work`, which may change what is attached.
    ///
    /// # Errors
    /// The process has no plug-in.
    pub(crate) fn with<R>(&mut self, work: impl FnOnce(&mut dyn Stages) -> R) -> Result<R, BadHook> {
        let stages = self.stages.as_deref_mut().ok_or_else(BadHook::absent)?;
        let result = work(stages);
        self.is_active = stages.is_active();
        Ok(result)
    }

    /// The stages, if packets pass them.
    #[inline]
    pub(crate) fn active(&mut self) -> Option<&mut dyn Stages> {
        if self.is_active { self.stages.as_deref_mut() } else { None }
    }

    #[inline]
    fn watching(&self) -> Option<&dyn Stages> {
        if self.is_active { self.stages.as_deref() } else { None }
    }

    /// See [`Stages::has_ingress`].
    #[inline]
    pub(crate) fn ingress(&mut self) -> Option<&mut dyn Stages> {
        self.active().filter(|stages| stages.has_ingress())
    }

    /// See [`Stages::is_paused`].
    #[inline]
    pub(crate) fn is_paused(&mut self, now: Instant) -> bool {
        self.active().is_some_and(|stages| stages.is_paused(now))
    }

    /// See [`Stages::is_tx_paused`].
    #[inline]
    pub(crate) fn is_tx_paused(&mut self, now: Instant) -> bool {
        self.active().is_some_and(|stages| stages.is_tx_paused(now))
    }

    /// See [`Stages::is_waiting_for_reader`].
    #[inline]
    pub(crate) fn is_waiting_for_reader(&self) -> bool {
        self.watching().is_some_and(Stages::is_waiting_for_reader)
    }

    /// See [`Stages::next_due_ns`].
    #[inline]
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.watching().and_then(Stages::next_due_ns)
    }

    /// See [`Stages::release`].
    pub(crate) fn release(&mut self, now_ns: u64, port: &mut dyn Port, deliver: Deliver<'_>) {
        let _without = self.with(|stages| stages.release(now_ns, port, deliver));
    }

    /// See [`Stages::tap_request`].
    pub(crate) fn tap_request(&mut self, packet: &RxBatch<'_>) {
        self.active().into_iter().for_each(|stages| stages.tap_request(packet));
    }

    /// See [`Stages::change_flow`].
    #[inline]
    pub(crate) fn change_flow(&mut self) {
        if let Some(stages) = self.active() {
            stages.change_flow();
        }
    }

    /// See [`Stages::begin`].
    #[inline]
    pub(crate) fn begin(&mut self, sender: Qpn) {
        if let Some(stages) = self.active() {
            stages.begin(sender);
        }
    }

    /// See [`Stages::commit`].
    #[inline]
    pub(crate) fn commit(&mut self, port: &mut dyn Port, flow: FlowId, len: usize) {
        match self.active() {
            Some(stages) => stages.commit(port, flow, len),
            None => port.tx_commit(flow, len),
        }
    }

    /// See [`Stages::has_redirected`].
    #[inline]
    pub(crate) fn has_redirected(&self) -> bool {
        self.watching().is_some_and(Stages::has_redirected)
    }

    /// See [`Stages::take_redirected`].
    pub(crate) fn take_redirected(&mut self) -> Vec<Redirected> {
        self.with(Stages::take_redirected).unwrap_or_default()
    }

    /// See [`Stages::redirects`].
    pub(crate) fn redirects(&self) -> Option<Arc<dyn Redirects>> {
        self.stages.as_ref().map(|stages| stages.redirects())
    }

    /// See [`Stages::are_used`].
    pub(crate) fn are_used(&self) -> bool {
        self.watching().is_some_and(Stages::are_used)
    }

    /// See [`Stages::rows`].
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.stages.as_ref().map(|stages| stages.rows()).unwrap_or_default()
    }
}

impl BadHook {
    fn absent() -> BadHook {
        let remedy = "call roxie_hook::register() (crate roxie-hook) at the start of the program";
        BadHook {
            why: "this program does not have the plug-in of hooks".to_owned(),
            remedy: Some(remedy.to_owned()),
        }
    }

    /// The reason and the remedy, on one line.
    pub(crate) fn text(self) -> String {
        self.remedy.map_or(self.why.clone(), |remedy| format!("{}: {remedy}", self.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_the_plug_in_has_no_hooks_and_is_told_so() {
        let config = |ingress: &str| HookConfig { ingress: ingress.to_owned(), egress: String::new() };
        let mut none = Hooks::open(1, &config("")).unwrap_or_else(|bad| panic!("{bad:?}"));
        assert!(none.active().is_none() && none.rows().is_empty() && !none.are_used());
        let refused = Hooks::open(1, &config("count")).err().and_then(|bad| bad.remedy);
        assert!(refused.is_some_and(|remedy| remedy.contains("roxie_hook::register()")));
    }
}

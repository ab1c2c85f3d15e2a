//! Hooks and the control socket as the device knows them: the traits of [`roxie::stages`].

use std::any::Any;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use roxie::port::{FlowId, Port, RxBatch};
use roxie::registry::{DomainConfig, ForwardOutcome};
use roxie::runtime::Runtime;
use roxie::stages::{
    BadHook, Control, Deliver, HookConfig, PlugIn, Redirected, Redirects, Served, Stages, plug_in,
};
use roxie::status::Row;
use transport::Instant;
use transport::chaos::Chaos;
use wire::Qpn;

use super::control::{self, Requests};
use super::redirect::RedirectOutcome;
use super::{Hook, HookError, HookPoint, Hooks, TapFilter, faults};

/// Gives the devices of this process hooks, taps and the control socket. To be called before the first device
/// is opened; further calls do nothing.
pub fn register() {
    plug_in(&Registered);
}

#[derive(Debug)]
struct Registered;

impl PlugIn for Registered {
    fn stages(&self, ifindex: u32, config: &HookConfig) -> Result<Box<dyn Stages>, BadHook> {
        let mut hooks = Hooks::new(ifindex);
        let named = [(HookPoint::Ingress, &config.ingress), (HookPoint::Egress, &config.egress)];
        for (point, text) in named.into_iter().filter(|(_, text)| !text.is_empty()) {
            hooks.attach(point, Hook::parse(text)?, false)?;
        }
        Ok(Box::new(hooks))
    }

    fn control(&self, domain: &DomainConfig, slot: u16) -> io::Result<Box<dyn Control>> {
        Ok(Box::new(control::Control::open(domain, slot)?))
    }
}

impl From<HookError> for BadHook {
    fn from(error: HookError) -> BadHook {
        BadHook { why: error.to_string(), remedy: error.remedy() }
    }
}

/// Returns what `work` returns for the hooks among the stages of an engine.
pub(crate) fn with_hooks<R>(stages: &mut dyn Stages, work: impl FnOnce(&mut Hooks) -> R) -> Option<R> {
    let stages: &mut dyn Any = stages;
    stages.downcast_mut().map(work)
}

impl Stages for Hooks {
    fn is_active(&self) -> bool {
        let is_empty = self.next_due_ns().is_none() && !self.has_redirected();
        self.ingress.is_active || self.egress.is_active || !is_empty
    }

    fn has_ingress(&self) -> bool {
        self.has_ingress()
    }

    fn receive(&mut self, batch: &RxBatch<'_>, deliver: Deliver<'_>) {
        self.receive(batch, deliver);
    }

    fn send_bounced(&mut self, port: &mut dyn Port) {
        self.send_bounced(port);
    }

    fn is_paused(&mut self, now: Instant) -> bool {
        self.is_paused(now)
    }

    fn is_tx_paused(&mut self, now: Instant) -> bool {
        self.is_tx_paused(now)
    }

    fn is_waiting_for_reader(&self) -> bool {
        self.is_waiting_for_reader()
    }

    fn next_due_ns(&self) -> Option<u64> {
        self.next_due_ns()
    }

    fn release(&mut self, now_ns: u64, port: &mut dyn Port, deliver: Deliver<'_>) {
        self.release(now_ns, port, deliver);
    }

    fn tap_request(&mut self, packet: &RxBatch<'_>) {
        self.tap_request(packet);
    }

    fn change_flow(&mut self) {
        self.change_flow();
    }

    fn begin(&mut self, sender: Qpn) {
        self.change_flow();
        self.set_sender(Some(sender));
    }

    fn commit(&mut self, port: &mut dyn Port, flow: FlowId, len: usize) {
        self.commit(port, flow, len);
    }

    fn has_redirected(&self) -> bool {
        self.has_redirected()
    }

    fn take_redirected(&mut self) -> Vec<Redirected> {
        self.take_redirected()
    }

    fn redirects(&self) -> Arc<dyn Redirects> {
        Arc::clone(&self.redirects) as Arc<dyn Redirects>
    }

    fn set_engine(&mut self, slot: u16, runtime: Runtime) {
        self.set_engine(slot, runtime);
    }

    fn add_slot(&mut self, slot: u16) {
        self.add_slot(slot);
    }

    fn record(&mut self, snap_len: u32) -> io::Result<OwnedFd> {
        let filter = TapFilter { snap_len, ..TapFilter::default() };
        let failed = |error: HookError| io::Error::other(error.to_string());
        let (copies, reader) = filter.memory().map_err(failed)?;
        self.record(filter, copies).map_err(failed)?;
        Ok(reader)
    }

    fn disturb(&mut self, chaos: &Arc<Chaos>) -> Result<(), BadHook> {
        Ok(self.append(HookPoint::Egress, faults::hook(chaos))?)
    }

    fn forget_taps(&mut self) {
        self.forget_taps();
    }

    fn are_used(&self) -> bool {
        self.are_used()
    }

    fn rows(&self) -> Vec<Row> {
        self.rows()
    }
}

impl Redirects for RedirectOutcome {
    fn count(&self, outcome: io::Result<ForwardOutcome>, now_ns: u64) -> bool {
        self.count(outcome, now_ns)
    }
}

impl Control for control::Control {
    fn fd(&self) -> RawFd {
        self.fd()
    }

    fn serve(&self, engine: &dyn Served) {
        self.serve(&Requests(engine));
    }

    fn disinherit(&self) {
        self.disinherit();
    }
}

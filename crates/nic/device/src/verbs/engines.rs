//! The engines of a device: their start with the first use, and further ones while threads come.
//!
//! With `engines=auto` a device begins with one engine. A thread that creates its first queue pair while
//! another thread's queue pairs are on all engines gets an engine of its own, up to the CPUs of the process.
//! So threads with queue pairs of their own share no lock, and a program with one thread has one engine.

use std::io;
use std::sync::{Arc, MutexGuard};
use transport::refusal::Os;
use transport::{VerbsError, refuse};

use transport::chaos::Chaos;

use super::{Device, Refusal, Traffic, cause};
use crate::chaos;
use crate::cm::{SharedPorts, interval_from_env};
use crate::engine::group::Engines;
use crate::engine::owners::{Owner, Placement};
use crate::engine::progress;
use crate::engine::{Engine, Parts};
use crate::fork;
use crate::guard;
use crate::notice::notice;
use crate::port::{PortChoice, PortKind};
use crate::recording::Recording;
use crate::registry::{DomainConfig, Membership, Registry};
use crate::runtime::Runtime;
use crate::sched::Tuning;
use crate::stages::{self, HookConfig, Hooks};
use crate::trace;
use crate::variable::BadVariable;

impl Device {
    pub(super) fn choice(&self) -> Result<PortChoice, BadVariable> {
        self.0.port.map_or_else(PortChoice::from_env, Ok)
    }

    pub(super) fn engines(&self) -> Result<Engines, BadVariable> {
        self.0.engines.map_or_else(Engines::from_env, Ok)
    }

    /// As [`engine`](Self::engine), for verbs, which return an errno: ENODEV.
    pub(crate) fn engine_or_refusal(&self) -> Result<Arc<Engine>, VerbsError> {
        self.engine().map_err(|error| Self::without_engine(&error))
    }

    /// The refusal of a call that needs the engine.
    #[cold]
    pub(crate) fn without_engine(error: &io::Error) -> VerbsError {
        let os = cause(error);
        refuse!(ENODEV, "device", "engine"; os as Os; "the engine of the device does not start: {os}";
            "'roxie doctor' may know why")
    }

    /// Returns the first engine. The first call starts as many as there are at the beginning.
    pub(crate) fn engine(&self) -> io::Result<Arc<Engine>> {
        if let Some(engine) = &*self.slot() {
            return Ok(Arc::clone(engine));
        }
        fork::add_slot(&self.0.engine, &self.0.gids);
        let mut slot = self.slot();
        if let Some(engine) = &*slot {
            return Ok(Arc::clone(engine));
        }
        if self.0.gids.is_removed() {
            return Err(Refusal::Removed { netdev: self.0.gids.get().netdev.clone() }.into());
        }
        let choice = self.choice().map_err(Refusal::BadVariable)?;
        let engines = self.engines().map_err(Refusal::BadVariable)?;
        guard::from_env().map_err(Refusal::BadVariable)?;
        trace::start_from_env();
        let first = self.start(None)?;
        if engines.is_auto() {
            // AF_XDP gives the whole interface to one engine.
            first.place.set_most(if choice.kind == PortKind::Udp { engines.most() } else { 1 });
        }
        for _ in 1..engines.at_start() {
            self.add_engine(&first)?;
        }
        self.0.gids.leave_to_engine();
        *slot = Some(Arc::clone(&first));
        Ok(first)
    }

    /// Returns the number of the engine for a new object of `owner`. May start an engine.
    pub(super) fn engine_for(&self, first: &Arc<Engine>, owner: Owner) -> usize {
        let slot = self.slot();
        if let Placement::On(engine) = first.place_of(owner) {
            return engine;
        }
        if slot.as_ref().is_none_or(|there| !Arc::ptr_eq(there, first)) {
            // In a forked child the objects of the parent have engines that do nothing.
            return 0;
        }
        match self.add_engine(first) {
            Ok(()) => first.assign(owner, first.count() - 1),
            Err(error) => {
                // Out of descriptors, slots or threads.
                let engines = first.count();
                notice(format_args!(
                    "another engine for a further thread could not start, so all threads share {engines}: \
                     {error}"
                ));
                first.place.set_most(engines);
            }
        }
        match first.place_of(owner) {
            Placement::On(engine) => engine,
            Placement::OnNew => 0,
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Engine>>> {
        self.0.engine.lock()
    }

    fn add_engine(&self, first: &Arc<Engine>) -> io::Result<()> {
        let engine = self.start(Some((first, first.count())))?;
        first.add_sibling(engine);
        Ok(())
    }

    /// Starts an engine; `beside`: the first engine of the device and the number of this one.
    fn start(&self, beside: Option<(&Arc<Engine>, usize)>) -> io::Result<Arc<Engine>> {
        sys::memory_for(Refusal::ENGINE_MEMORY).map_err(|_| Refusal::NoMemory)?;
        let choice = self.choice().map_err(Refusal::BadVariable)?;
        let traffic = self.0.traffic.map_or_else(|| Traffic::from_env(&self.0.name), Ok);
        let traffic = traffic.map_err(Refusal::BadVariable)?;
        let keepalive_ns = interval_from_env().map_err(Refusal::BadVariable)?;
        let domain =
            self.0.domain.clone().map_or_else(DomainConfig::from_env, Ok).map_err(Refusal::BadVariable)?;
        let chaos = self.start_chaos()?;
        // Only the first engine may use AF_XDP.
        let kind = if beside.is_none() { choice.kind } else { PortKind::Udp };
        // Engines start for threads while no hook is attached: one of the configuration was detached.
        let is_for_thread = beside.is_some_and(|(first, _)| first.place.is_auto());
        let ifindex = self.gids().ifindex;
        let mut hooks = if is_for_thread {
            Hooks::open(ifindex, &HookConfig::default()).map_err(Refusal::BadHook)?
        } else {
            self.0.hooks.take(ifindex)?
        };
        if let Some(chaos) = chaos {
            hooks.with(|stages| stages.disturb(chaos)).flatten().map_err(Refusal::BadHook)?;
        }
        let membership = Membership::join(&domain)?;
        let control = if hooks.exist() { stages::control(&domain, membership.slot()) } else { None };
        let table = self.gids();
        let port = crate::open_port::open(PortChoice { kind, ..choice }, &membership, &table)?;
        let recording = Recording::from_env(&mut hooks, (&self.0.name, &table.netdev), membership.slot());
        let ports = SharedPorts::of(&domain);
        let (device, registry, gids) = (self.0.name.clone(), Box::new(membership), Arc::clone(&self.0.gids));
        let (runtime, tuning) = (Runtime::Kernel, Tuning { keepalive_ns, ..Tuning::default() });
        let engine = Engine::new(
            Parts { device, port, registry, gids, ports, hooks, control, runtime, tuning },
            beside,
        )?;
        let mut core = engine.lock();
        core.tables.traffic = traffic;
        core.tables.observer.record(recording);
        drop(core);
        if let Some(chaos) = chaos {
            engine.set_chaos(chaos);
        }
        progress::spawn(&engine, &self.0.engine).map_err(Refusal::NoThread)?;
        Ok(engine)
    }

    /// The faults that the engines have, if a plan was configured.
    fn start_chaos(&self) -> Result<Option<&Arc<Chaos>>, Refusal> {
        let plan = self.0.chaos_plan.map_or_else(chaos::plan_from_env, |plan| Ok(Some(plan)));
        let plan = plan.map_err(Refusal::BadChaos)?;
        Ok(plan.map(|plan| self.0.chaos.get_or_init(|| Arc::new(Chaos::new(plan)))))
    }
}

//! Hooks of a device: attached before or while its engine runs.

use std::sync::{Mutex, PoisonError};

use super::{Device, Refusal};
use crate::engine::Engine;
use crate::hook::{Hook, HookError, HookPoint, HookStatus, Hooks};

/// Hooks as text in the syntax of [`HookPlan::read`](crate::hook::HookPlan::read); empty for none.
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

    /// Parses both hooks.
    ///
    /// # Errors
    /// Those of [`Hook::parse`].
    pub fn load(&self) -> Result<Vec<(HookPoint, Hook)>, HookError> {
        let named = [(HookPoint::Ingress, &self.ingress), (HookPoint::Egress, &self.egress)];
        let named = named.into_iter().filter(|(_, text)| !text.is_empty());
        named.map(|(point, text)| Ok((point, Hook::parse(text)?))).collect()
    }
}

/// Hooks of a device before its engine starts.
#[derive(Debug, Default)]
pub(super) struct EarlyHooks {
    config: HookConfig,
    made: Mutex<Option<Hooks>>,
}

impl EarlyHooks {
    pub(super) fn new(config: HookConfig) -> EarlyHooks {
        EarlyHooks { config, made: Mutex::default() }
    }

    /// Runs `work` on the hooks that the engine will start with.
    fn with<R>(
        &self,
        ifindex: u32,
        work: impl FnOnce(&mut Hooks) -> Result<R, HookError>,
    ) -> Result<R, HookError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.is_none() {
            let mut hooks = Hooks::new(ifindex);
            for (point, hook) in self.config.load()? {
                hooks.attach(point, hook, false)?;
            }
            *made = Some(hooks);
        }
        work(made.get_or_insert_with(|| Hooks::new(ifindex)))
    }

    /// Returns the hooks that the engine starts with. An engine in a forked child starts with those of the
    /// configuration.
    pub(super) fn take(&self, ifindex: u32) -> Result<Hooks, Refusal> {
        let taken = self.with(ifindex, |hooks| Ok(std::mem::replace(hooks, Hooks::new(ifindex))));
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = None;
        taken.map_err(Refusal::BadHook)
    }
}

impl Device {
    /// Attaches a hook to the device's first engine. With a fixed number of engines the others keep the
    /// configured hooks; otherwise the device starts no further engine while the hook is attached. Traffic is
    /// not interrupted: each packet passes either the old or the new hook. With `replace` the new hook
    /// replaces the attached one, which is returned.
    ///
    /// # Errors
    /// [`HookError::Occupied`] if a hook is attached and `replace` is false; [`HookError::SeveralEngines`] if
    /// the device has started engines for several threads; before the engine starts, also the errors of the
    /// device's configuration.
    pub fn attach_hook(
        &self,
        point: HookPoint,
        hook: Hook,
        replace: bool,
    ) -> Result<Option<Hook>, HookError> {
        // No engine starts while the lock is held.
        let engine = self.0.engine.lock();
        if let Some(engines) = engine.as_ref().and_then(|engine| engine.started_for_threads()) {
            return Err(HookError::SeveralEngines { engines });
        }
        self.with_hooks_of(engine.as_deref(), |hooks| hooks.attach(point, hook, replace))
    }

    /// Detaches a hook. Packets that it delays are released at their time.
    ///
    /// # Errors
    /// [`HookError::NothingThere`].
    pub fn detach_hook(&self, point: HookPoint) -> Result<Hook, HookError> {
        self.with_hooks(|hooks| hooks.detach(point))
    }

    /// Returns the attached hooks and their counters.
    ///
    /// # Errors
    /// Before the engine starts, the errors of the device's configuration.
    pub fn hooks(&self) -> Result<Vec<HookStatus>, HookError> {
        self.with_hooks(|hooks| Ok(hooks.status()))
    }

    fn with_hooks<R>(&self, work: impl FnOnce(&mut Hooks) -> Result<R, HookError>) -> Result<R, HookError> {
        let engine = self.0.engine.lock();
        self.with_hooks_of(engine.as_deref(), work)
    }

    fn with_hooks_of<R>(
        &self,
        engine: Option<&Engine>,
        work: impl FnOnce(&mut Hooks) -> Result<R, HookError>,
    ) -> Result<R, HookError> {
        match engine {
            Some(engine) => work(&mut engine.lock().hooks),
            None => self.0.hooks.with(self.gids().ifindex, work),
        }
    }
}

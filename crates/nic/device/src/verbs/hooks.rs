//! Hooks of a device before its engine starts: those of its configuration, and those attached since.

use std::sync::{Mutex, PoisonError};

use super::{Device, Refusal};
use crate::stages::{BadHook, HookConfig, Hooks, Stages};

/// Hooks of a device before its engine starts.
#[derive(Default)]
pub(super) struct EarlyHooks {
    config: HookConfig,
    made: Mutex<Option<Hooks>>,
}

impl EarlyHooks {
    pub(super) fn new(config: HookConfig) -> EarlyHooks {
        EarlyHooks { config, made: Mutex::default() }
    }

    /// Runs `work` on the hooks that the engine will start with.
    fn with<R>(&self, ifindex: u32, work: impl FnOnce(&mut Hooks) -> R) -> Result<R, BadHook> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hooks = made.take().map_or_else(|| Hooks::open(ifindex, &self.config), Ok)?;
        let result = work(&mut hooks);
        // Without the plug-in, the program may still register it.
        *made = Some(hooks).filter(Hooks::exist);
        Ok(result)
    }

    /// Returns the hooks that the engine starts with. An engine in a forked child starts with those of the
    /// configuration.
    pub(super) fn take(&self, ifindex: u32) -> Result<Hooks, Refusal> {
        self.with(ifindex, std::mem::take).map_err(Refusal::BadHook)
    }
}

impl Device {
    /// Runs `work` on the stages of the device's first engine, or on those that it will start with. `work`
    /// also gets the number of engines, if the device has started them for several threads.
    ///
    /// # Errors
    /// The process has no plug-in; before the engine starts, also the errors of the device's configuration.
    pub fn with_stages<R>(
        &self,
        work: impl FnOnce(&mut dyn Stages, Option<usize>) -> R,
    ) -> Result<R, BadHook> {
        // No engine starts while the lock is held.
        let engine = self.0.engine.lock();
        let engines = engine.as_ref().and_then(|engine| engine.started_for_threads());
        let work = |hooks: &mut Hooks| hooks.with(|stages| work(stages, engines));
        match engine.as_deref() {
            Some(engine) => work(&mut engine.lock().hooks),
            None => self.0.hooks.with(self.gids().ifindex, work).flatten(),
        }
    }
}

//! Attaching hooks to a device, before or while its engine runs.

use super::Device;
use crate::engine::Engine;
use crate::hook::{Hook, HookError, HookPoint, HookStatus, Hooks};

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

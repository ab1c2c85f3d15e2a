//! Attaching hooks to a device of this process, before or while its engine runs.

use roxie::verbs::Device;

use super::plug_in::{register, with_hooks};
use super::{Hook, HookError, HookPoint, HookStatus, Hooks};

/// Hooks of a device of this process.
pub trait Attach {
    /// Attaches a hook to the device's first engine. With a fixed number of engines the others keep the
    /// configured hooks; otherwise the device starts no further engine while the hook is attached. Traffic is
    /// not interrupted: each packet passes either the old or the new hook. With `replace` the new hook
    /// replaces the attached one, which is returned.
    ///
    /// # Errors
    /// [`HookError::Occupied`] if a hook is attached and `replace` is false; [`HookError::SeveralEngines`] if
    /// the device has started engines for several threads; [`HookError::Device`] if its engine was started
    /// before [`register`] was called, and, before it starts, for the errors of the device's configuration.
    fn attach_hook(&self, point: HookPoint, hook: Hook, replace: bool) -> Result<Option<Hook>, HookError>;

    /// Detaches a hook. Packets that it delays are released at their time.
    ///
    /// # Errors
    /// [`HookError::NothingThere`], [`HookError::Device`].
    fn detach_hook(&self, point: HookPoint) -> Result<Hook, HookError>;

    /// Returns the attached hooks and their counters.
    ///
    /// # Errors
    /// [`HookError::Device`].
    fn hooks(&self) -> Result<Vec<HookStatus>, HookError>;
}

impl Attach for Device {
    fn attach_hook(&self, point: HookPoint, hook: Hook, replace: bool) -> Result<Option<Hook>, HookError> {
        with(self, |hooks, engines| match engines {
            Some(engines) => Err(HookError::SeveralEngines { engines }),
            None => hooks.attach(point, hook, replace),
        })
    }

    fn detach_hook(&self, point: HookPoint) -> Result<Hook, HookError> {
        with(self, |hooks, _| hooks.detach(point))
    }

    fn hooks(&self) -> Result<Vec<HookStatus>, HookError> {
        with(self, |hooks, _| Ok(hooks.status()))
    }
}

fn with<R>(
    device: &Device,
    work: impl FnOnce(&mut Hooks, Option<usize>) -> Result<R, HookError>,
) -> Result<R, HookError> {
    register();
    let done = device.with_stages(|stages, engines| with_hooks(stages, |hooks| work(hooks, engines)));
    done.map_err(HookError::Device)?.unwrap_or_else(|| Err(HookError::other_plug_in()))
}

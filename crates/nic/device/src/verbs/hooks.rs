//! Hooks of a device before its engine starts: those of its configuration, and those attached since.

use std::sync::{Mutex, PoisonError};

use super::Refusal;
use crate::hook::{Hook, HookError, HookPoint, Hooks};

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
    pub(super) fn with<R>(
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

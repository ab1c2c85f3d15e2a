//! The engine's side of the control socket: hooks, taps and status for other processes of the same user.

use std::os::fd::{OwnedFd, RawFd};

use super::Engine;
use crate::hook::control::{Answers, Control, FRAMES_BYTES_MAX, Reply, Request};
use crate::hook::{DataAccess, HookError, TapFilter};
use crate::status::EngineStatus;

impl Engine {
    /// Readable when [`serve_control`](Self::serve_control) has work; -1 without a control socket.
    pub(super) fn control_fd(&self) -> RawFd {
        self.services.control.as_ref().map_or(-1, Control::fd)
    }

    /// Executes the requests that other processes sent.
    pub(super) fn serve_control(&self) {
        if let Some(control) = &self.services.control {
            control.serve(self);
        }
    }

    /// Begins a tap for a connection; returns the memory that the reader of the tap shares.
    fn tap(&self, client: u64, mut filter: TapFilter) -> Result<OwnedFd, HookError> {
        // The memory is large, so it is allocated before the lock is taken.
        let (copies, reader) = filter.memory()?;
        let core = &mut *self.lock();
        filter.qps.extend(core.tables.connected_to(&filter.qps));
        core.hooks.tap(client, filter, copies)?;
        Ok(reader)
    }
}

impl Answers for Engine {
    fn answer(&self, client: u64, request: Request) -> (Reply, Option<OwnedFd>) {
        let done = match request {
            // Maps may be large, so the hook is built before the lock is taken.
            Request::Attach { point, plan, replace, held } => plan
                .build()
                .and_then(|hook| {
                    let hooks = &mut self.lock().hooks;
                    let before = hooks.attach(point, hook, replace)?;
                    if held {
                        hooks.hold(point, client);
                    }
                    // A former hook is freed without the lock.
                    Ok(before)
                })
                .map(|_before| Reply::Done),
            Request::Detach { point } => {
                let detached = self.lock().hooks.detach(point);
                // The hook is freed without the lock.
                detached.map(|_hook| Reply::Done)
            }
            Request::Frames => {
                let now_ns = self.now().0;
                Ok(Reply::Frames(self.lock().hooks.read_frames(now_ns, FRAMES_BYTES_MAX)))
            }
            Request::Status => Ok(Reply::Status(self.lock().hooks.status())),
            Request::Tap(filter) => match self.tap(client, filter) {
                Ok(copies) => return (Reply::Done, Some(copies)),
                Err(error) => Err(error),
            },
            Request::Engine => {
                let mut netdev = self.services.gids.get().netdev.clone();
                if self.services.gids.is_removed() {
                    netdev.push_str(" (removed)");
                }
                let port = self.lock().port.report().description;
                Ok(Reply::Engine(EngineStatus::new(self.services.device.clone(), netdev, port, self.rows())))
            }
            Request::Data(request) => {
                let now_ns = self.now().0;
                let access = self.lock().hooks.data(request, now_ns);
                // Maps are read without the engine's lock.
                access.and_then(DataAccess::finish).map(Reply::Data)
            }
            Request::Objects { kind, from } => Ok(Reply::Objects(self.object_page(kind, from))),
            Request::QueuePairs { from } => Ok(Reply::QueuePairs(self.lock().status_from(self.now(), from))),
        };
        let refused = |error: HookError| Reply::Refused { why: error.to_string(), remedy: error.remedy() };
        (done.unwrap_or_else(refused), None)
    }

    fn forget(&self, client: u64) {
        let mut core = self.lock();
        core.hooks.untap(client);
        let released = core.hooks.release_held(client);
        drop(core);
        // The hooks are freed without the lock.
        drop(released);
    }
}

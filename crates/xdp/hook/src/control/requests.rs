//! What an engine does for the requests of other processes.

use std::os::fd::OwnedFd;

use roxie::stages::Served;

use super::server::Answers;
use super::{FRAMES_BYTES_MAX, Reply, Request};
use crate::plug_in::with_hooks;
use crate::{DataAccess, HookError, Hooks, TapFilter};

/// The engine that serves the requests.
pub(crate) struct Requests<'e>(pub(crate) &'e dyn Served);

impl Requests<'_> {
    /// Runs `work` under the engine's lock. What it returns is dropped without the lock.
    fn with<R>(&self, work: impl FnOnce(&mut Hooks) -> Result<R, HookError>) -> Result<R, HookError> {
        let (mut work, mut done) = (Some(work), None);
        self.0.with_stages(&mut |stages| {
            done = work.take().and_then(|work| with_hooks(stages, work));
        });
        done.unwrap_or_else(|| Err(HookError::other_plug_in()))
    }

    /// Begins a tap for a connection; returns the memory that the reader of the tap shares.
    fn tap(&self, client: u64, mut filter: TapFilter) -> Result<OwnedFd, HookError> {
        // The memory is large, so it is allocated before the lock is taken.
        let (copies, reader) = filter.memory()?;
        filter.qps.extend(self.0.connected_to(&filter.qps));
        self.with(|hooks| hooks.tap(client, filter, copies))?;
        Ok(reader)
    }
}

impl Answers for Requests<'_> {
    fn answer(&self, client: u64, request: Request) -> (Reply, Option<OwnedFd>) {
        let done = match request {
            // Maps may be large, so the hook is built before the lock is taken.
            Request::Attach { point, plan, replace, held } => plan
                .build()
                .and_then(|hook| {
                    self.with(|hooks| {
                        let before = hooks.attach(point, hook, replace)?;
                        if held {
                            hooks.hold(point, client);
                        }
                        Ok(before)
                    })
                })
                .map(|_before| Reply::Done),
            Request::Detach { point } => self.with(|hooks| hooks.detach(point)).map(|_hook| Reply::Done),
            Request::Frames => {
                let now_ns = self.0.now_ns();
                self.with(|hooks| Ok(Reply::Frames(hooks.read_frames(now_ns, FRAMES_BYTES_MAX))))
            }
            Request::Status => self.with(|hooks| Ok(Reply::Status(hooks.status()))),
            Request::Tap(filter) => match self.tap(client, filter) {
                Ok(copies) => return (Reply::Done, Some(copies)),
                Err(error) => Err(error),
            },
            Request::Engine => Ok(Reply::Engine(self.0.status())),
            Request::Data(request) => {
                let now_ns = self.0.now_ns();
                let access = self.with(|hooks| hooks.data(request, now_ns));
                // Maps are read without the engine's lock.
                access.and_then(DataAccess::finish).map(Reply::Data)
            }
            Request::Objects { kind, from } => Ok(Reply::Objects(self.0.objects(kind, from))),
            Request::QueuePairs { from } => Ok(Reply::QueuePairs(self.0.queue_pairs(from))),
        };
        let refused = |error: HookError| Reply::Refused { why: error.to_string(), remedy: error.remedy() };
        (done.unwrap_or_else(refused), None)
    }

    fn forget(&self, client: u64) {
        // The hooks are freed without the lock.
        let _released = self.with(|hooks| {
            hooks.untap(client);
            Ok(hooks.release_held(client))
        });
    }
}

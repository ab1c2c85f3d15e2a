//! The messages of an XRC domain that this process has received, or receives, for shared receive queues of
//! other processes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use transport::{Access, Sge};

use crate::verbs::{Buffer, Pd};

/// By number of the queue and id of the receive. Dropping a message takes the lock of the engine.
#[derive(Default)]
pub(crate) struct StoredMessages(Mutex<HashMap<(u32, u64), Buffer>>);

impl StoredMessages {
    fn lock(&self) -> MutexGuard<'_, HashMap<(u32, u64), Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory for a message of at most `room` bytes; `None` without memory.
    pub(super) fn add(&self, pd: &Pd, srqn: u32, id: u64, room: usize) -> Option<Sge> {
        let buffer = pd.alloc_buffer(room.max(1), Access::LOCAL_WRITE).ok()?;
        let sge = buffer.sge(0, room);
        let replaced = self.lock().insert((srqn, id), buffer);
        drop(replaced);
        Some(sge)
    }

    /// Removes a message.
    pub(super) fn take(&self, srqn: u32, id: u64) -> Option<Buffer> {
        self.lock().remove(&(srqn, id))
    }
}

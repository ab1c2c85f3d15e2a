//! Event channels (rdma_create_event_channel(3), rdma_migrate_id(3)).

use std::ffi::c_int;
use std::sync::Arc;

use roxie::cm::EventChannel;

use crate::abi::cm::{rdma_cm_id, rdma_event_channel};
use crate::errno::{Failure, done, failed, given, minus1, no_argument, null};
use crate::handle::{GivenUp, typed};
use crate::object::{Living, Object};
use crate::observer::owned;
use roxie::transport::refuse;

use super::event::drop_own_event;
use super::id::{IdObject, abandon_all};

/// The threads that wait for events share the channel. If the application destroys the channel meanwhile,
/// they keep waiting, as with the kernel: rping ends that way.
pub(crate) type ChannelObject = Object<rdma_event_channel, Arc<EventChannel>>;

pub(crate) static LIVING: Living = Living::new();

/// Returns the channel behind a pointer from C; `None` for NULL and for a destroyed channel.
pub(crate) fn find(channel: *mut rdma_event_channel) -> Option<Arc<EventChannel>> {
    LIVING.with(channel, || {
        // SAFETY: registered, hence exported; no thread can free it before `with` returns.
        let object = unsafe { ChannelObject::from_ptr(channel) }?;
        Some(Arc::clone(&object.tail))
    })?
}

/// Creates a channel and returns its pointer for C.
pub(crate) fn create() -> Result<*mut rdma_event_channel, Failure> {
    let channel = EventChannel::new()
        .map_err(|error| failed!(error, "event channel", "fd"; "an event channel cannot be created"))?;
    let public = rdma_event_channel { fd: channel.fd() };
    Ok(LIVING.insert(ChannelObject::export(public, Arc::new(channel))))
}

/// Destroys a channel; does nothing for NULL and for a destroyed channel. Its identifiers end, which tells
/// their peers: the kernel ends them with the descriptor (ucma_close), which a thread that waits for events
/// keeps open.
pub(crate) fn destroy(channel: *mut rdma_event_channel) {
    if LIVING.remove(channel) {
        // SAFETY: it was alive, and no thread finds it any more.
        let object: Option<GivenUp<ChannelObject>> = unsafe { typed(channel) };
        let Some(object) = object else { return };
        if Arc::strong_count(&object.tail) == 1 && object.tail.has_identifiers() {
            abandon_all(&object.tail);
        }
        object.free();
    }
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    create().unwrap_or_else(|errno| null(errno))
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    crate::exiting::note_use();
    destroy(channel);
}

pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: rdma_migrate_id(3).
    let id: Option<&IdObject> = unsafe { typed(id) };
    given!(minus1; id);
    migrate(id, channel)
}

/// Moves an identifier to another channel; NULL makes it synchronous. Returns 0, or -1 with `errno` set.
#[track_caller]
pub(crate) fn migrate(id: &IdObject, channel: *mut rdma_event_channel) -> c_int {
    let was_sync = id.tail.is_sync();
    let sync = channel.is_null();
    if was_sync && sync {
        let null = 0;
        return minus1(refuse!(EINVAL, "identifier", "channel"; null;
            is "NULL, and the identifier is synchronous already"));
    }
    let channel = if sync { done!(minus1; owned(create)) } else { channel };
    let Some(to) = find(channel) else { return minus1(no_argument!("channel")) };
    if was_sync {
        drop_own_event(id);
    }
    if let Err(error) = id.tail.id.migrate(&to) {
        if sync {
            destroy(channel);
        }
        return minus1(error);
    }
    let old = id.channel().replace(channel);
    id.tail.set_sync(sync);
    if was_sync {
        // A synchronous identifier owned its channel.
        destroy(old);
    }
    0
}

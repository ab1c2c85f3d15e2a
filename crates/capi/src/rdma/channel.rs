//! Event channels (rdma_create_event_channel(3), rdma_migrate_id(3)).

use std::ffi::c_int;
use std::sync::Arc;

use roxie::cm::EventChannel;

use crate::abi::cm::{rdma_cm_id, rdma_event_channel};
use crate::errno::{minus1, null, of_io};
use crate::object::{Living, Object};

use super::event::drop_own_event;
use super::id;

/// A thread that waits for events shares the channel, so that destroying it under the thread leaves the thread waiting, as
/// the kernel does: rping ends that way.
pub(crate) type ChannelObject = Object<rdma_event_channel, Arc<EventChannel>>;

pub(crate) static LIVING: Living = Living::new();

/// The channel behind a pointer from C; `None` unless there is one.
pub(crate) fn find(channel: *mut rdma_event_channel) -> Option<Arc<EventChannel>> {
    LIVING.with(channel, || {
        // SAFETY: registered, hence exported; it cannot be retired before `with` returns.
        let object = unsafe { ChannelObject::from_ptr(channel) }?;
        Some(Arc::clone(&object.tail))
    })?
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    match EventChannel::new() {
        Ok(channel) => {
            LIVING.insert(ChannelObject::export(rdma_event_channel { fd: channel.fd() }, Arc::new(channel)))
        }
        Err(error) => null(of_io(&error)),
    }
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if LIVING.remove(channel) {
        // SAFETY: it was alive; the caller gives it up, with all identifiers on it gone.
        drop(unsafe { ChannelObject::retire(channel) });
    }
}

/// NULL as the channel makes the identifier synchronous.
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: ours or NULL.
    let Some(object) = (unsafe { id::find(id) }) else { return minus1(libc::EINVAL) };
    let was_sync = object.tail.is_sync();
    let sync = channel.is_null();
    if was_sync && sync {
        return minus1(libc::EINVAL);
    }
    // SAFETY: no precondition.
    let channel = if sync { unsafe { rdma_create_event_channel() } } else { channel };
    let Some(to) = find(channel) else { return -1 };
    if was_sync {
        // SAFETY: a synchronous identifier keeps its last event itself.
        unsafe { drop_own_event(id) };
    }
    if let Err(error) = object.tail.id.migrate(&to) {
        if sync {
            // SAFETY: created above.
            unsafe { rdma_destroy_event_channel(channel) };
        }
        return minus1(of_io(&error));
    }
    // SAFETY: a live identifier; a synchronous one owned its old channel.
    unsafe {
        let old = std::mem::replace(&mut (*id).channel, channel);
        object.tail.set_sync(sync);
        if was_sync {
            rdma_destroy_event_channel(old);
        }
    }
    0
}

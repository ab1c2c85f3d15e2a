//! The devices among which an identifier chooses by its addresses (Linux cma.c cma_acquire_dev_by_src_ip,
//! cma_bind_loopback, cma_listen_on_all).

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use transport::refusal::Os;
use transport::{Errno, VerbsError, refuse};

use super::host::Host;
use crate::gid::GidTable;
use crate::verbs::{Context, Device, cause};
use sys::{Netlink, Route};

/// A device as an identifier uses it.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) host: Arc<dyn Host>,
    /// `None` in tests without an engine.
    pub(super) context: Option<Context>,
}

/// The devices of a process, for identifiers that are not made for one of them.
pub trait Devices: Send + Sync {
    /// Returns the devices, the first of which keeps the ports of wildcard addresses. Looks for devices that
    /// came later if `again`.
    ///
    /// # Errors
    /// Those of [`DeviceList::refresh`](crate::verbs::DeviceList::refresh).
    fn devices(&self, again: bool) -> io::Result<Vec<Device>>;
    /// Returns the context of a device that the identifiers share.
    ///
    /// # Errors
    /// `EMFILE` if the process is out of descriptors.
    fn context(&self, device: &Device) -> io::Result<Context>;
    /// Returns the route to `dst`, from `src`, and through the interface `oif` unless it is 0.
    ///
    /// # Errors
    /// Those of rtnetlink(7), such as `ENETUNREACH`.
    fn route(&self, dst: IpAddr, src: Option<IpAddr>, oif: u32) -> io::Result<Route> {
        Netlink::new()?.route(dst, src, oif)
    }
    /// Tells the user why a device cannot be used; a listener has no call that could say it.
    fn explain(&self, _device: &Device, _error: &io::Error) {}
}

/// Whether a device is the one that an identifier needs.
pub(super) type Wanted<'a> = dyn FnMut(&GidTable) -> bool + 'a;

/// What [`Devices`] is for identifiers; also a substitute in tests.
pub(super) trait Places: Send + Sync {
    /// Returns the first device that is `wanted`; starts its engine.
    fn find(&self, wanted: &mut Wanted<'_>) -> Result<Option<Place>, VerbsError>;
    /// As [`Host::route`], before the device is known.
    fn route(&self, dst: IpAddr, src: Option<IpAddr>, oif: u32) -> io::Result<Route>;
}

/// True if the process or the host is out of descriptors or memory: there may be a device.
fn is_short(error: &io::Error) -> bool {
    matches!(cause(error), Os(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// The refusal for a device that cannot be listed, with the errno that opening one has for the same cause.
#[cold]
fn not_listed(error: &io::Error) -> VerbsError {
    let os = cause(error);
    refuse!((Errno::new(os.0)), "device", "netdev"; os as Os; "the devices cannot be listed: {os}";
        "'roxie doctor' may know why")
}

/// See [`Places`].
pub(super) struct Of(pub(super) Arc<dyn Devices>);

impl Places for Of {
    fn find(&self, wanted: &mut Wanted<'_>) -> Result<Option<Place>, VerbsError> {
        let mut first = |again| {
            // The table of a device that is not open may be old.
            let is_known = |device: &Device| again || device.is_followed();
            let devices = match self.0.devices(again) {
                Err(error) if is_short(&error) => return Err(not_listed(&error)),
                // No interface has a device.
                devices => devices.unwrap_or_default(),
            };
            Ok(devices.into_iter().find(|device| is_known(device) && wanted(&device.gids())))
        };
        let found = match first(false)? {
            None => first(true)?,
            found => found,
        };
        let Some(device) = found else { return Ok(None) };
        let host = device.engine().map_err(|error| {
            self.0.explain(&device, &error);
            Device::without_engine(&error)
        })?;
        let context = self.0.context(&device).map_err(|error| {
            let os = Os::from(&error);
            refuse!((Errno::new(os.0)), "device", "context"; os as Os; "the device cannot be opened: {os}")
        })?;
        Ok(Some(Place { host, context: Some(context) }))
    }

    fn route(&self, dst: IpAddr, src: Option<IpAddr>, oif: u32) -> io::Result<Route> {
        self.0.route(dst, src, oif)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Listing the devices fails with this errno.
    struct Failing(i32);

    impl Devices for Failing {
        fn devices(&self, _again: bool) -> io::Result<Vec<Device>> {
            Err(io::Error::from_raw_os_error(self.0))
        }

        fn context(&self, _device: &Device) -> io::Result<Context> {
            unreachable!("no device")
        }
    }

    #[test]
    fn a_process_without_descriptors_is_told_so_when_it_looks_for_a_device() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            let found = Of(Arc::new(Failing(errno))).find(&mut |_| true);
            assert_eq!(found.err().map(|refused| refused.errno()), Some(errno));
        }
        assert!(matches!(Of(Arc::new(Failing(libc::ENODEV))).find(&mut |_| true), Ok(None)));
    }
}

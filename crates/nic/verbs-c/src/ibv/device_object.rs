//! A device, as C sees it.

use std::ffi::c_int;

use roxie::verbs::Device;

use crate::abi::context::ibv_device;
use crate::object::Object;

/// `ibv_device` and what follows it.
pub(crate) type DeviceObject = Object<ibv_device, DeviceTail>;

#[repr(C)]
pub(crate) struct DeviceTail {
    /// The place of rdma-core's own members. Provider libraries compare the first with their operations to
    /// find out whether a device is theirs; zero says no.
    pub(super) rdma_core: [usize; 16],
    pub(crate) device: Device,
    /// Its number in this process.
    pub(crate) index: c_int,
}

//! Objects of two devices do not mix: a call with both fails with `EINVAL`, as in the kernel, where a handle
//! names an object of one open device (drivers/infiniband/core/rdma_core.c `rdma_lookup_get_uobject`).

use std::fmt;
use std::sync::OnceLock;

use transport::VerbsError;
use transport::refusal::Value;

use super::Device;

/// What a user can do about objects of two devices; marks the refusals of
/// [`same_device!`](crate::same_device).
pub const REMEDY: &str = "create both on one device";

/// Most device names in refusals of one process. Half: a test with many devices reads "another device" in
/// place of a name sooner. Double: 2 KiB more.
const NAMES_MAX: usize = 64;

/// The names of devices that refusals have had: a refusal is numbers only. Names are never removed.
static NAMES: [OnceLock<String>; NAMES_MAX] = [const { OnceLock::new() }; NAMES_MAX];

/// The name of a device in the sentence of a refusal.
pub struct DeviceName(usize);

impl DeviceName {
    /// Returns the name of `device`.
    #[must_use]
    pub fn of(device: &Device) -> Self {
        let is_its_place =
            |place: &OnceLock<String>| place.get_or_init(|| device.name().to_owned()) == device.name();
        Self(NAMES.iter().position(is_its_place).unwrap_or(NAMES_MAX))
    }
}

impl Value for DeviceName {
    fn pack(self) -> u64 {
        self.0 as u64
    }
    fn unpack(number: u64) -> Self {
        Self(number as usize)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.get(self.0).and_then(OnceLock::get).map_or("another device", String::as_str))
    }
}

/// True if a call was refused because its objects are of two devices.
#[must_use]
pub fn is_of_two_devices(refused: &VerbsError) -> bool {
    refused.remedy() == Some(REMEDY)
}

/// Refuses an object of another device: `same_device!("queue pair", "send_cq"; own, other)?`, where `own` is
/// the device of the queue pair and `other` that of the CQ.
#[doc(hidden)]
#[macro_export]
macro_rules! same_device {
    ($object:literal, $field:literal; $own:expr, $other:expr) => {{
        let (own, other): (&$crate::verbs::Device, &$crate::verbs::Device) = ($own, $other);
        if own == other {
            Ok(())
        } else {
            use $crate::verbs::DeviceName;
            let (other, own) = (DeviceName::of(other), DeviceName::of(own));
            Err($crate::transport::refuse!(EINVAL, $object, $field; other as DeviceName, own as DeviceName;
                let object = $object;
                is "an object of the device {other}, and the {object} is for {own}";
                $crate::verbs::TWO_DEVICES))
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::super::DeviceConfig;
    use super::*;

    fn device(name: &str) -> Device {
        let (name, netdev) = (name.to_owned(), Some("lo".to_owned()));
        Device::open(&DeviceConfig { name, netdev, ..DeviceConfig::default() }).expect("lo has an address")
    }

    #[test]
    fn a_refusal_names_object_field_and_both_devices() {
        let (first, second) = (device("one0"), device("two1"));
        let refused = same_device!("queue pair", "send_cq"; &first, &second).expect_err("two devices");
        assert_eq!((refused.errno(), refused.object(), refused.field()), (22, "queue pair", "send_cq"));
        assert_eq!(
            refused.to_string(),
            "send_cq is an object of the device two1, and the queue pair is for one0; create both on one \
             device"
        );
        assert!(is_of_two_devices(&refused));
        assert_eq!(same_device!("queue pair", "send_cq"; &first, &first.clone()), Ok(()));
    }
}

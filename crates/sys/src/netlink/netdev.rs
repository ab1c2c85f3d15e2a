//! XDP features of a driver (family `netdev` of generic netlink, linux/netdev.h, since 6.3).

use std::io;

use super::Netlink;
use super::message::{each_attribute, put_attribute, u16_at, u32_at, u64_at};

/// XDP features of an interface.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct XdpFeatures {
    bits: u64,
    /// Most descriptors one packet may have in zero-copy mode.
    pub zero_copy_segments_max: u32,
}

impl XdpFeatures {
    /// Programs run in the driver.
    #[must_use]
    pub fn native(self) -> bool {
        self.bits & 1 << 0 != 0
    }

    /// Programs may redirect.
    #[must_use]
    pub fn redirect(self) -> bool {
        self.bits & 1 << 1 != 0
    }

    /// Other programs may redirect to it.
    #[must_use]
    pub fn xmit(self) -> bool {
        self.bits & 1 << 2 != 0
    }

    /// AF_XDP sockets without copying.
    #[must_use]
    pub fn zero_copy(self) -> bool {
        self.bits & 1 << 3 != 0
    }

    /// Programs run on the NIC.
    #[must_use]
    pub fn offload(self) -> bool {
        self.bits & 1 << 4 != 0
    }

    /// Packets in several buffers are received.
    #[must_use]
    pub fn rx_fragments(self) -> bool {
        self.bits & 1 << 5 != 0
    }

    /// Packets in several buffers may be redirected to it.
    #[must_use]
    pub fn xmit_fragments(self) -> bool {
        self.bits & 1 << 6 != 0
    }
}

/// The features by their names in the kernel.
impl std::fmt::Display for XdpFeatures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            (self.native(), "basic"),
            (self.redirect(), "redirect"),
            (self.xmit(), "ndo_xmit"),
            (self.zero_copy(), "xsk_zerocopy"),
            (self.offload(), "hw_offload"),
            (self.rx_fragments(), "rx_sg"),
            (self.xmit_fragments(), "ndo_xmit_sg"),
        ];
        let names: Vec<&str> = names.into_iter().filter_map(|(has, name)| has.then_some(name)).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(" "))
    }
}

/// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;

/// Returns the features of interface `ifindex`.
///
/// # Errors
/// `ENOENT` on kernels before 6.3, which do not report them; `ENODEV`.
pub fn xdp_features(ifindex: u32) -> io::Result<XdpFeatures> {
    let mut netlink = Netlink::open(libc::NETLINK_GENERIC)?;
    let family = family(&mut netlink, b"netdev\0")?;
    // genlmsghdr: command, version, u16 reserved.
    let mut body = vec![NETDEV_CMD_DEV_GET, 1, 0, 0];
    put_attribute(&mut body, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
    let mut features = XdpFeatures { bits: 0, zero_copy_segments_max: 1 };
    netlink.ask(family, 0, &body, &mut |_, bytes| {
        each_attribute(bytes.get(4..).unwrap_or_default(), |kind, value| match kind {
            NETDEV_A_DEV_XDP_FEATURES => features.bits = u64_at(value, 0).unwrap_or(0),
            NETDEV_A_DEV_XDP_ZC_MAX_SEGS => features.zero_copy_segments_max = u32_at(value, 0).unwrap_or(1),
            _ => {}
        });
    })?;
    Ok(features)
}

/// Returns the message type of a generic netlink family.
fn family(netlink: &mut Netlink, name: &[u8]) -> io::Result<u16> {
    let mut body = vec![libc::CTRL_CMD_GETFAMILY as u8, 1, 0, 0];
    put_attribute(&mut body, libc::CTRL_ATTR_FAMILY_NAME as u16, name);
    let mut id = None;
    netlink.ask(libc::GENL_ID_CTRL as u16, 0, &body, &mut |_, bytes| {
        each_attribute(bytes.get(4..).unwrap_or_default(), |kind, value| {
            if i32::from(kind) == libc::CTRL_ATTR_FAMILY_ID {
                id = u16_at(value, 0);
            }
        });
    })?;
    id.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_features() {
        match xdp_features(1) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => eprintln!("skipped: needs Linux 6.3"),
            features => {
                let features = features.unwrap();
                assert!(!features.native() && !features.zero_copy(), "{features}");
                assert_eq!(features.to_string(), "none");
            }
        }
    }

    #[test]
    fn bits_have_the_kernels_names() {
        // The features of a veth while a program is attached to its peer.
        let veth = XdpFeatures { bits: 0x67, zero_copy_segments_max: 1 };
        assert_eq!(veth.to_string(), "basic redirect ndo_xmit rx_sg ndo_xmit_sg");
        assert!(veth.native() && veth.rx_fragments() && !veth.zero_copy() && !veth.offload());
    }
}

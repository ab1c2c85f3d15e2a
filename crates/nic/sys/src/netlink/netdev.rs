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
    rx_hints: u64,
    tx_hints: u64,
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

    /// What programs can ask the driver about a received packet, by the kernel's names
    /// (`bpf_xdp_metadata_rx_*`, since 6.3).
    #[must_use]
    pub fn rx_hints(self) -> Vec<&'static str> {
        named(self.rx_hints, &["timestamp", "hash", "vlan-tag"])
    }

    /// What an AF_XDP socket can ask the driver to do with a packet to send, by the kernel's names (since
    /// 6.8).
    #[must_use]
    pub fn tx_hints(self) -> Vec<&'static str> {
        named(self.tx_hints, &["tx-timestamp", "tx-checksum", "tx-launch-time-fifo"])
    }
}

/// Returns the names of the bits that are set, from the lowest bit on.
fn named(bits: u64, names: &[&'static str]) -> Vec<&'static str> {
    names.iter().enumerate().filter(|(bit, _)| bits & 1 << bit != 0).map(|(_, name)| *name).collect()
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
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;

/// The family `netdev` of generic netlink, with a socket for it.
#[derive(Debug)]
pub struct NetdevFamily {
    netlink: Netlink,
    id: u16,
}

impl NetdevFamily {
    /// Opens a socket and asks for the number of the family.
    ///
    /// # Errors
    /// `ENOENT` on kernels before 6.3, which do not have the family; those of [`Netlink::new`].
    pub fn new() -> io::Result<NetdevFamily> {
        let mut netlink = Netlink::open(libc::NETLINK_GENERIC)?;
        let id = family(&mut netlink, b"netdev\0")?;
        Ok(NetdevFamily { netlink, id })
    }

    /// Returns the features of interface `ifindex`.
    ///
    /// # Errors
    /// `ENODEV`; `ENOBUFS` if the kernel has no memory for the answer.
    pub fn xdp_features(&mut self, ifindex: u32) -> io::Result<XdpFeatures> {
        // genlmsghdr: command, version, u16 reserved.
        let mut body = vec![NETDEV_CMD_DEV_GET, 1, 0, 0];
        put_attribute(&mut body, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
        let mut features = XdpFeatures { zero_copy_segments_max: 1, ..XdpFeatures::default() };
        self.netlink.ask(self.id, 0, &body, &mut |_, bytes| {
            each_attribute(bytes.get(4..).unwrap_or_default(), |kind, value| match kind {
                NETDEV_A_DEV_XDP_FEATURES => features.bits = u64_at(value, 0).unwrap_or(0),
                NETDEV_A_DEV_XDP_ZC_MAX_SEGS => {
                    features.zero_copy_segments_max = u32_at(value, 0).unwrap_or(1);
                }
                NETDEV_A_DEV_XDP_RX_METADATA_FEATURES => features.rx_hints = u64_at(value, 0).unwrap_or(0),
                NETDEV_A_DEV_XSK_FEATURES => features.tx_hints = u64_at(value, 0).unwrap_or(0),
                _ => {}
            });
        })?;
        Ok(features)
    }
}

/// Returns the features of interface `ifindex`.
///
/// # Errors
/// `ENOENT` on kernels before 6.3, which do not report them; `ENODEV`.
pub fn xdp_features(ifindex: u32) -> io::Result<XdpFeatures> {
    NetdevFamily::new()?.xdp_features(ifindex)
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

    /// The driver has all receive hints since Linux 6.8 (veth.c, `veth_xdp_metadata_ops`).
    #[test]
    fn a_veth_reports_its_receive_hints() {
        if !crate::testing::enter_new_netns() {
            return;
        }
        crate::testing::ip("link add left type veth peer name right");
        let links = Netlink::new().unwrap().links().unwrap();
        let index = links.iter().find(|link| link.name == "left").unwrap().index;
        match xdp_features(index) {
            Ok(features) if !features.rx_hints().is_empty() => {
                assert!(features.rx_hints().starts_with(&["timestamp", "hash"]), "{:?}", features.rx_hints());
            }
            older => eprintln!("skipped: needs Linux 6.8 ({older:?})"),
        }
    }

    #[test]
    fn bits_have_the_kernels_names() {
        // The features of a veth while a program is attached to its peer.
        let veth = XdpFeatures { bits: 0x67, zero_copy_segments_max: 1, rx_hints: 7, tx_hints: 0 };
        assert_eq!(veth.rx_hints(), ["timestamp", "hash", "vlan-tag"]);
        assert!(veth.tx_hints().is_empty());
        assert_eq!(XdpFeatures { tx_hints: 6, ..veth }.tx_hints(), ["tx-checksum", "tx-launch-time-fifo"]);
        assert_eq!(veth.to_string(), "basic redirect ndo_xmit rx_sg ndo_xmit_sg");
        assert!(veth.native() && veth.rx_fragments() && !veth.zero_copy() && !veth.offload());
    }
}

//! Network interfaces and the XDP programs on them (rtnetlink(7), linux/if_link.h).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Netlink;
use super::message::{NLA_F_NESTED, each_attribute, put_attribute, text_of, u32_at};

/// A network interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Its alternative names (ip-link(8) `property add altname`).
    pub altnames: Vec<String>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Ethernet address; zeros if it has none.
    pub mac: [u8; 6],
    /// Administratively up.
    pub is_up: bool,
    /// Up and with a carrier: packets leave.
    pub is_running: bool,
    /// Up and with a carrier; packets may not leave yet (linux Documentation/networking/operstates.rst).
    pub has_carrier: bool,
    /// The loopback interface.
    pub is_loopback: bool,
    /// Frames begin with an Ethernet header.
    pub is_ethernet: bool,
    /// Peers reached through it have link-layer addresses that must be resolved (ARP, neighbour
    /// discovery).
    pub has_neighbours: bool,
    /// Receive queues it was created with; fewer may be in use.
    pub rx_queues: u32,
    /// Most packets that the network stack hands over as one, for the device to segment; 1 for none.
    pub gso_max_segs: u32,
    /// Kind of virtual interface (`veth`, `bridge`); `None` for hardware.
    pub kind: Option<String>,
    /// The interface that it is made on, as a VLAN is (for a veth, its peer), if that is in this network
    /// namespace.
    pub lower: Option<u32>,
    /// The bridge, bond or VRF that it is a port of.
    pub master: Option<u32>,
    /// Of a bond with an active port: that port.
    pub active: Option<u32>,
    /// The XDP programs on it, at most one per mode.
    pub xdp: Vec<AttachedXdp>,
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AttachedXdp {
    /// Where it runs.
    pub mode: XdpMode,
    /// Id of the program.
    pub program_id: u32,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum XdpMode {
    /// In the driver, before the kernel has built a packet buffer (`xdpdrv`).
    Native,
    /// In the network stack, on any interface (`xdpgeneric`, SKB mode).
    Generic,
    /// On the NIC itself (`xdpoffload`).
    Offload,
}

impl XdpMode {
    /// `XDP_FLAGS_*_MODE` of linux/if_link.h, which bpf_link takes as well.
    #[must_use]
    pub fn flags(self) -> u32 {
        match self {
            XdpMode::Generic => 1 << 1,
            XdpMode::Native => 1 << 2,
            XdpMode::Offload => 1 << 3,
        }
    }
}

impl std::fmt::Display for XdpMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            XdpMode::Native => "native",
            XdpMode::Generic => "generic",
            XdpMode::Offload => "offload",
        })
    }
}

/// linux/if_link.h: nested in IFLA_INFO_DATA of a bond.
const IFLA_BOND_ACTIVE_SLAVE: u16 = 2;
/// linux/if_link.h: nested in IFLA_XDP.
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
const IFLA_XDP_EXPECTED_FD: u16 = 8;
/// Values of IFLA_XDP_ATTACHED.
const XDP_ATTACHED_SKB: u8 = 2;
const XDP_ATTACHED_HW: u8 = 3;
/// Refuse if there is a program.
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1;
/// Refuse if the program is not the expected one.
const XDP_FLAGS_REPLACE: u32 = 1 << 4;

impl Netlink {
    /// Returns all interfaces.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        // ifinfomsg, all zero: everything.
        self.dump(libc::RTM_GETLINK, &[0; 16], libc::RTM_NEWLINK, parse)
    }

    /// Returns one interface.
    ///
    /// # Errors
    /// `ENODEV` if there is none with this index.
    pub fn link(&mut self, index: u32) -> io::Result<Link> {
        let mut link = None;
        self.ask(libc::RTM_GETLINK, 0, &ifinfo(index), &mut |kind, bytes| {
            if kind == libc::RTM_NEWLINK {
                link = parse(bytes);
            }
        })?;
        link.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    /// Returns the kernel's explanation of why `program` cannot be attached in `mode`, if it cannot. This
    /// attaches it over netlink, which explains refusals; if that succeeds, the program is detached again
    /// at once.
    pub fn why_not_attach(&mut self, index: u32, program: BorrowedFd<'_>, mode: XdpMode) -> Option<String> {
        match self.attach_xdp(index, program, mode) {
            Err(_) => self.explanation().map(str::to_owned),
            Ok(()) => {
                // Detaching a program that was attached just now fails only if the interface was removed.
                let _gone = self.detach_xdp(index, mode);
                None
            }
        }
    }

    /// Attaches `program` to the interface, where it stays until it is detached explicitly.
    ///
    /// # Errors
    /// `EBUSY` or `EEXIST` if there is one, `EPERM` without CAP_NET_ADMIN; see
    /// [`explanation`](Netlink::explanation).
    pub fn attach_xdp(&mut self, index: u32, program: BorrowedFd<'_>, mode: XdpMode) -> io::Result<()> {
        let flags = mode.flags() | XDP_FLAGS_UPDATE_IF_NOEXIST;
        self.set_xdp(index, program.as_raw_fd(), flags, None)
    }

    /// Replaces `old` by `program`: every packet is seen by the one or the other.
    ///
    /// # Errors
    /// `EEXIST` if `old` is not attached; `EBUSY` if a bpf_link holds it; `EINVAL` on kernels before 5.7.
    pub fn replace_xdp(
        &mut self,
        index: u32,
        program: BorrowedFd<'_>,
        old: BorrowedFd<'_>,
        mode: XdpMode,
    ) -> io::Result<()> {
        let flags = mode.flags() | XDP_FLAGS_REPLACE;
        self.set_xdp(index, program.as_raw_fd(), flags, Some(old.as_raw_fd()))
    }

    /// Detaches the program of that mode; not an error if there is none.
    ///
    /// # Errors
    /// `EBUSY` if a bpf_link holds it; `EPERM` without CAP_NET_ADMIN.
    pub fn detach_xdp(&mut self, index: u32, mode: XdpMode) -> io::Result<()> {
        self.set_xdp(index, -1, mode.flags(), None)
    }

    fn set_xdp(&mut self, index: u32, fd: i32, flags: u32, expected: Option<i32>) -> io::Result<()> {
        let mut nested = Vec::new();
        put_attribute(&mut nested, IFLA_XDP_FD, &fd.to_ne_bytes());
        put_attribute(&mut nested, IFLA_XDP_FLAGS, &flags.to_ne_bytes());
        if let Some(expected) = expected {
            put_attribute(&mut nested, IFLA_XDP_EXPECTED_FD, &expected.to_ne_bytes());
        }
        let mut body = ifinfo(index).to_vec();
        put_attribute(&mut body, libc::IFLA_XDP | NLA_F_NESTED, &nested);
        self.ask(libc::RTM_SETLINK, libc::NLM_F_ACK as u16, &body, &mut |_, _| {}).map(drop)
    }
}

/// ifinfomsg: family, padding, u16 type, i32 index, u32 flags, u32 change.
pub(super) fn ifinfo(index: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

pub(super) fn parse(body: &[u8]) -> Option<Link> {
    let (header, attributes) = body.split_first_chunk::<16>()?;
    let flags = u32_at(header, 8)?;
    let mut link = Link {
        index: u32_at(header, 4)?,
        is_up: flags & libc::IFF_UP as u32 != 0,
        is_running: flags & libc::IFF_RUNNING as u32 != 0,
        has_carrier: flags & libc::IFF_LOWER_UP as u32 != 0,
        is_loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
        is_ethernet: u16::from_ne_bytes([header[2], header[3]]) == libc::ARPHRD_ETHER,
        has_neighbours: flags & (libc::IFF_NOARP | libc::IFF_LOOPBACK | libc::IFF_POINTOPOINT) as u32 == 0,
        rx_queues: 1,
        gso_max_segs: 1,
        ..Link::default()
    };
    let mut is_lower_elsewhere = false;
    each_attribute(attributes, |kind, value| match kind {
        libc::IFLA_IFNAME => link.name = text_of(value),
        libc::IFLA_PROP_LIST => each_attribute(value, |kind, value| {
            if kind == libc::IFLA_ALT_IFNAME {
                link.altnames.push(text_of(value));
            }
        }),
        libc::IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or(0),
        libc::IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
        libc::IFLA_NUM_RX_QUEUES => link.rx_queues = u32_at(value, 0).unwrap_or(1),
        libc::IFLA_GSO_MAX_SEGS => link.gso_max_segs = u32_at(value, 0).unwrap_or(1),
        libc::IFLA_LINKINFO => each_attribute(value, |kind, value| {
            match kind {
                libc::IFLA_INFO_KIND => link.kind = Some(text_of(value)),
                // The kind comes first. Other kinds use the numbers for something else.
                libc::IFLA_INFO_DATA if link.kind.as_deref() == Some("bond") => {
                    each_attribute(value, |kind, value| {
                        if kind == IFLA_BOND_ACTIVE_SLAVE {
                            link.active = u32_at(value, 0);
                        }
                    });
                }
                _ => {}
            }
        }),
        libc::IFLA_LINK => link.lower = u32_at(value, 0).filter(|lower| *lower != 0 && *lower != link.index),
        libc::IFLA_LINK_NETNSID => is_lower_elsewhere = true,
        libc::IFLA_MASTER => link.master = u32_at(value, 0),
        libc::IFLA_XDP => link.xdp = parse_xdp(value),
        _ => {}
    });
    if is_lower_elsewhere {
        link.lower = None;
    }
    Some(link)
}

/// Ids by mode exist since 4.20; before, there is one id and the mode it is attached in.
fn parse_xdp(nested: &[u8]) -> Vec<AttachedXdp> {
    let (mut all, mut attached, mut id) = (Vec::new(), 0, 0);
    each_attribute(nested, |kind, value| {
        let number = u32_at(value, 0).unwrap_or(0);
        let mode = match kind {
            IFLA_XDP_DRV_PROG_ID => XdpMode::Native,
            IFLA_XDP_SKB_PROG_ID => XdpMode::Generic,
            IFLA_XDP_HW_PROG_ID => XdpMode::Offload,
            IFLA_XDP_ATTACHED => return attached = value.first().copied().unwrap_or(0),
            IFLA_XDP_PROG_ID => return id = number,
            _ => return,
        };
        if number != 0 {
            all.push(AttachedXdp { mode, program_id: number });
        }
    });
    if all.is_empty() && id != 0 {
        let mode = match attached {
            XDP_ATTACHED_SKB => XdpMode::Generic,
            XDP_ATTACHED_HW => XdpMode::Offload,
            _ => XdpMode::Native,
        };
        all.push(AttachedXdp { mode, program_id: id });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_listed_by_mode_even_on_old_kernels() {
        let nested = |rows: &[(u16, u32)]| {
            let mut bytes = Vec::new();
            rows.iter().for_each(|(kind, value)| put_attribute(&mut bytes, *kind, &value.to_ne_bytes()));
            parse_xdp(&bytes)
        };
        assert_eq!(nested(&[(IFLA_XDP_ATTACHED, 0)]), []);
        let native = AttachedXdp { mode: XdpMode::Native, program_id: 7 };
        let generic = AttachedXdp { mode: XdpMode::Generic, program_id: 8 };
        assert_eq!(
            nested(&[(IFLA_XDP_ATTACHED, 4), (IFLA_XDP_DRV_PROG_ID, 7), (IFLA_XDP_SKB_PROG_ID, 8)]),
            [native, generic]
        );
        assert_eq!(nested(&[(IFLA_XDP_ATTACHED, 2), (IFLA_XDP_PROG_ID, 8)]), [generic]);
        assert_eq!(nested(&[(IFLA_XDP_ATTACHED, 1), (IFLA_XDP_PROG_ID, 7)]), [native]);
        assert!(parse(&[0; 15]).is_none());
    }

    #[test]
    fn an_interface_of_another_namespace_is_not_the_lower_one() {
        let parsed = |attributes: &[(u16, u32)]| {
            let mut body = ifinfo(7).to_vec();
            attributes.iter().for_each(|(kind, value)| put_attribute(&mut body, *kind, &value.to_ne_bytes()));
            parse(&body).map(|link| (link.lower, link.master)).unwrap()
        };
        assert_eq!(parsed(&[(libc::IFLA_LINK, 3)]), (Some(3), None));
        assert_eq!(parsed(&[(libc::IFLA_LINK, 3), (libc::IFLA_LINK_NETNSID, 0)]), (None, None));
        assert_eq!(parsed(&[(libc::IFLA_LINK, 7), (libc::IFLA_MASTER, 4)]), (None, Some(4)));
    }

    #[test]
    fn one_link_is_the_same_as_in_the_list() {
        let mut netlink = Netlink::new().unwrap();
        let links = netlink.links().unwrap();
        assert_eq!(netlink.link(1).unwrap(), *links.iter().find(|l| l.index == 1).unwrap());
        assert_eq!(netlink.link(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}

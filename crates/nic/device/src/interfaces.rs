//! Which interfaces of this network namespace have a device if no setting names them.
//!
//! The rule: there is a device for each interface that is up, has a global address, and is not the loopback
//! interface, a tunnel, the bridge of a container engine or hypervisor, or a VLAN, macvlan, bond or bridge
//! interface above an interface with a device; the interface of the default route may be a tunnel or such a
//! bridge, or have link-local addresses only; and if there is no such interface, the first one that is up and
//! has an address has the device, else the loopback interface.
//!
//! The addresses of an interface above another are GIDs of the lower one's device, because packets to them
//! arrive there.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sys::{Address, Link, Netlink};

use crate::refusal::Refusal;
use crate::setting::DEVICES_MAX;

/// Why an interface has a device by the rule, or has none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Standing {
    /// It has one.
    Device,
    /// It has one only because no other interface can.
    LastResort,
    /// It is the loopback interface.
    Loopback,
    /// It is down.
    Down,
    /// It has no address.
    NoAddress,
    /// Its addresses are link-local.
    LinkLocal,
    /// It is the bridge of a container engine or hypervisor.
    ContainerBridge,
    /// It is a tunnel of this kind.
    Tunnel(String),
    /// Its addresses are GIDs of this lower interface's device.
    Above(String),
    /// [`DEVICES_MAX`] interfaces before it have devices.
    TooMany,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Device => f.write_str("has a device"),
            Standing::LastResort => f.write_str("has a device, because no other interface can"),
            Standing::Loopback => f.write_str("no device on the loopback interface while others have one"),
            Standing::Down => f.write_str("no device, because it is down"),
            Standing::NoAddress => f.write_str("no device, because it has no address"),
            Standing::LinkLocal => f.write_str("no device, because its addresses are link-local"),
            Standing::ContainerBridge => {
                f.write_str("no device on the bridge of a container engine or hypervisor")
            }
            Standing::Tunnel(kind) => write!(f, "no device on a tunnel ({kind})"),
            Standing::Above(lower) => {
                write!(f, "no device, its addresses are GIDs of the device on {lower}")
            }
            Standing::TooMany => write!(f, "no device, because {DEVICES_MAX} interfaces before it have one"),
        }
    }
}

/// Kinds of interfaces (IFLA_INFO_KIND) that put packets into other packets, and those of VPN programs.
const TUNNELS: [&str; 23] = [
    "amt",
    "bareudp",
    "erspan",
    "geneve",
    "gre",
    "gretap",
    "gtp",
    "ip6erspan",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "ipip",
    "ovpn",
    "ovpn-dco",
    "ppp",
    "sit",
    "tun",
    "vti",
    "vti6",
    "vxlan",
    "wireguard",
    "wwan",
    "xfrm",
];
/// How the bridges of container engines and hypervisors are called: Docker, libvirt, CNI plug-ins
/// (containerd, CRI-O, Kubernetes), Podman, nerdctl, LXC, LXD, Incus, kube-router, kubenet, Multipass,
/// Waydroid. The other bridges that Docker makes are `br-` and 12 hexadecimal digits.
const CONTAINER_BRIDGES: [&str; 12] = [
    "docker",
    "virbr",
    "cni",
    "podman",
    "nerdctl",
    "lxcbr",
    "lxdbr",
    "incusbr",
    "kube-bridge",
    "cbr0",
    "mpqemubr",
    "waydroid",
];
/// Interfaces above each other, at most (MAX_NEST_DEV of linux/netdevice.h).
const NESTING_MAX: usize = 8;

/// The interfaces of a network namespace.
#[derive(Debug)]
pub struct Interfaces {
    links: Vec<Link>,
    addresses: Vec<Address>,
    /// The interface of the default route.
    default: Option<u32>,
}

impl Interfaces {
    /// Reads the interfaces of the caller's network namespace.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn read() -> io::Result<Interfaces> {
        let mut netlink = Netlink::new()?;
        let (links, addresses) = (netlink.links()?, netlink.addresses()?);
        Ok(Interfaces::new(links, addresses, default_interface(&mut netlink)))
    }

    pub(crate) fn new(links: Vec<Link>, addresses: Vec<Address>, default: Option<u32>) -> Interfaces {
        Interfaces { links, addresses, default }
    }

    /// Returns all interfaces, by interface index.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns the addresses that programs can use.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(|address| is_valid(address))
    }

    /// True if the interface has a link-local address, also one that the kernel still checks.
    pub(crate) fn has_link_local(&self, ifindex: u32) -> bool {
        let is_it = |ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        self.addresses.iter().any(|address| address.ifindex == ifindex && is_it(address.ip))
    }

    /// Returns the interface with this index.
    #[must_use]
    pub fn of_index(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Returns the interface of this name or alternative name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name || link.altnames.iter().any(|other| other == name))
    }

    /// The refusal of the name of an interface that does not exist; `given` is what the user gave.
    pub(crate) fn unknown(&self, name: &str, given: &str) -> Refusal {
        let known = self.links.iter().map(|link| link.name.clone()).collect();
        Refusal::NoNetdev { name: name.to_owned(), given: given.to_owned(), known }
    }

    /// Returns the interfaces that have a device by the rule: first that of the default route, or the one
    /// below it, then by interface index.
    #[must_use]
    pub fn with_devices(&self) -> Vec<&Link> {
        let mut chosen: Vec<&Link> = self.links.iter().filter(|link| self.has_device(link)).collect();
        if chosen.is_empty() {
            chosen.extend(self.last_resort());
        }
        let leads = |link: &Link| self.default_link().is_some_and(|home| self.is_on(home, link.index));
        chosen.sort_by_key(|link| (!leads(link), link.index));
        chosen.truncate(DEVICES_MAX);
        chosen
    }

    /// Returns why `link` has a device by the rule, or has none.
    #[must_use]
    pub fn standing(&self, link: &Link) -> Standing {
        if self.with_devices().iter().any(|chosen| chosen.index == link.index) {
            return if self.has_device(link) { Standing::Device } else { Standing::LastResort };
        }
        self.obstacle(link, NESTING_MAX).unwrap_or(Standing::TooMany)
    }

    /// Returns the interfaces above `link` that send through it, by interface index.
    pub(crate) fn above(&self, link: &Link) -> impl Iterator<Item = &Link> {
        let index = link.index;
        self.links.iter().filter(move |upper| upper.index != index && self.is_on(upper, index))
    }

    /// Whether `link` has a device by the rule, and not as the last resort.
    pub(crate) fn has_device(&self, link: &Link) -> bool {
        self.obstacle(link, NESTING_MAX).is_none()
    }

    /// Why the rule gives `link`, which has at most `levels` interfaces below it, no device.
    fn obstacle(&self, link: &Link, levels: usize) -> Option<Standing> {
        let is_default = self.default == Some(link.index);
        let mut ips =
            self.addresses().filter(|address| address.ifindex == link.index).map(|a| a.ip).peekable();
        if link.is_loopback {
            return Some(Standing::Loopback);
        }
        if !link.is_up {
            return Some(Standing::Down);
        }
        if ips.peek().is_none() {
            return Some(Standing::NoAddress);
        }
        if let Some(lower) = self.below(link, levels) {
            return Some(Standing::Above(lower.name.clone()));
        }
        match link.kind.as_deref() {
            _ if is_default => None,
            _ if ips.all(is_link_local) => Some(Standing::LinkLocal),
            Some("bridge") if is_of_containers(&link.name) => Some(Standing::ContainerBridge),
            Some(kind) if TUNNELS.contains(&kind) => Some(Standing::Tunnel(kind.to_owned())),
            _ => None,
        }
    }

    /// The nearest interface below `link` that has a device.
    fn below<'a>(&'a self, link: &'a Link, levels: usize) -> Option<&'a Link> {
        let levels = levels.checked_sub(1)?;
        let mut lowers = self.lowers(link);
        lowers.find_map(|lower| match self.obstacle(lower, levels) {
            None => Some(lower),
            Some(_) => self.below(lower, levels),
        })
    }

    /// The first interface that is up and has an address, else the loopback interface.
    fn last_resort(&self) -> Option<&Link> {
        let has_address = |link: &Link| self.addresses().any(|address| address.ifindex == link.index);
        let usable = |link: &&Link| !link.is_loopback && link.is_up && has_address(link);
        self.links.iter().find(usable).or_else(|| self.links.iter().find(|link| link.is_loopback))
    }

    fn default_link(&self) -> Option<&Link> {
        self.links.iter().find(|link| Some(link.index) == self.default)
    }

    /// Whether `link` is the interface `index` or above it.
    fn is_on(&self, link: &Link, index: u32) -> bool {
        self.is_within(link, index, NESTING_MAX)
    }

    fn is_within(&self, link: &Link, index: u32, levels: usize) -> bool {
        link.index == index
            || levels > 0 && self.lowers(link).any(|lower| self.is_within(lower, index, levels - 1))
    }

    /// The interfaces right below `link`, with the hardware of both. Packets leave and enter a bond with an
    /// active port through that alone.
    fn lowers<'a>(&'a self, link: &'a Link) -> impl Iterator<Item = &'a Link> {
        let is_lower = move |lower: &&Link| match link.kind.as_deref() {
            Some("vlan" | "macvlan" | "ipvlan") => link.lower == Some(lower.index),
            Some("bond") if link.active.is_some() => link.active == Some(lower.index),
            Some("bond" | "team" | "bridge") => lower.master == Some(link.index),
            _ => false,
        };
        self.links.iter().filter(is_lower)
    }
}

fn is_of_containers(bridge: &str) -> bool {
    let is_docker_network = |rest: &str| rest.len() == 12 && rest.bytes().all(|b| b.is_ascii_hexdigit());
    CONTAINER_BRIDGES.iter().any(|start| bridge.starts_with(start))
        || bridge.strip_prefix("br-").is_some_and(is_docker_network)
}

/// Returns the interface of the default route. The addresses are examples of remote hosts; nothing is sent to
/// them.
fn default_interface(netlink: &mut Netlink) -> Option<u32> {
    let remote: [IpAddr; 2] =
        [Ipv4Addr::new(1, 1, 1, 1).into(), Ipv6Addr::new(0x2600, 0, 0, 0, 0, 0, 0, 1).into()];
    remote.into_iter().find_map(|dst| netlink.route(dst, None, 0).ok().filter(|r| !r.is_local)).map(|r| r.oif)
}

fn is_valid(address: &Address) -> bool {
    !address.is_tentative && !address.is_temporary && !address.ip.is_multicast()
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An interface that is up: `lo`, or one with a MAC.
    pub(crate) fn link(index: u32, name: &str) -> Link {
        let is_loopback = name == "lo";
        let mac = if is_loopback { [0; 6] } else { [0x52, 0x54, 0, 0x0a, 8, index as u8] };
        Link {
            index,
            name: name.to_owned(),
            altnames: vec![format!("{name}-alt")],
            mtu: 1500,
            mac,
            is_up: true,
            is_running: true,
            has_carrier: true,
            is_loopback,
            is_ethernet: !is_loopback,
            has_neighbours: !is_loopback,
            rx_queues: 1,
            gso_max_segs: 1,
            kind: None,
            lower: None,
            master: None,
            active: None,
            xdp: Vec::new(),
        }
    }

    pub(crate) fn address(ifindex: u32, ip: &str) -> Address {
        Address { ifindex, ip: ip.parse().unwrap(), is_tentative: false, is_temporary: false }
    }

    pub(crate) fn of_kind(kind: &str, link: Link) -> Link {
        Link { kind: Some(kind.to_owned()), ..link }
    }

    /// Interfaces with indices from 1 and the address 10.0.INDEX.1 each.
    fn with_addresses(links: Vec<Link>, default: Option<u32>) -> Interfaces {
        let addresses = links.iter().map(|link| address(link.index, &format!("10.0.{}.1", link.index)));
        Interfaces::new(links.clone(), addresses.collect(), default)
    }

    fn chosen(interfaces: &Interfaces) -> Vec<&str> {
        interfaces.with_devices().iter().map(|link| link.name.as_str()).collect()
    }

    #[test]
    fn each_interface_that_reaches_this_host_has_a_device_the_default_routes_first() {
        let links = || {
            let veth = of_kind("veth", link(5, "eth3"));
            vec![
                link(1, "lo"),
                link(2, "eth0"),
                link(3, "eth1"),
                Link { is_up: false, ..link(4, "eth2") },
                veth,
            ]
        };
        assert_eq!(chosen(&with_addresses(links(), Some(3))), ["eth1", "eth0", "eth3"]);
        assert_eq!(chosen(&with_addresses(links(), None)), ["eth0", "eth1", "eth3"]);
        assert_eq!(
            chosen(&with_addresses(links(), Some(4))),
            ["eth0", "eth1", "eth3"],
            "its default is down"
        );
        let mut some = with_addresses(links(), None);
        some.addresses = vec![address(1, "127.0.0.1"), address(3, "fe80::3"), address(5, "2001:db8::5")];
        assert_eq!(chosen(&some), ["eth3"]);
        let standing = |name| some.standing(some.named(name).unwrap());
        use Standing::{Device, Down, LinkLocal, Loopback, NoAddress};
        let names = ["lo", "eth0", "eth1", "eth2", "eth3"];
        assert_eq!(names.map(standing), [Loopback, NoAddress, LinkLocal, Down, Device]);
    }

    #[test]
    fn bridges_of_containers_and_tunnels_have_none_unless_the_default_route_uses_them() {
        let mut links = vec![link(1, "lo"), link(2, "eth0")];
        let bridges = ["docker0", "br-0123456789ab", "virbr0", "cni0", "br0", "br-lan", "vmbr0"];
        links.extend((3..).zip(bridges).map(|(index, name)| of_kind("bridge", link(index, name))));
        links.extend((10..).zip(TUNNELS).map(|(index, kind)| of_kind(kind, link(index, kind))));
        links.push(link(60, "docker9"));
        assert_eq!(
            chosen(&with_addresses(links.clone(), None)),
            ["eth0", "br0", "br-lan", "vmbr0", "docker9"],
            "hardware may have any name"
        );
        let through_tunnel = with_addresses(links.clone(), Some(12));
        assert_eq!(chosen(&through_tunnel)[..2], [TUNNELS[2], "eth0"]);
        assert_eq!(through_tunnel.standing(&links[9]), Standing::Tunnel("amt".to_owned()));
        assert_eq!(through_tunnel.standing(&links[2]), Standing::ContainerBridge);
    }

    #[test]
    fn an_interface_above_one_with_a_device_has_none() {
        let on = |lower, link| Link { lower: Some(lower), ..link };
        let links = vec![
            link(2, "eth0"),
            Link { master: Some(6), ..link(3, "eth1") },
            on(2, of_kind("vlan", link(4, "eth0.7"))),
            on(4, of_kind("macvlan", link(5, "mv0"))),
            of_kind("bridge", link(6, "br0")),
            // The peer of a veth is not below it.
            on(2, of_kind("veth", link(7, "v0"))),
        ];
        let mut all = with_addresses(links, Some(5));
        assert_eq!(chosen(&all), ["eth0", "eth1", "v0"], "the default route's is above eth0");
        let standing = |all: &Interfaces, name| all.standing(all.named(name).unwrap());
        assert_eq!(standing(&all, "mv0"), Standing::Above("eth0".to_owned()), "the VLAN has none itself");
        assert_eq!(standing(&all, "br0"), Standing::Above("eth1".to_owned()));
        let above = |all: &Interfaces, name| {
            all.above(all.named(name).unwrap()).map(|link| link.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(above(&all, "eth0"), ["eth0.7", "mv0"]);
        assert_eq!((above(&all, "eth1"), above(&all, "v0")), (vec!["br0".to_owned()], Vec::new()));
        // A bond is above its active port, if it has one.
        let of_bond = |active| {
            let port = |index, name| Link { master: Some(4), ..link(index, name) };
            let bond = Link { active, ..of_kind("bond", link(4, "bond0")) };
            with_addresses(vec![port(2, "eth0"), port(3, "eth1"), bond], None)
        };
        let both = |bond: &Interfaces| ["eth0", "eth1"].map(|port| above(bond, port).len());
        assert_eq!([None, Some(3)].map(|active| both(&of_bond(active))), [[1, 1], [0, 1]]);
        // The port of a bridge usually has no address: then the bridge has the device.
        all.addresses.retain(|address| address.ifindex != 3);
        assert_eq!(chosen(&all), ["eth0", "br0", "v0"]);
    }

    #[test]
    fn where_no_interface_has_one_by_the_rule_the_first_with_an_address_has_it() {
        let links =
            vec![link(1, "lo"), link(2, "eth0"), of_kind("bridge", link(3, "docker0")), link(4, "eth1")];
        let with =
            |addresses: &[Address], default| Interfaces::new(links.clone(), addresses.to_vec(), default);
        let bridge = with(&[address(1, "127.0.0.1"), address(3, "172.17.0.1")], None);
        assert_eq!(chosen(&bridge), ["docker0"]);
        assert_eq!(bridge.standing(&links[2]), Standing::LastResort);
        assert_eq!(chosen(&with(&[address(1, "127.0.0.1")], None)), ["lo"]);
        let local = [address(1, "127.0.0.1"), address(2, "169.254.7.7"), address(4, "fe80::4")];
        assert_eq!(chosen(&with(&local, None)), ["eth0"]);
        assert_eq!(chosen(&with(&local, Some(4))), ["eth1"]);
        assert_eq!(chosen(&Interfaces { links: Vec::new(), ..with(&[], None) }), [""; 0]);
    }

    #[test]
    fn a_process_has_no_more_devices_than_the_limit() {
        let many =
            with_addresses((2..60).map(|index| link(index, &format!("eth{index}"))).collect(), Some(59));
        let chosen = chosen(&many);
        assert_eq!((chosen.len(), chosen[0], chosen[1]), (DEVICES_MAX, "eth59", "eth2"));
        assert_eq!(many.standing(&many.links[57]), Standing::Device);
        assert_eq!(many.standing(&many.links[56]), Standing::TooMany);
    }
}

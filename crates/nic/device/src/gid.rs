//! The GID table: the netdev of the device, and its addresses as GIDs (IBA Annex A17).
//!
//! A GID is an IP address. IPv4 addresses come first, because programs without `-x` take index 0; then global
//! IPv6, then link-local. Every row is a valid source. The addresses of the VLAN, macvlan, bond and bridge
//! interfaces above the netdev follow, as in Linux (roce_gid_mgmt.c). A VLAN often has the link-local
//! address of its netdev; then each of both interfaces has a row.
//!
//! The connection manager also accepts 127.0.0.1 and ::1, over which processes of one host reach each other
//! without a network. Unless the netdev is the loopback interface, these have indices behind the table
//! ([`GidTable::loopback`]): a program that chose one of them from the table would reach no other host.
//!
//! The table follows its netdev ([`Gids`](crate::netdev::Gids)). An index stays with its address. If the
//! address is removed, the row becomes empty. An address that comes back gets its index again, if no other
//! new address has taken it: the kernel removes IPv6 addresses while a link is down.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use transport::{PathMtu, VerbsError, refuse};
use wire::Gid;

use crate::interfaces::Interfaces;
use crate::refusal::Refusal;
use sys::{Address, Link, Netlink};

/// The refusal of an index without an address.
#[cold]
pub(crate) fn refuse_gid_index(index: u8) -> VerbsError {
    refuse!(EINVAL, "address handle", "sgid_index"; index;
        "sgid_index {index} has no address"; "'roxie devinfo' prints the GID table")
}

/// One row of the GID table; the index is its position.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GidRow {
    /// The address as a GID.
    pub gid: Gid,
    /// Interface that owns the address: the scope id for link-local ones.
    pub ifindex: u32,
}

impl GidRow {
    /// The row of a removed address.
    pub(crate) const EMPTY: GidRow = GidRow { gid: Gid::ZERO, ifindex: 0 };
}

/// The address of a row, as the source of packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Source {
    pub(crate) ip: IpAddr,
    /// Its interface if that is above the netdev, otherwise 0.
    pub(crate) above: u32,
}

/// The netdev behind the device, and its addresses as GIDs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GidTable {
    /// Name of the netdev.
    pub netdev: String,
    /// Its interface index.
    pub ifindex: u32,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// True if it is administratively up.
    pub up: bool,
    /// True if it is up and has a carrier: then the port is active, as with rxe.
    pub has_carrier: bool,
    /// The rows in use, at most [`GID_TBL_LEN`]. Some may be empty ([`Gid::ZERO`]).
    pub entries: Vec<GidRow>,
    /// The addresses for which the table has no row.
    pub beyond: Vec<GidRow>,
    /// The last address that was removed from each row; may be shorter than the table.
    pub(crate) removed: Vec<GidRow>,
    /// The addresses 127.0.0.1 and ::1 of the loopback interface, at the two indices behind the table; empty
    /// if they do not exist, or if they are rows of the table.
    pub loopback: [GidRow; 2],
    /// EUI-64 of the netdev, never 0.
    pub node_guid: [u8; 8],
    /// The interfaces above the netdev, by index.
    pub(crate) above: Vec<u32>,
    /// Index and MAC of each bond among the netdev and the interfaces above it.
    pub(crate) bonds: Vec<(u32, [u8; 6])>,
}

#[cfg(test)]
impl GidTable {
    /// The table of a netdev without addresses.
    pub(crate) fn without_addresses() -> GidTable {
        GidTable {
            netdev: "test".to_owned(),
            ifindex: 1,
            mtu: 1500,
            up: true,
            has_carrier: true,
            entries: Vec::new(),
            beyond: Vec::new(),
            removed: Vec::new(),
            loopback: [GidRow::EMPTY; 2],
            node_guid: [1; 8],
            above: Vec::new(),
            bonds: Vec::new(),
        }
    }
}

/// Number of rows that the port reports, most of which are empty, as with other drivers. The index is a byte
/// in address handles; two indices remain for loopback.
pub const GID_TBL_LEN: usize = 254;
/// Index of 127.0.0.1 behind the table; ::1 has the next.
const LOOPBACK_INDEX: u8 = GID_TBL_LEN as u8;
/// Bytes that rxe reserves for headers when it derives the path MTU from the netdev's MTU.
const HEADERS_MAX: u32 = 80;

impl GidTable {
    /// Reads the table of `netdev`. `None` selects the first of the [`interfaces`](crate::interfaces) that
    /// have a device.
    ///
    /// # Errors
    /// A [`Refusal`] inside: kind `NotFound` if there is no such netdev, `AddrNotAvailable` if it has no
    /// address.
    pub fn read(netdev: Option<&str>) -> io::Result<GidTable> {
        Self::on(&Interfaces::read()?, netdev)
    }

    /// As [`read`](Self::read), with the interfaces of this namespace.
    pub(crate) fn on(interfaces: &Interfaces, netdev: Option<&str>) -> io::Result<GidTable> {
        let link = match netdev {
            Some(name) => interfaces.named(name),
            None => interfaces.with_devices().first().copied(),
        };
        let unknown = || interfaces.unknown(netdev.unwrap_or("lo"), "");
        let table = Self::of(link.ok_or_else(unknown)?, interfaces);
        if table.entries.is_empty() {
            let is_down_loopback = table.netdev == "lo" && !table.up;
            return Err(Refusal::NoAddress { netdev: table.netdev, is_down_loopback }.into());
        }
        Ok(table)
    }

    /// Returns the table of another device on the same netdev, with a GUID that no other device has: 0 is the
    /// first, which has the GUID of the netdev.
    #[must_use]
    pub(crate) fn of_instance(self, instance: u8) -> GidTable {
        let mut node_guid = self.node_guid;
        if instance > 0 {
            // An EUI-64 made from a MAC has 0xff there.
            node_guid[3] = instance;
        }
        GidTable { node_guid, ..self }
    }

    /// The netdev and the interfaces above it, by index.
    pub(crate) fn interfaces(&self) -> Vec<u32> {
        [&[self.ifindex], &self.above[..]].concat()
    }

    /// Reads the table of the interface with this index, whatever its name is by now.
    ///
    /// # Errors
    /// `ENODEV` if there is no such interface; errors of netlink.
    pub(crate) fn of_index(index: u32) -> io::Result<GidTable> {
        let interfaces = Interfaces::read()?;
        let link = interfaces.of_index(index).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        Ok(Self::of(link, &interfaces))
    }

    /// The table of `link`, which may have no addresses.
    pub(crate) fn of(link: &Link, interfaces: &Interfaces) -> GidTable {
        let mut entries = rows(link, interfaces);
        let beyond = entries.split_off(entries.len().min(GID_TBL_LEN));
        let first = entries.first().map_or(Gid::ZERO, |row| row.gid);
        GidTable {
            netdev: link.name.clone(),
            ifindex: link.index,
            mtu: link.mtu,
            up: link.is_up,
            has_carrier: link.has_carrier,
            node_guid: node_guid(link, &first),
            loopback: loopback(link, interfaces),
            entries,
            beyond,
            removed: Vec::new(),
            above: interfaces.above(link).map(|upper| upper.index).collect(),
            bonds: [link].into_iter().chain(interfaces.above(link)).filter_map(bond).collect(),
        }
    }

    /// Returns the MAC of the bond that has the address `gid`.
    pub(crate) fn bond_mac(&self, gid: &Gid) -> Option<[u8; 6]> {
        let mac_of = |row: GidRow| self.bonds.iter().find(|(bond, _)| *bond == row.ifindex);
        self.rows().filter(|(_, row)| row.gid == *gid).find_map(|(_, row)| mac_of(row)).map(|(_, mac)| *mac)
    }

    /// The table of a netdev that does not exist any more.
    pub(crate) fn without_netdev(&self) -> GidTable {
        let entries = vec![GidRow::EMPTY; self.entries.len()];
        let (beyond, loopback) = (Vec::new(), [GidRow::EMPTY; 2]);
        GidTable { up: false, has_carrier: false, entries, beyond, loopback, ..self.clone() }
    }

    /// Returns the largest path MTU that fits the netdev's MTU.
    #[must_use]
    pub fn active_mtu(&self) -> PathMtu {
        match self.mtu.saturating_sub(HEADERS_MAX) {
            4096.. => PathMtu::M4096,
            2048.. => PathMtu::M2048,
            1024.. => PathMtu::M1024,
            512.. => PathMtu::M512,
            _ => PathMtu::M256,
        }
    }

    /// Returns the name of the interface of a row: the netdev, or one above it. `None` if it was removed.
    #[must_use]
    pub fn netdev_of(&self, ifindex: u32) -> Option<String> {
        if ifindex == self.ifindex {
            return Some(self.netdev.clone());
        }
        Netlink::new().and_then(|mut netlink| netlink.link(ifindex)).ok().map(|link| link.name)
    }

    /// Returns the rows of the table that are not empty, with their indices.
    pub fn rows(&self) -> impl Iterator<Item = (u8, GidRow)> {
        (0..=u8::MAX).zip(self.entries.iter().copied()).filter(|(_, row)| *row != GidRow::EMPTY)
    }

    /// Returns the rows that are not empty, and the loopback addresses behind the table.
    pub(crate) fn all_rows(&self) -> impl Iterator<Item = (u8, GidRow)> {
        let loopback = (LOOPBACK_INDEX..=u8::MAX).zip(self.loopback);
        self.rows().chain(loopback.filter(|(_, row)| *row != GidRow::EMPTY))
    }

    /// Returns the address at `index`, which may be behind the table; `None` for empty rows.
    #[must_use]
    #[inline]
    pub fn address(&self, index: u8) -> Option<IpAddr> {
        let loopback = || self.loopback.get(usize::from(index).checked_sub(GID_TBL_LEN)?);
        let row = self.entries.get(usize::from(index)).or_else(loopback)?;
        (*row != GidRow::EMPTY).then(|| row.gid.ip())
    }

    /// As [`address`](Self::address), with the interface.
    #[inline]
    pub(crate) fn source(&self, index: u8) -> Option<Source> {
        let ip = self.address(index)?;
        let row = self.entries.get(usize::from(index));
        let above = row.map(|row| row.ifindex).filter(|ifindex| *ifindex != self.ifindex);
        Some(Source { ip, above: above.unwrap_or(0) })
    }

    /// Returns the index of `gid`, which may be behind the table; that of the netdev if an interface above it
    /// has the same address.
    #[must_use]
    pub fn index_of(&self, gid: &Gid) -> Option<u8> {
        let rows = self.all_rows().filter(|(_, row)| row.gid == *gid);
        rows.min_by_key(|(_, row)| row.ifindex != self.ifindex).map(|(index, _)| index)
    }

    /// True if `gid` is in the table, and its [index](Self::index_of) is a row of the interface `scope` if
    /// that is given.
    pub(crate) fn has(&self, gid: &Gid, scope: Option<u32>) -> bool {
        let row = self.index_of(gid).and_then(|index| self.entries.get(usize::from(index)));
        row.is_some_and(|row| scope.is_none_or(|scope| scope == row.ifindex))
    }

    /// Returns the first address of the family of `ip`.
    pub(crate) fn first_like(&self, ip: IpAddr) -> Option<Gid> {
        let mut gids = self.rows().map(|(_, row)| row.gid);
        gids.find(|gid| gid.ip().is_ipv4() == ip.is_ipv4())
    }

    /// Returns the index of the source address for packets to `dst`: the one that the routing table prefers,
    /// else the first of the same kind.
    #[must_use]
    pub fn source_for(&self, dst: IpAddr) -> Option<u8> {
        if let Some(own) = self.index_of(&Gid::from(dst)) {
            return Some(own);
        }
        let oif = if is_link_local(dst) { self.ifindex } else { 0 };
        let route = Netlink::new().and_then(|mut n| n.route(dst, None, oif)).ok();
        let preferred = route.and_then(|r| r.prefsrc).and_then(|src| self.index_of(&Gid::from(src)));
        preferred.or_else(|| {
            let alike = |ip: IpAddr| {
                ip.is_ipv4() == dst.is_ipv4()
                    && ip.is_loopback() == dst.is_loopback()
                    && is_link_local(ip) == is_link_local(dst)
            };
            self.all_rows().find(|(_, row)| alike(row.gid.ip())).map(|(index, _)| index)
        })
    }

    /// As [`source_for`](Self::source_for); returns the address.
    pub(crate) fn source_address(&self, dst: IpAddr) -> Option<Gid> {
        self.address(self.source_for(dst)?).map(Gid::from)
    }

    /// Merges a table that was read `now` into this one; `None` if nothing has changed.
    pub(crate) fn updated(&self, mut now: GidTable) -> Option<GidTable> {
        let (mut entries, mut removed) = (self.entries.clone(), self.removed.clone());
        // Addresses with a row keep it, so that others are beyond the table than in one that is read anew.
        now.entries.append(&mut now.beyond);
        for (index, row) in entries.iter_mut().enumerate() {
            if *row != GidRow::EMPTY && !now.entries.contains(row) {
                removed.resize(removed.len().max(index + 1), GidRow::EMPTY);
                removed[index] = std::mem::replace(row, GidRow::EMPTY);
            }
        }
        now.entries.retain(|row| !entries.contains(row));
        // Stable: addresses that come back first, so that no other one takes their index.
        now.entries.sort_by_key(|row| !removed.contains(row));
        let mut beyond = Vec::new();
        for new in now.entries {
            let free = |(index, row): (usize, &GidRow)| (*row == GidRow::EMPTY).then_some(index);
            let own = |index: &usize| removed.get(*index) == Some(&new);
            let mut frees = entries.iter().enumerate().filter_map(free);
            match frees.clone().find(own).or_else(|| frees.next()) {
                Some(index) => entries[index] = new,
                None if entries.len() < GID_TBL_LEN => entries.push(new),
                None => beyond.push(new),
            }
        }
        // Peers identify the process by its GUID, so it stays, also when the MAC changes; rxe has the GUID of
        // the MAC that the netdev had when the device was made.
        let table = GidTable { entries, beyond, removed, node_guid: self.node_guid, ..now };
        (table != *self).then_some(table)
    }
}

/// Returns the rows for `link` and the interfaces above it, also those that do not fit in a table.
fn rows(link: &Link, interfaces: &Interfaces) -> Vec<GidRow> {
    let rank = |ip| match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) if is_link_local(ip) => 2,
        IpAddr::V6(_) => 1,
    };
    let above: Vec<u32> = interfaces.above(link).map(|upper| upper.index).collect();
    let level = |ifindex| match () {
        () if ifindex == link.index => Some(0),
        () => above.iter().position(|upper| *upper == ifindex).map(|position| position + 1),
    };
    let found = interfaces.addresses().filter_map(|address| Some((level(address.ifindex)?, address)));
    let mut ranked: Vec<_> = found.collect();
    // Stable sort: within a rank, the kernel's order has primary addresses first.
    ranked.sort_by_key(|(level, address)| (*level, rank(address.ip)));
    let mut seen = HashSet::new();
    ranked.retain(|(_, address)| seen.insert((address.ip, address.ifindex)));
    let row = |address: &Address| GidRow { gid: Gid::from(address.ip), ifindex: address.ifindex };
    ranked.into_iter().map(|(_, address)| row(address)).collect()
}

/// Returns the two standard loopback addresses, unless `link` is the loopback interface.
fn loopback(link: &Link, interfaces: &Interfaces) -> [GidRow; 2] {
    let interface = interfaces.links().iter().find(|l| l.is_loopback && l.is_up).map(|l| l.index);
    [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].map(|ip: IpAddr| {
        let has = interfaces.addresses().any(|a| Some(a.ifindex) == interface && a.ip == ip);
        match interface {
            Some(ifindex) if has && ifindex != link.index => GidRow { gid: Gid::from(ip), ifindex },
            _ => GidRow::EMPTY,
        }
    })
}

fn bond(link: &Link) -> Option<(u32, [u8; 6])> {
    (link.kind.as_deref() == Some("bond")).then_some((link.index, link.mac))
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns the modified EUI-64 of the MAC (RFC 4291, appendix A). A netdev without MAC gets a locally
/// administered value: a constant for loopback, otherwise a value made from the first address.
fn node_guid(link: &Link, first: &Gid) -> [u8; 8] {
    let [a, b, c, d, e, f] = link.mac;
    if link.mac != [0; 6] {
        return [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    }
    if link.is_loopback {
        return [0, 0, 0, 0xff, 0xfe, 0, 0, 1];
    }
    let [.., w, x, y, z] = first.0;
    [0, 0, 0, 0xff, w, x, y, z]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::tests::{address, link, of_kind};

    fn shown(entries: &[GidRow]) -> Vec<(String, u32)> {
        entries.iter().map(|row| (row.gid.ip().to_string(), row.ifindex)).collect()
    }

    #[test]
    fn rows_are_ordered_by_kind_and_unusable_addresses_left_out() {
        let links = vec![link(1, "lo"), link(2, "eth0"), link(3, "eth1")];
        let addresses = vec![
            address(1, "127.0.0.1"),
            address(1, "::1"),
            address(2, "fe80::1"),
            address(2, "2001:db8::1"),
            Address { is_temporary: true, ..address(2, "2001:db8::2") },
            Address { is_tentative: true, ..address(2, "2001:db8::3") },
            address(2, "10.0.0.1"),
            address(3, "10.0.1.1"),
        ];
        let interfaces = Interfaces::new(links.clone(), addresses, None);
        let want = [("10.0.0.1", 2), ("2001:db8::1", 2), ("fe80::1", 2)];
        assert_eq!(shown(&rows(&links[1], &interfaces)), want.map(|(ip, i)| (ip.to_owned(), i)));
        let local = [("127.0.0.1", 1), ("::1", 1)].map(|(ip, i)| (ip.to_owned(), i));
        assert_eq!(shown(&rows(&links[0], &interfaces)), local);
        assert_eq!(shown(&loopback(&links[1], &interfaces)), local);
        assert_eq!(loopback(&links[0], &interfaces), [GidRow::EMPTY; 2], "they are in the table");
    }

    #[test]
    fn addresses_of_interfaces_above_follow_with_their_interface() {
        let above = |link, kind| Link { lower: Some(2), ..of_kind(kind, link) };
        let links = vec![
            link(1, "lo"),
            link(2, "eth0"),
            above(link(3, "eth0.7"), "vlan"),
            link(4, "eth1"),
            above(link(5, "mv0"), "macvlan"),
        ];
        let addresses = vec![
            address(2, "10.0.0.1"),
            address(3, "10.7.0.1"),
            address(4, "10.1.0.1"),
            address(5, "10.5.0.1"),
            address(2, "fe80::2"),
            address(3, "fe80::2"),
            address(3, "2001:db8::3"),
            address(5, "fe80::5"),
        ];
        let interfaces = Interfaces::new(links.clone(), addresses, None);
        let entries = rows(&links[1], &interfaces);
        let want = [
            ("10.0.0.1", 2),
            ("fe80::2", 2),
            ("10.7.0.1", 3),
            ("2001:db8::3", 3),
            ("fe80::2", 3),
            ("10.5.0.1", 5),
            ("fe80::5", 5),
        ];
        assert_eq!(shown(&entries), want.map(|(ip, i)| (ip.to_owned(), i)));
        assert_eq!(shown(&rows(&links[2], &interfaces)).len(), 3, "the VLAN alone");
        let loopback = [GidRow { gid: Ipv4Addr::LOCALHOST.into(), ifindex: 1 }, GidRow::EMPTY];
        let table = GidTable { ifindex: 2, entries, loopback, ..GidTable::without_addresses() };
        let source = |index| table.source(index).map(|source| (source.ip.to_string(), source.above));
        assert_eq!(source(1), Some(("fe80::2".to_owned(), 0)));
        assert_eq!(source(4), Some(("fe80::2".to_owned(), 3)));
        assert_eq!(source(6), Some(("fe80::5".to_owned(), 5)));
        assert_eq!((source(7), source(254)), (None, Some(("127.0.0.1".to_owned(), 0))));
        let shared = Gid::from("fe80::2".parse::<IpAddr>().unwrap());
        let moved = GidTable { entries: table.entries.iter().rev().copied().collect(), ..table };
        assert_eq!(moved.index_of(&shared), Some(5), "the row of the netdev, wherever it is");
        let on = |scope| moved.has(&shared, scope);
        assert_eq!([None, Some(2), Some(3)].map(on), [true, true, false]);
    }

    #[test]
    fn loopback_addresses_are_sources_behind_the_table() {
        let row = |ip: &str, ifindex| GidRow { gid: Gid::from(ip.parse::<IpAddr>().unwrap()), ifindex };
        let table = GidTable {
            entries: vec![row("10.0.0.1", 2)],
            loopback: [row("127.0.0.1", 1), GidRow::EMPTY],
            ..GidTable::without_addresses()
        };
        assert_eq!(table.rows().collect::<Vec<_>>(), [(0, row("10.0.0.1", 2))]);
        let loopback = row("127.0.0.1", 1).gid;
        assert_eq!(table.index_of(&loopback), Some(254));
        assert_eq!(table.source_for(loopback.ip()), Some(254));
        assert_eq!(table.address(254), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!([1, 253, 255].map(|index| table.address(index)), [None; 3]);
    }

    #[test]
    fn path_mtu_and_guid_follow_rxe() {
        let guid = [2, 0, 0, 0xff, 0xfe, 0, 0, 7];
        let mut table = GidTable { node_guid: guid, ..GidTable::without_addresses() };
        for (mtu, path_mtu) in [
            (1500, PathMtu::M1024),
            (4175, PathMtu::M2048),
            (4176, PathMtu::M4096),
            (9000, PathMtu::M4096),
            (65_536, PathMtu::M4096),
            (68, PathMtu::M256),
        ] {
            table.mtu = mtu;
            assert_eq!(table.active_mtu(), path_mtu, "{mtu}");
        }
        let eth = Link { mac: [0x52, 0x54, 0, 0x0a, 8, 2], ..link(2, "eth0") };
        // The kernel derives fe80::5054:ff:fe0a:802 from this MAC.
        let gid = Gid::from(IpAddr::V4(Ipv4Addr::new(10, 8, 0, 2)));
        assert_eq!(node_guid(&eth, &gid), [0x50, 0x54, 0, 0xff, 0xfe, 0x0a, 8, 2]);
        assert_ne!(node_guid(&link(1, "lo"), &gid), [0; 8]);
        assert_eq!(node_guid(&Link { mac: [0; 6], ..eth }, &gid)[4..], [10, 8, 0, 2]);
        let of_instance = |instance| table.clone().of_instance(instance).node_guid;
        assert_eq!([0, 1, 31].map(of_instance).map(|guid| guid[3]), [0xff, 1, 31]);
    }

    #[test]
    fn an_index_stays_with_its_address() {
        let row = |ip: &&str| GidRow { gid: ip.parse::<IpAddr>().unwrap().into(), ifindex: 1 };
        let table = |ips: &[&str]| GidTable {
            entries: ips.iter().map(row).collect(),
            ..GidTable::without_addresses()
        };
        let gid = |ip: &str| Gid::from(ip.parse::<IpAddr>().unwrap());
        let first = table(&["10.0.0.1", "10.0.0.2", "127.0.0.1"]);
        assert_eq!(
            first.updated(table(&["127.0.0.1", "10.0.0.2", "10.0.0.1"])),
            None,
            "the order of the addresses does not matter"
        );
        let second = first.updated(table(&["10.0.0.2", "127.0.0.1"])).unwrap();
        assert_eq!((second.index_of(&gid("10.0.0.1")), second.address(0)), (None, None));
        assert_eq!(second.index_of(&Gid::ZERO), None);
        assert_eq!(second.rows().map(|(index, _)| index).collect::<Vec<_>>(), [1, 2]);
        let third = second.updated(table(&["10.0.0.8", "10.0.0.9", "10.0.0.2", "127.0.0.1"])).unwrap();
        let index = |ip| third.index_of(&gid(ip));
        assert_eq!(["10.0.0.8", "10.0.0.2", "127.0.0.1", "10.0.0.9"].map(index), [0, 1, 2, 3].map(Some));
        // All addresses are removed, then the loopback address comes back.
        let none = third.updated(GidTable { up: false, ..table(&[]) }).unwrap();
        assert_eq!((none.rows().count(), none.up), (0, false));
        assert_eq!(none.updated(table(&["127.0.0.1"])).unwrap().address(2), Some(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn addresses_beyond_the_table_take_no_row_of_another_and_follow_when_one_is_free() {
        let mut addresses: Vec<_> = (0..=255)
            .map(|n| address(2, &format!("2001:db8::{n:x}")))
            .chain([address(2, "fe80::1")])
            .collect();
        let mut read = |ips: &[&str]| {
            addresses.splice(0..0, ips.iter().map(|ip| address(2, ip)));
            let interfaces = Interfaces::new(vec![link(2, "eth0")], addresses.clone(), None);
            GidTable::on(&interfaces, Some("eth0")).unwrap()
        };
        let beyond =
            |table: &GidTable| shown(&table.beyond).into_iter().map(|(ip, _)| ip).collect::<Vec<_>>();
        let first = read(&["10.0.0.1", "10.0.0.1"]);
        assert_eq!(first.rows().count(), GID_TBL_LEN);
        assert_eq!(beyond(&first), ["2001:db8::fd", "2001:db8::fe", "2001:db8::ff", "fe80::1"]);
        // A new IPv4 address would be before the others in a new table.
        let second = first.updated(read(&["10.0.0.2"])).unwrap();
        assert_eq!(second.entries, first.entries);
        assert_eq!(beyond(&second)[..2], ["10.0.0.2", "2001:db8::fd"]);
        addresses.retain(|address| !["10.0.0.1", "2001:db8::7"].contains(&&*address.ip.to_string()));
        let interfaces = Interfaces::new(vec![link(2, "eth0")], addresses, None);
        let third = second.updated(GidTable::on(&interfaces, Some("eth0")).unwrap()).unwrap();
        assert_eq!(
            [0, 8].map(|index| third.address(index).unwrap().to_string()),
            ["10.0.0.2", "2001:db8::fd"]
        );
        assert_eq!(beyond(&third), ["2001:db8::fe", "2001:db8::ff", "fe80::1"]);
    }

    #[test]
    fn an_address_that_comes_back_gets_its_index_again() {
        let row = |ip: &&str| GidRow { gid: ip.parse::<IpAddr>().unwrap().into(), ifindex: 1 };
        let table = |ips: &[&str]| GidTable {
            entries: ips.iter().map(row).collect(),
            ..GidTable::without_addresses()
        };
        let shown = |table: &GidTable| {
            table.rows().map(|(index, row)| format!("{index} {}", row.gid.ip())).collect::<Vec<_>>()
        };
        let first = table(&["10.0.0.1", "fd00::1", "fe80::1"]);
        let down = first.updated(table(&["10.0.0.1"])).unwrap();
        assert_eq!(shown(&down), ["0 10.0.0.1"]);
        let up = down.updated(table(&["10.0.0.1", "fe80::1"])).unwrap();
        assert_eq!(shown(&up), ["0 10.0.0.1", "2 fe80::1"]);
        let both = down.updated(table(&["10.0.0.1", "fd00::2", "fe80::1", "fd00::1"])).unwrap();
        assert_eq!(shown(&both), ["0 10.0.0.1", "1 fd00::1", "2 fe80::1", "3 fd00::2"]);
    }

    #[test]
    fn the_table_of_this_machine_is_usable() {
        let table = GidTable::read(None).unwrap();
        assert!(!table.entries.is_empty() && table.node_guid != [0; 8]);
        for (i, row) in table.entries.iter().enumerate() {
            assert_eq!(table.index_of(&row.gid), u8::try_from(i).ok());
            assert_eq!(
                table.source_for(row.gid.ip()),
                u8::try_from(i).ok(),
                "the source for an own address is that address"
            );
        }
        let lo = GidTable::read(Some("lo")).unwrap();
        assert_eq!(lo.entries[0].gid.ip(), Ipv4Addr::LOCALHOST);
        assert_eq!(lo.active_mtu(), PathMtu::M4096);
        let error = GidTable::read(Some("no-such-netdev")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

//! The GID table: the netdev of the device, and its addresses as GIDs (IBA Annex A17).
//!
//! A GID is an IP address. IPv4 addresses come first, because programs without `-x` take index 0; then
//! global IPv6, then link-local. In the kernel's order (`GidTable::in_kernel_order`) row 0 is the
//! link-local address of the netdev, and IPv4 follows. Every row is a valid source. The addresses of the
//! VLAN, macvlan, bond and bridge interfaces above the netdev follow, as in Linux (roce_gid_mgmt.c). A VLAN
//! often has the link-local address of its netdev; then each of both interfaces has a row.
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
    /// Row 0 is kept for the link-local address of the netdev.
    pub(crate) has_default: bool,
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
            has_default: false,
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

    /// Moves the link-local address of the netdev to row 0, which is empty while the kernel still checks that
    /// address. A netdev without one keeps its order.
    #[must_use]
    pub(crate) fn in_kernel_order(mut self, interfaces: &Interfaces) -> GidTable {
        self.has_default = interfaces.has_link_local(self.ifindex);
        if self.has_default {
            let mut rows = [std::mem::take(&mut self.entries), std::mem::take(&mut self.beyond)].concat();
            let first = rows.iter().position(|row| self.is_default(row));
            let row = first.map_or(GidRow::EMPTY, |at| rows.remove(at));
            rows.insert(0, row);
            self.beyond = rows.split_off(rows.len().min(GID_TBL_LEN));
            self.entries = rows;
        }
        self
    }

    /// True if `row` can be row 0 in the kernel's order.
    fn is_default(&self, row: &GidRow) -> bool {
        row.ifindex == self.ifindex && is_link_local(row.gid.ip())
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
            has_default: false,
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
            let reserved = usize::from(self.has_default && !self.is_default(&new));
            let free = |(index, row): (usize, &GidRow)| {
                (*row == GidRow::EMPTY && index >= reserved).then_some(index)
            };
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
        let GidTable { node_guid, has_default, .. } = *self;
        let table = GidTable { entries, beyond, removed, node_guid, has_default, ..now };
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
mod tests;

//! Next hops: routes and neighbours of the kernel, and the changes to them.
//!
//! Only the kernel resolves neighbours. Until it has, packets take the UDP socket, which triggers the
//! resolution; afterwards they take the AF_XDP socket. Stale entries that are in use are confirmed from
//! time to time.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use sys::{Neighbour, NetEvent, NetEvents, Netlink};

/// Next hops through one interface.
#[derive(Debug)]
pub(super) struct Paths {
    netlink: Netlink,
    events: NetEvents,
    pub(super) link: LinkState,
    hops: Vec<Hop>,
}

/// The interface.
#[derive(Clone, Debug)]
pub(super) struct LinkState {
    pub(super) name: String,
    pub(super) ifindex: u32,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    pub(super) gone: bool,
}

/// A neighbour that packets are sent to.
#[derive(Clone, Copy, Debug)]
struct Hop {
    ip: IpAddr,
    mac: Option<[u8; 6]>,
    is_stale: bool,
    is_used: bool,
}

/// Index of a next hop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct HopId(u32);

/// Kinds of changes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Changes {
    /// Routes: [`Paths::find`] may return another result.
    pub(super) routes: bool,
    /// Ethernet addresses, or the interface.
    pub(super) hops: bool,
}

/// Neighbours that are followed. Datagrams to further ones take the UDP port.
const HOPS_MAX: usize = 4096;

impl Paths {
    /// Creates the paths through interface `ifindex`.
    pub(super) fn new(ifindex: u32) -> io::Result<Paths> {
        // Subscribe first: then changes during the reading of the present state are reported.
        let events = NetEvents::new()?;
        let mut netlink = Netlink::new()?;
        let link = netlink.link(ifindex)?;
        let link = LinkState { name: link.name, ifindex, mac: link.mac, mtu: link.mtu, gone: false };
        Ok(Paths { netlink, events, link, hops: Vec::new() })
    }

    /// Readable when something has changed.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Returns the usable addresses of the interface.
    pub(super) fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        let all = self.netlink.addresses()?.into_iter();
        Ok(all.filter(|address| address.ifindex == self.link.ifindex).map(|address| address.ip).collect())
    }

    /// Returns the next hop from `src` to `dst`; `None` if packets do not leave through this interface,
    /// or go to no single neighbour.
    pub(super) fn find(&mut self, src: IpAddr, dst: IpAddr) -> Option<HopId> {
        let ifindex = self.link.ifindex;
        let is_link_local = matches!(dst, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let scope = if is_link_local { ifindex } else { 0 };
        if dst.is_multicast() || self.link.gone {
            return None;
        }
        let route = self.netlink.route(dst, Some(src), scope).ok()?;
        if route.is_local || route.oif != ifindex {
            return None;
        }
        let ip = route.gateway.unwrap_or(dst);
        if let Some(known) = self.hops.iter().position(|hop| hop.ip == ip) {
            return Some(HopId(known as u32));
        }
        if self.is_full() {
            return None;
        }
        let row = self.netlink.neighbour(ifindex, ip).ok().flatten();
        self.hops.push(Hop {
            ip,
            mac: row.and_then(|row| row.mac),
            is_stale: row.is_some_and(|row| row.is_stale),
            is_used: true,
        });
        Some(HopId(self.hops.len() as u32 - 1))
    }

    /// Whether there is no space for another next hop.
    pub(super) fn is_full(&self) -> bool {
        self.hops.len() >= HOPS_MAX
    }

    /// Removes all next hops; their ids become invalid.
    pub(super) fn clear(&mut self) {
        self.hops.clear();
    }

    /// Returns the Ethernet address of a next hop, if the kernel knows it.
    pub(super) fn mac(&self, hop: HopId) -> Option<[u8; 6]> {
        if self.link.gone { None } else { self.hops.get(hop.0 as usize)?.mac }
    }

    /// Notes that a packet was sent there.
    pub(super) fn mark_used(&mut self, hop: HopId) {
        if let Some(hop) = self.hops.get_mut(hop.0 as usize) {
            hop.is_used = true;
        }
    }

    /// Makes the kernel confirm stale entries that were used since the last call.
    pub(super) fn confirm(&mut self) {
        for hop in &mut self.hops {
            if std::mem::take(&mut hop.is_used) && hop.is_stale {
                // Without CAP_NET_ADMIN the entry stays unconfirmed; a change is learned when the
                // neighbour announces it.
                let _unprivileged = self.netlink.use_neighbour(self.link.ifindex, hop.ip);
            }
        }
    }

    /// Applies the changes since the last call.
    pub(super) fn poll(&mut self) -> Changes {
        let Paths { events, link, hops, .. } = self;
        let (mut changes, mut lost) = (Changes::default(), false);
        events.drain(&mut |event| match event {
            NetEvent::Link(new) if new.index == link.ifindex => {
                changes.hops |= link.mac != new.mac || link.mtu != new.mtu || link.gone;
                (link.mac, link.mtu, link.name) = (new.mac, new.mtu, new.name);
            }
            NetEvent::LinkGone(index) if index == link.ifindex => {
                link.gone = true;
                changes.hops = true;
            }
            NetEvent::Neighbour(row) if row.ifindex == link.ifindex => {
                changes.hops |= update(hops, &row);
            }
            NetEvent::Routes => changes.routes = true,
            NetEvent::Lost => lost = true,
            NetEvent::Link(_) | NetEvent::LinkGone(_) | NetEvent::Neighbour(_) => {}
        });
        if lost {
            self.read_anew();
            changes = Changes { routes: true, hops: true };
        }
        changes
    }

    fn read_anew(&mut self) {
        match self.netlink.link(self.link.ifindex) {
            Ok(link) => (self.link.mac, self.link.mtu) = (link.mac, link.mtu),
            Err(_) => self.link.gone = true,
        }
        for hop in &mut self.hops {
            let row = self.netlink.neighbour(self.link.ifindex, hop.ip).ok().flatten();
            hop.mac = row.and_then(|row| row.mac);
            hop.is_stale = row.is_some_and(|row| row.is_stale);
        }
    }
}

/// Updates a hop; returns whether packets must change.
fn update(hops: &mut [Hop], row: &Neighbour) -> bool {
    let Some(hop) = hops.iter_mut().find(|hop| hop.ip == row.ip) else { return false };
    let changed = hop.mac != row.mac;
    (hop.mac, hop.is_stale) = (row.mac, row.is_stale);
    changed
}

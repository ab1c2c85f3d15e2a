//! Ethernet addresses of destinations (ibv_resolve_eth_l2_from_gid). The kernel resolves them.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use wire::Gid;

use super::Context;
use crate::cm::{Path, solicit};
use sys::{Netlink, now_ns};

/// How long to wait for the neighbour, in nanoseconds: as rdma-core. The kernel solicits three times, a
/// second apart.
const WAIT_NS: u64 = 3_000_000_000;
/// Time between two checks of the neighbour table.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

impl Context {
    /// Returns the Ethernet address that packets from row `sgid_index` of the GID table to `dgid` need: that
    /// of the destination, of a router, or of the group. Waits for the neighbour if the kernel does not know
    /// it.
    ///
    /// # Errors
    /// `InvalidInput` if the table has no such row; `EHOSTUNREACH` if there is no route or no answer.
    pub fn resolve_mac(&self, sgid_index: u8, dgid: Gid) -> io::Result<[u8; 6]> {
        let gids = self.device().gids();
        let row = gids.rows().find(|(index, _)| *index == sgid_index);
        let (_, row) = row.ok_or(io::ErrorKind::InvalidInput)?;
        let (src, dst) = (row.gid.ip(), dgid.ip());
        if let Some(mac) = group_mac(dst) {
            return Ok(mac);
        }
        let unreachable = |_| io::Error::from_raw_os_error(libc::EHOSTUNREACH);
        let mut netlink = Netlink::new()?;
        let is_link_local = matches!(dst, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let scope = if is_link_local { row.ifindex } else { 0 };
        let route = netlink.route(dst, Some(src), scope).map_err(unreachable)?;
        let ifindex = if route.is_local { row.ifindex } else { route.oif };
        let link = netlink.link(ifindex).map_err(unreachable)?;
        if route.is_local || !link.has_neighbours {
            return Ok(link.mac);
        }
        let path = Path { src, dst, ifindex, next_hop: route.gateway.unwrap_or(dst) };
        wait(&mut netlink, &path)?.ok_or_else(|| io::Error::from_raw_os_error(libc::EHOSTUNREACH))
    }
}

/// Returns the Ethernet address of the next hop; `None` if it does not answer in time.
fn wait(netlink: &mut Netlink, path: &Path) -> io::Result<Option<[u8; 6]>> {
    let deadline_ns = now_ns() + WAIT_NS;
    let mut solicited = false;
    loop {
        let row = netlink.neighbour(path.ifindex, path.next_hop)?;
        if let Some(mac) = row.and_then(|row| row.mac) {
            return Ok(Some(mac));
        }
        if now_ns() >= deadline_ns {
            return Ok(None);
        }
        if !solicited {
            solicit(path);
            solicited = true;
        }
        sys::pause(CHECK_INTERVAL);
    }
}

/// Returns the Ethernet address of a multicast group (RFC 1112, RFC 2464).
fn group_mac(group: IpAddr) -> Option<[u8; 6]> {
    match group {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let [.., a, b, c, d] = ip.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{Device, DeviceConfig};

    #[test]
    fn groups_and_local_addresses_need_no_neighbour() {
        let config = DeviceConfig { netdev: Some("lo".to_owned()), ..DeviceConfig::default() };
        let context = Device::open(&config).expect("lo").context().expect("a descriptor");
        let gid = |text: &str| Gid::from(text.parse::<IpAddr>().expect("an address"));
        let mac = |to| context.resolve_mac(0, gid(to)).ok();
        assert_eq!(mac("224.129.2.3"), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(mac("ff0e::1:203:405"), Some([0x33, 0x33, 2, 3, 4, 5]));
        assert_eq!(mac("127.0.0.1"), Some([0; 6]));
        let missing = context.resolve_mac(200, gid("127.0.0.1")).map_err(|error| error.kind());
        assert_eq!(missing, Err(io::ErrorKind::InvalidInput));
    }
}

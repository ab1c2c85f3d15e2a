//! Page pools of network interfaces: the memory that drivers receive into (family `netdev` of generic
//! netlink, linux/netdev.h, since 6.8; recycling counters with CONFIG_PAGE_POOL_STATS).

use std::io;

use super::Netlink;
use super::message::{each_attribute, u32_at, u64_at};
use super::netdev::family;

/// All page pools of one interface; each receive queue has one while it uses XDP or the driver always does.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PagePools {
    /// Number of pools.
    pub pools: u32,
    /// Pages that were taken and not returned.
    pub inflight_pages: u64,
    /// Bytes of these pages; 0 if the kernel does not say.
    pub inflight_bytes: u64,
    /// Pages taken from the pool's cache, and those that the allocator had to give.
    pub alloc_fast: u64,
    /// See [`alloc_fast`](PagePools::alloc_fast).
    pub alloc_slow: u64,
    /// Pages that came back to the cache or the ring.
    pub recycled: u64,
    /// Pages that went back to the allocator, because the ring was full or another owner still had them.
    pub released: u64,
}

/// linux/netdev.h
const PAGE_POOL_GET: u8 = 5;
const PAGE_POOL_STATS_GET: u8 = 9;
const A_ID: u16 = 1;
const A_IFINDEX: u16 = 2;
const A_INFLIGHT: u16 = 4;
const A_INFLIGHT_MEM: u16 = 5;
const A_STATS_INFO: u16 = 1;
const A_STATS_ALLOC_FAST: u16 = 8;
const A_STATS_ALLOC_SLOW: u16 = 9;
const A_STATS_RECYCLE_CACHED: u16 = 14;
const A_STATS_RECYCLE_RING: u16 = 16;
const A_STATS_RECYCLE_RING_FULL: u16 = 17;
const A_STATS_RECYCLE_RELEASED: u16 = 18;

/// Returns the sums over the page pools of interface `ifindex` in the caller's network namespace.
///
/// # Errors
/// `ENOENT` or `EOPNOTSUPP` on kernels before 6.8, which do not report them.
pub fn page_pools(ifindex: u32) -> io::Result<PagePools> {
    let mut netlink = Netlink::open(libc::NETLINK_GENERIC)?;
    let family = family(&mut netlink, b"netdev\0")?;
    let dump = libc::NLM_F_DUMP as u16;
    let (mut sums, mut ids) = (PagePools::default(), Vec::new());
    netlink.ask(family, dump, &[PAGE_POOL_GET, 1, 0, 0], &mut |_, bytes| {
        let (mut id, mut owner, mut pages, mut memory) = (0, 0, 0, 0);
        each_attribute(bytes.get(4..).unwrap_or_default(), |kind, value| match kind {
            A_ID => id = number(value),
            A_IFINDEX => owner = number(value),
            A_INFLIGHT => pages = number(value),
            A_INFLIGHT_MEM => memory = number(value),
            _ => {}
        });
        if owner == u64::from(ifindex) {
            sums.pools += 1;
            sums.inflight_pages += pages;
            sums.inflight_bytes += memory;
            ids.push(id);
        }
    })?;
    let stats = netlink.ask(family, dump, &[PAGE_POOL_STATS_GET, 1, 0, 0], &mut |_, bytes| {
        let (mut id, mut counts) = (0, PagePools::default());
        each_attribute(bytes.get(4..).unwrap_or_default(), |kind, value| match kind {
            A_STATS_INFO => each_attribute(value, |kind, value| {
                if kind == A_ID {
                    id = number(value);
                }
            }),
            A_STATS_ALLOC_FAST => counts.alloc_fast = number(value),
            A_STATS_ALLOC_SLOW => counts.alloc_slow = number(value),
            A_STATS_RECYCLE_CACHED | A_STATS_RECYCLE_RING => counts.recycled += number(value),
            A_STATS_RECYCLE_RING_FULL | A_STATS_RECYCLE_RELEASED => counts.released += number(value),
            _ => {}
        });
        if ids.contains(&id) {
            sums.alloc_fast += counts.alloc_fast;
            sums.alloc_slow += counts.alloc_slow;
            sums.recycled += counts.recycled;
            sums.released += counts.released;
        }
    });
    match stats {
        // Built without these counters.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(sums),
        done => done.map(|_| sums),
    }
}

/// A number of 32 or 64 bits.
fn number(value: &[u8]) -> u64 {
    u64_at(value, 0).or_else(|| u32_at(value, 0).map(u64::from)).unwrap_or(0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::{enter_new_netns, ip};
    use crate::{Netlink, bpf};

    #[test]
    fn a_veth_has_page_pools_while_its_program_receives() {
        if !enter_new_netns() {
            return;
        }
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth0 up");
        ip("link set veth1 up");
        let mut netlink = Netlink::new().unwrap();
        let index = netlink.links().unwrap().into_iter().find(|link| link.name == "veth0").unwrap().index;
        let none = match page_pools(index) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP)) => {
                return eprintln!("skipped: needs Linux 6.8");
            }
            pools => pools.unwrap(),
        };
        assert_eq!(none, PagePools::default());
        let drop = ::bpf::Recipe::verdict(::bpf::XdpAction::Drop);
        let drop = drop.program("drop", ::bpf::ProgramKind::Xdp).unwrap();
        let (program, _maps) = bpf::Program::load_with_maps(&drop).unwrap();
        let _link = bpf::XdpLink::attach(&program, index, crate::XdpMode::Native).unwrap();
        assert_eq!(page_pools(index).unwrap().pools, 1);
    }
}

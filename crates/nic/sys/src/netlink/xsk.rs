//! The AF_XDP sockets of a network namespace, of all processes (sock_diag(7), linux/xdp_diag.h;
//! statistics since 5.9).

use std::io;

use super::message::{each_attribute, u32_at, u64_at};
use super::{Netlink, SOCK_DIAG_BY_FAMILY};
use crate::xdp::XskStatistics;

/// A bound AF_XDP socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BoundXsk {
    /// Interface.
    pub ifindex: u32,
    /// Its receive queue.
    pub queue: u32,
    /// The kernel's counters for it.
    pub statistics: XskStatistics,
}

/// linux/xdp_diag.h
const XDP_SHOW_INFO: u32 = 1 << 0;
const XDP_SHOW_STATS: u32 = 1 << 4;
const XDP_DIAG_INFO: u16 = 1;
const XDP_DIAG_STATS: u16 = 9;
/// Bytes of `struct xdp_diag_msg`.
const MSG_LEN: usize = 16;

/// Returns the AF_XDP sockets that are bound in the caller's network namespace.
///
/// # Errors
/// `ENOENT` or `EINVAL` if the kernel does not report them (CONFIG_XDP_SOCKETS_DIAG).
pub fn bound_xsks() -> io::Result<Vec<BoundXsk>> {
    // struct xdp_diag_req: family, protocol, padding, inode, what to show, cookie.
    let mut body = vec![libc::AF_XDP as u8, 0, 0, 0];
    for word in [0, XDP_SHOW_INFO | XDP_SHOW_STATS, 0, 0] {
        body.extend(u32::to_ne_bytes(word));
    }
    let mut netlink = Netlink::open(libc::NETLINK_SOCK_DIAG)?;
    netlink.dump(SOCK_DIAG_BY_FAMILY, &body, SOCK_DIAG_BY_FAMILY, parse)
}

fn parse(bytes: &[u8]) -> Option<BoundXsk> {
    let mut socket = BoundXsk::default();
    each_attribute(bytes.get(MSG_LEN..)?, |kind, value| match kind {
        XDP_DIAG_INFO => {
            socket.ifindex = u32_at(value, 0).unwrap_or(0);
            socket.queue = u32_at(value, 4).unwrap_or(0);
        }
        XDP_DIAG_STATS => {
            let at = |index: usize| u64_at(value, index * 8).unwrap_or(0);
            socket.statistics = XskStatistics {
                rx_dropped: at(0),
                rx_invalid_descs: at(1),
                rx_ring_full: at(2),
                rx_fill_ring_empty_descs: at(3),
                tx_invalid_descs: at(4),
                tx_ring_empty_descs: at(5),
            };
        }
        _ => {}
    });
    (socket.ifindex != 0).then_some(socket)
}

#[cfg(test)]
mod tests {
    use super::super::message::put_attribute;
    use super::*;

    #[test]
    fn a_socket_is_known_by_its_interface_and_queue() {
        let mut bytes = vec![0; MSG_LEN];
        assert_eq!(parse(&bytes), None, "not bound");
        let info: Vec<u8> = [7u32, 3].into_iter().flat_map(u32::to_ne_bytes).collect();
        let counts: Vec<u8> = (10u64..16).flat_map(u64::to_ne_bytes).collect();
        put_attribute(&mut bytes, XDP_DIAG_INFO, &info);
        put_attribute(&mut bytes, XDP_DIAG_STATS, &counts);
        let socket = parse(&bytes).unwrap();
        assert_eq!((socket.ifindex, socket.queue), (7, 3));
        assert_eq!((socket.statistics.rx_dropped, socket.statistics.rx_ring_full), (10, 12));
        assert_eq!(socket.statistics.tx_ring_empty_descs, 15);
    }
}

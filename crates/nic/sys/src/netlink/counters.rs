//! Interface counters (`struct rtnl_link_stats64` of linux/if_link.h).

use std::io;

use super::Netlink;
use super::link::ifinfo;
use super::message::{each_attribute, u64_at};

/// Counts of an interface since it was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LinkCounters {
    /// Packets received, those that an XDP program dropped included.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received with errors.
    pub rx_errors: u64,
    /// Packets that could not be sent because of errors.
    pub tx_errors: u64,
    /// Packets dropped on receipt, because there was no buffer or no receiver.
    pub rx_dropped: u64,
    /// Packets dropped instead of sent.
    pub tx_dropped: u64,
}

impl Netlink {
    /// Returns the counters of an interface.
    ///
    /// # Errors
    /// `ENODEV` if there is none with this index.
    pub fn link_counters(&mut self, index: u32) -> io::Result<LinkCounters> {
        let mut counters = None;
        self.ask(libc::RTM_GETLINK, 0, &ifinfo(index), &mut |kind, bytes| {
            if kind != libc::RTM_NEWLINK {
                return;
            }
            each_attribute(bytes.get(16..).unwrap_or_default(), |kind, value| {
                if kind == libc::IFLA_STATS64 {
                    counters = Some(parse(value));
                }
            });
        })?;
        counters.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }
}

fn parse(value: &[u8]) -> LinkCounters {
    let at = |index: usize| u64_at(value, index * 8).unwrap_or(0);
    LinkCounters {
        rx_packets: at(0),
        tx_packets: at(1),
        rx_bytes: at(2),
        tx_bytes: at(3),
        rx_errors: at(4),
        tx_errors: at(5),
        rx_dropped: at(6),
        tx_dropped: at(7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_receives_all_packets_that_it_sends() {
        let mut netlink = Netlink::new().unwrap();
        let before = netlink.link_counters(1).unwrap();
        assert_eq!((before.rx_packets, before.rx_bytes), (before.tx_packets, before.tx_bytes));
        assert_eq!(netlink.link_counters(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}

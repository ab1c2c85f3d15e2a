//! The places where an interface can drop packets, in the order of the receive path, with the counter of
//! each.

use sys::{Link, Netlink, bound_xsks, driver_counters};

/// A count at one place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Loss {
    /// The counter's name.
    pub(crate) counter: String,
    /// Meaning of the counter.
    pub(crate) meaning: &'static str,
    pub(crate) packets: u64,
}

/// The drop counters of the interface that are not zero. Drops that neither kernel nor driver report are
/// missing.
pub(crate) fn of(link: &Link) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut add =
        |counter: &str, meaning, packets| losses.push(Loss { counter: counter.to_owned(), meaning, packets });
    let interface =
        Netlink::new().and_then(|mut netlink| netlink.link_counters(link.index)).unwrap_or_default();
    add("tx_dropped", "not sent: the other end's ring was full, or the MTU too small", interface.tx_dropped);
    add("tx_errors", "not sent: errors", interface.tx_errors);
    let driver = driver_counters(&link.name).unwrap_or_default();
    for (meaning, is_it) in PLACES {
        for (name, packets) in driver.iter().filter(|(name, _)| is_it(name)) {
            add(name, meaning, *packets);
        }
    }
    let sockets = bound_xsks().unwrap_or_default();
    let sum = |count: fn(&sys::xdp::XskStatistics) -> u64| {
        let ours = sockets.iter().filter(|socket| socket.ifindex == link.index);
        ours.map(|socket| count(&socket.statistics)).sum()
    };
    add("xsk_rx_dropped", "no free chunk for an AF_XDP socket", sum(|counts| counts.rx_dropped));
    add("xsk_rx_ring_full", "the ring of an AF_XDP socket was full", sum(|counts| counts.rx_ring_full));
    losses.retain(|loss| loss.packets > 0);
    losses
}

/// Counters of drivers (veth, virtio_net and others), by meaning.
type Place = (&'static str, fn(&str) -> bool);

const PLACES: [Place; 4] = [
    ("no free buffer, or the packet was too long for one", |name| {
        name.starts_with("rx") && name.ends_with("drops") && !name.contains("xdp")
    }),
    ("dropped by the XDP program, or before they reached an AF_XDP socket", |name| {
        name.starts_with("rx") && name.ends_with("xdp_drops")
    }),
    ("sent back by the XDP program to an end that does not take them", |name| {
        name.ends_with("xdp_tx_errors") || name.ends_with("xdp_tx_drops")
    }),
    ("redirected to this interface, which rejected them", |name| name.ends_with("xdp_xmit_errors")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_of_a_driver_has_one_place() {
        let place = |name: &str| {
            let mut places = (0..).zip(PLACES).filter(|(_, (_, is_it))| is_it(name)).map(|(at, _)| at);
            (places.next(), places.next())
        };
        for (name, at) in [
            ("rx_queue_0_drops", 0),
            ("rx0_drops", 0),
            ("rx_queue_1_xdp_drops", 1),
            ("rx0_xdp_drops", 1),
            ("rx_queue_0_xdp_tx_errors", 2),
            ("tx0_xdp_tx_drops", 2),
            ("tx_queue_0_xdp_xmit_errors", 3),
        ] {
            assert_eq!(place(name), (Some(at), None), "{name}");
        }
        for name in ["rx_queue_0_xdp_packets", "tx_queue_0_xdp_xmit", "peer_ifindex", "rx0_kicks"] {
            assert_eq!(place(name), (None, None), "{name}");
        }
    }
}

//! The interfaces of the test: veth pairs in a new network namespace, or given interfaces.
//!
//! The namespace has no name. Only the main thread of this process is in it, so the kernel removes it and
//! the veth pairs when the process ends.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use sys::{Link, Netlink};

use super::frame::Ends;
use crate::failure::{During, Failure, Outcome};
use crate::xdp::interface;

/// The interfaces of a test.
#[derive(Debug)]
pub(super) struct Place {
    /// The interface under test.
    pub(super) dut: Link,
    /// The interface that sends to `dut` and receives from it; unknown for a given interface without
    /// `--peer`.
    pub(super) peer: Option<Link>,
    /// Redirected packets leave through the first and arrive at the second.
    pub(super) target: Option<[Link; 2]>,
    /// The interfaces were made for this test.
    pub(super) own: bool,
    /// IP addresses of test packets, from and to; unspecified if `dut` has none.
    ips: [Ipv4Addr; 2],
}

const DUT: &str = "dut0";
const PEER: &str = "peer0";
const TARGET: [&str; 2] = ["out0", "out1"];
const PREFIX: &str = "198.18.0.1/15";
/// RFC 2544: addresses for measurements of network devices.
pub(super) const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 18, 0, 1)];

impl Place {
    /// Creates a namespace for the main thread, with two veth pairs.
    pub(super) fn own() -> Outcome<Place> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| {
            Failure::new(format!("a network namespace of its own: {error}"))
                .hint("needs CAP_SYS_ADMIN: try with sudo")
        })?;
        // No other packets on the links: no router solicitations. Without IPv6 there are none.
        for which in ["all", "default"] {
            let _no_ipv6 = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        }
        ip(&format!("link add {DUT} type veth peer name {PEER}"))?;
        ip(&format!("link add {} type veth peer name {}", TARGET[0], TARGET[1]))?;
        for name in [DUT, PEER, TARGET[0], TARGET[1]] {
            ip(&format!("link set {name} up"))?;
        }
        ip(&format!("address add {PREFIX} dev {DUT}"))?;
        Ok(Place {
            dut: interface(DUT)?,
            peer: Some(interface(PEER)?),
            target: Some([interface(TARGET[0])?, interface(TARGET[1])?]),
            own: true,
            ips: ADDRESSES,
        })
    }

    /// Uses existing interfaces. Redirected packets go back to where they came from.
    pub(super) fn given(netdev: &str, peer: Option<&str>) -> Outcome<Place> {
        let dut = interface(netdev)?;
        let peer = peer.map(interface).transpose()?;
        for link in [Some(&dut), peer.as_ref()].into_iter().flatten() {
            if !link.is_up || !link.is_ethernet {
                return Err(Failure::new(format!("{}: is not an Ethernet interface that is up", link.name)));
            }
        }
        let ips = addresses(&dut)?;
        let target = peer.as_ref().map(|peer| [dut.clone(), peer.clone()]);
        Ok(Place { dut, peer, target, own: false, ips })
    }

    /// Changes the MTU of the veth pair under test; not of given interfaces.
    pub(super) fn set_mtu(&mut self, mtu: u32) -> Outcome {
        for name in [DUT, PEER] {
            ip(&format!("link set {name} mtu {mtu}"))?;
        }
        (self.dut, self.peer) = (interface(DUT)?, Some(interface(PEER)?));
        Ok(())
    }

    /// Ethernet addresses of packets to `dut`. Without a peer: of packets from `dut` to itself, which no
    /// switch delivers.
    pub(super) fn ends(&self) -> Ends {
        let src = self.peer.as_ref().map_or(self.dut.mac, |peer| peer.mac);
        Ends { macs: [src, self.dut.mac], ips: self.ips }
    }

    /// Whether the network stack accepts test packets.
    pub(super) fn has_address(&self) -> bool {
        !self.ips[1].is_unspecified()
    }

    /// Packets dropped so far by all of the interfaces, by interface and direction.
    pub(super) fn dropped(&self) -> Outcome<Vec<(String, u64)>> {
        let mut netlink = Netlink::new().during("netlink")?;
        let target = self.target.iter().flatten().filter(|_| self.own);
        let links = [Some(&self.dut), self.peer.as_ref()].into_iter().flatten().chain(target);
        let mut drops = Vec::new();
        for link in links {
            let counters = netlink.link_counters(link.index).during(&link.name)?;
            drops.push((format!("{} rx_dropped", link.name), counters.rx_dropped));
            drops.push((format!("{} tx_dropped", link.name), counters.tx_dropped));
        }
        Ok(drops)
    }
}

/// Another address in the network of `link`, and the address of `link`: the stack accepts packets from
/// there.
fn addresses(link: &Link) -> Outcome<[Ipv4Addr; 2]> {
    let all = Netlink::new().and_then(|mut netlink| netlink.addresses()).during("netlink")?;
    let v4 = |ifindex: Option<u32>| {
        all.iter().filter(move |a| ifindex.is_none_or(|index| index == a.ifindex)).filter_map(|a| {
            match a.ip {
                IpAddr::V4(ip) => Some(ip),
                IpAddr::V6(_) => None,
            }
        })
    };
    let Some(own) = v4(Some(link.index)).next() else { return Ok([Ipv4Addr::UNSPECIFIED; 2]) };
    let [a, b, c, _] = own.octets();
    let neighbours = (1..255).map(|last| Ipv4Addr::new(a, b, c, last));
    let other = neighbours.into_iter().find(|ip| !v4(None).any(|taken| taken == *ip));
    Ok([other.unwrap_or(own), own])
}

fn ip(words: &str) -> Outcome {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|error| {
        Failure::new(format!("ip: {error}"))
            .hint("install iproute2, or name interfaces with --netdev and --peer")
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim_end())))
}

//! Creating, connecting and configuring interfaces (rtnetlink(7), linux/if_link.h), for benches of
//! several hosts. Needs CAP_NET_ADMIN in the network namespace of the socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Netlink;
use super::link::ifinfo;
use super::message::{NLA_F_NESTED, put_attribute, put_ip};

/// Properties of both ends of a new veth pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VethConfig {
    /// MTU in bytes.
    pub mtu: u32,
}

/// How a link is impaired (tc-netem(8)).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Impairment {
    /// Packets lost of a million.
    pub loss_per_million: u32,
    /// Delay of each packet, at most 274 s.
    pub delay_us: u32,
}

/// linux/if_link.h, linux/veth.h
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
/// linux/pkt_sched.h
const TC_H_ROOT: u32 = u32::MAX;
/// Packets a netem queue holds: a delay of 10 ms at 10 Gbit/s and MTU 1500.
const NETEM_LIMIT: u32 = 10_000;
/// A tick of the kernel's packet scheduler (/proc/net/psched).
const TICK_NS: u64 = 64;

impl Netlink {
    /// Creates a veth pair: `name` in the socket's namespace, `peer` in the namespace `there`. Both are
    /// down.
    ///
    /// # Errors
    /// `EEXIST` if either name is taken, `EPERM`, `EINVAL` for an MTU that the kernel refuses.
    pub fn add_veth(
        &mut self,
        name: &str,
        peer: &str,
        there: BorrowedFd<'_>,
        config: VethConfig,
    ) -> io::Result<()> {
        let mut other = ifinfo(0).to_vec();
        put_end(&mut other, peer, config);
        put_attribute(&mut other, libc::IFLA_NET_NS_FD, &there.as_raw_fd().to_ne_bytes());
        let mut data = Vec::new();
        put_attribute(&mut data, VETH_INFO_PEER | NLA_F_NESTED, &other);
        let mut body = ifinfo(0).to_vec();
        put_end(&mut body, name, config);
        put_kind(&mut body, b"veth", &data);
        self.create(libc::RTM_NEWLINK, &body)
    }

    /// Creates a bridge, which is down.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM`; `EOPNOTSUPP` without bridges in the kernel.
    pub fn add_bridge(&mut self, name: &str, mtu: u32) -> io::Result<()> {
        let mut body = ifinfo(0).to_vec();
        put_text(&mut body, libc::IFLA_IFNAME, name);
        put_attribute(&mut body, libc::IFLA_MTU, &mtu.to_ne_bytes());
        put_kind(&mut body, b"bridge", &[]);
        self.create(libc::RTM_NEWLINK, &body)
    }

    /// Returns the index of the interface with this name.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn index_of(&mut self, name: &str) -> io::Result<u32> {
        let links = self.links()?;
        let found = links.iter().find(|link| link.name == name).map(|link| link.index);
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    /// Brings an interface up, as a port of bridge `master` if there is one.
    ///
    /// # Errors
    /// `ENODEV`, `EPERM`.
    pub fn bring_up(&mut self, index: u32, master: Option<u32>) -> io::Result<()> {
        let mut body = ifinfo(index);
        let up = (libc::IFF_UP as u32).to_ne_bytes();
        body[8..12].copy_from_slice(&up);
        body[12..16].copy_from_slice(&up);
        let mut body = body.to_vec();
        if let Some(master) = master {
            put_attribute(&mut body, libc::IFLA_MASTER, &master.to_ne_bytes());
        }
        self.order(libc::RTM_NEWLINK, 0, &body)
    }

    /// Adds an address to an interface; it is usable at once (no duplicate address detection).
    ///
    /// # Errors
    /// `EEXIST`, `EPERM`.
    pub fn add_address(&mut self, index: u32, ip: IpAddr, prefix_len: u8) -> io::Result<()> {
        // ifaddrmsg: family, prefix length, flags, scope, u32 index.
        let family = if ip.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
        let flags = if ip.is_ipv6() { libc::IFA_F_NODAD as u8 } else { 0 };
        let mut body = vec![family as u8, prefix_len, flags, 0];
        body.extend(index.to_ne_bytes());
        put_ip(&mut body, libc::IFA_LOCAL, ip);
        put_ip(&mut body, libc::IFA_ADDRESS, ip);
        self.create(libc::RTM_NEWADDR, &body)
    }

    /// Impairs the packets that leave through an interface.
    ///
    /// # Errors
    /// `ENOENT` if the kernel has no netem; `EEXIST`, `EPERM`.
    pub fn impair(&mut self, index: u32, how: Impairment) -> io::Result<()> {
        self.create(libc::RTM_NEWQDISC, &netem(index, how))
    }

    pub(super) fn create(&mut self, request: u16, body: &[u8]) -> io::Result<()> {
        self.order(request, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, body)
    }

    pub(super) fn order(&mut self, request: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.ask(request, flags | libc::NLM_F_ACK as u16, body, &mut |_, _| {}).map(drop)
    }
}

fn put_end(body: &mut Vec<u8>, name: &str, config: VethConfig) {
    put_text(body, libc::IFLA_IFNAME, name);
    put_attribute(body, libc::IFLA_MTU, &config.mtu.to_ne_bytes());
}

fn put_kind(body: &mut Vec<u8>, kind: &[u8], data: &[u8]) {
    let mut info = Vec::new();
    put_attribute(&mut info, IFLA_INFO_KIND, kind);
    if !data.is_empty() {
        put_attribute(&mut info, IFLA_INFO_DATA | NLA_F_NESTED, data);
    }
    put_attribute(body, libc::IFLA_LINKINFO | NLA_F_NESTED, &info);
}

fn put_text(body: &mut Vec<u8>, kind: u16, text: &str) {
    put_attribute(body, kind, &[text.as_bytes(), b"\0"].concat());
}

/// tcmsg: family, padding, i32 index, u32 handle, parent, info; then the kind and its options.
fn netem(index: u32, how: Impairment) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend(0u32.to_ne_bytes());
    body.extend(TC_H_ROOT.to_ne_bytes());
    body.extend(0u32.to_ne_bytes());
    put_text(&mut body, libc::TCA_KIND, "netem");
    // tc_netem_qopt: latency in ticks, limit, loss as a share of 2^32, gap, duplicate, jitter.
    let loss = ((u64::from(how.loss_per_million) << 32) + 500_000) / 1_000_000;
    let ticks = u32::try_from(u64::from(how.delay_us) * 1000 / TICK_NS).unwrap_or(u32::MAX);
    let options = [ticks, NETEM_LIMIT, loss as u32, 0, 0, 0].map(u32::to_ne_bytes).concat();
    put_attribute(&mut body, libc::TCA_OPTIONS, &options);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_netem_request_equals_that_of_tc() {
        // tc qdisc add dev x0 root netem delay 1ms loss 1% limit 10000 (iproute2 6.1, interface 3).
        let tc = [
            &[0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0][..],
            b"\x0a\0\x01\0netem\0\0\0",
            &[0x1c, 0, 2, 0, 0x09, 0x3d, 0, 0, 0x10, 0x27, 0, 0, 0x29, 0x5c, 0x8f, 0x02],
            &[0; 12],
        ];
        assert_eq!(netem(3, Impairment { loss_per_million: 10_000, delay_us: 1000 }), tc.concat());
    }
}

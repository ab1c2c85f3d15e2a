//! Neighbours: Ethernet addresses of IP addresses on a link (rtnetlink(7), linux/neighbour.h).

use std::io;
use std::net::IpAddr;

use super::Netlink;
use super::message::{each_attribute, ip_of, put_ip, u32_at};

/// A row of the neighbour table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Neighbour {
    /// Interface it is reached through.
    pub ifindex: u32,
    /// Its address.
    pub ip: IpAddr,
    /// Its Ethernet address, if that is known and may be used.
    pub mac: Option<[u8; 6]>,
    /// The address was not confirmed for a while; the kernel would confirm it soon after using it.
    pub is_stale: bool,
}

/// States in which the Ethernet address may be used: NUD_VALID of net/neighbour.h.
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;

impl Netlink {
    /// Returns the row for `ip` on the link of interface `ifindex`; `None` if there is none.
    ///
    /// # Errors
    /// Those of the socket; `ENODEV`.
    pub fn neighbour(&mut self, ifindex: u32, ip: IpAddr) -> io::Result<Option<Neighbour>> {
        let mut row = None;
        let asked = self.ask(libc::RTM_GETNEIGH, 0, &request(ifindex, ip, 0), &mut |kind, bytes| {
            if kind == libc::RTM_NEWNEIGH {
                row = parse(bytes);
            }
        });
        match asked {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
            Ok(_) => Ok(row),
        }
    }

    /// Makes the kernel resolve, or confirm, the Ethernet address of `ip`, as if it had a packet for it.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN.
    pub fn use_neighbour(&mut self, ifindex: u32, ip: IpAddr) -> io::Result<()> {
        let flags = (libc::NLM_F_ACK | libc::NLM_F_CREATE) as u16;
        let body = request(ifindex, ip, libc::NTF_USE);
        self.ask(libc::RTM_NEWNEIGH, flags, &body, &mut |_, _| {}).map(drop)
    }
}

/// ndmsg: family, three bytes of padding, i32 interface, u16 state, flags, type; then the address.
fn request(ifindex: u32, ip: IpAddr, flags: u8) -> Vec<u8> {
    let family = if ip.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    let mut body = vec![family as u8, 0, 0, 0];
    body.extend(ifindex.to_ne_bytes());
    body.extend([0, 0, flags, 0]);
    put_ip(&mut body, libc::NDA_DST, ip);
    body
}

pub(super) fn parse(body: &[u8]) -> Option<Neighbour> {
    let (header, attributes) = body.split_first_chunk::<12>()?;
    let state = u16::from_ne_bytes([header[8], header[9]]);
    let (mut ip, mut mac) = (None, None);
    each_attribute(attributes, |kind, value| match kind {
        libc::NDA_DST => ip = ip_of(value),
        libc::NDA_LLADDR => mac = value.try_into().ok(),
        _ => {}
    });
    Some(Neighbour {
        ifindex: u32_at(header, 4)?,
        ip: ip?,
        mac: mac.filter(|_| state & VALID != 0),
        is_stale: state & libc::NUD_STALE != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::super::message::put_attribute;
    use super::*;

    fn row(state: u16, mac: Option<[u8; 6]>) -> Vec<u8> {
        let mut body = request(3, "10.0.0.2".parse().unwrap(), 0);
        body[8..10].copy_from_slice(&state.to_ne_bytes());
        if let Some(mac) = mac {
            put_attribute(&mut body, libc::NDA_LLADDR, &mac);
        }
        body
    }

    #[test]
    fn only_usable_addresses_are_given() {
        let mac = [2, 0, 0, 0, 0, 1];
        for (state, usable, stale) in [
            (libc::NUD_REACHABLE, true, false),
            (libc::NUD_STALE, true, true),
            (libc::NUD_PERMANENT, true, false),
            (libc::NUD_FAILED, false, false),
            (libc::NUD_INCOMPLETE, false, false),
        ] {
            let parsed = parse(&row(state, Some(mac))).unwrap();
            assert_eq!((parsed.ifindex, parsed.ip), (3, "10.0.0.2".parse().unwrap()));
            assert_eq!((parsed.mac, parsed.is_stale), (usable.then_some(mac), stale), "{state:#x}");
        }
        assert_eq!(parse(&row(libc::NUD_REACHABLE, None)).unwrap().mac, None);
        assert_eq!(parse(&[0; 11]), None);
    }

    #[test]
    fn an_unused_address_has_no_row() {
        let mut netlink = Netlink::new().unwrap();
        assert_eq!(netlink.neighbour(1, "127.77.77.77".parse().unwrap()).unwrap(), None);
        assert!(!netlink.links().unwrap().is_empty(), "the socket is in step afterwards");
    }
}

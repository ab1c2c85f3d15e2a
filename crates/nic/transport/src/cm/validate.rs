//! Checks whether a REQ may be reported to a listener (Annex A11; Linux cma.c validate_net_dev).

use core::net::IpAddr;

use wire::cm::{IpCmHeader, RejReason, Req};
use wire::{Gid, PKey};

use super::mads::Arrival;
use super::params::Transport;
use crate::PathMtu;

/// The addresses of a REQ.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Addresses {
    pub(super) local: Gid,
    pub(super) peer: Gid,
    pub(super) peer_port: u16,
}

/// What a REQ that was not refused asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    pub(super) addresses: Addresses,
    pub(super) transport: Transport,
    pub(super) path_mtu: PathMtu,
}

/// Checks a REQ against the addresses of its MAD, our addresses (`gids`; `None`: all are local), the
/// listener's service and the port's MTU. The error is the reason for a REJ.
pub(super) fn req(
    req: &Req,
    from: Arrival,
    wanted: Transport,
    gids: Option<&[Gid]>,
    max_path_mtu: PathMtu,
) -> Result<Checked, RejReason> {
    if req.primary.remote_gid != from.dst || !PKey::DEFAULT.matches(req.p_key) {
        return Err(RejReason::INVALID_GID);
    }
    let addresses = addresses(req.ip_header(), from.src, gids).ok_or(RejReason::CONSUMER_DEFINED)?;
    let transport = match (req.transport, req.extended_transport) {
        (Req::TRANSPORT_RC, _) => Transport::Rc,
        (Req::TRANSPORT_UC, _) => Transport::Uc,
        (Req::TRANSPORT_EXTENDED, Req::EXTENDED_XRC) => Transport::Xrc,
        _ => return Err(RejReason::CONSUMER_DEFINED),
    };
    if transport != wanted {
        return Err(RejReason::CONSUMER_DEFINED);
    }
    let path_mtu =
        PathMtu::from_code(req.path_mtu).filter(|mtu| *mtu <= max_path_mtu).ok_or(RejReason::INVALID_MTU)?;
    Ok(Checked { addresses, transport, path_mtu })
}

/// The addresses of an IP-CM header, if they are those of the sender (`src`) and of this host.
pub(super) fn addresses(header: Option<IpCmHeader>, src: Gid, gids: Option<&[Gid]>) -> Option<Addresses> {
    let header = header?;
    let (local, peer) = (Gid::from(header.dst), Gid::from(header.src));
    let plausible = peer == src && may_ask(header.src, peer, gids) && is_ours(local, gids);
    plausible.then_some(Addresses { local, peer, peer_port: header.src_port })
}

/// Loopback addresses connect roxie processes on a device that has them.
fn may_ask(src: IpAddr, gid: Gid, gids: Option<&[Gid]>) -> bool {
    let impossible = src.is_multicast()
        || match src {
            IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unspecified(),
        };
    !impossible && (!src.is_loopback() || is_ours(gid, gids))
}

/// Whether an address is one of the device.
pub(super) fn is_ours(gid: Gid, gids: Option<&[Gid]>) -> bool {
    gids.is_none_or(|gids| gids.contains(&gid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    fn check(src: impl Into<IpAddr>, dst: impl Into<IpAddr>, gids: &[Gid]) -> bool {
        let header = IpCmHeader { src_port: 1, src: src.into(), dst: dst.into() };
        addresses(Some(header), Gid::from(header.src), Some(gids)).is_some()
    }

    #[test]
    fn only_addresses_a_peer_can_have_may_ask() {
        let us = Ipv4Addr::new(10, 0, 0, 2);
        let gids = [Gid::from(us), Gid::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2))];
        assert!(check([10, 0, 0, 1], us, &gids));
        assert!(check([0xfe80, 0, 0, 0, 0, 0, 0, 1], [0xfe80, 0, 0, 0, 0, 0, 0, 2], &gids));
        for src in [[0, 1, 2, 3], [255, 255, 255, 255], [224, 0, 0, 1], [127, 0, 0, 1]] {
            assert!(!check(src, us, &gids), "{src:?}");
        }
        assert!(!check(Ipv6Addr::UNSPECIFIED, us, &gids));
        assert!(!check([10, 0, 0, 1], [10, 0, 0, 3], &gids), "not our address");
        assert!(!check([10, 0, 0, 1], [127, 0, 0, 1], &gids));
        assert!(!check([10, 0, 0, 1], us, &[]), "a device that was removed has no address");
    }

    #[test]
    fn a_loopback_device_accepts_loopback_addresses() {
        let lo = Ipv4Addr::LOCALHOST;
        assert!(check(lo, lo, &[Gid::from(lo)]));
    }
}

//! Address handles (ibv_create_ah(3), ibv_create_ah_from_wc(3)).

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};

use roxie::transport::refusal::{ip_halves, ip_of};
use roxie::transport::{AddressVector, VerbsError, Wc, refuse};
use roxie::verbs::{Ah, Context};
use roxie::wire::Gid;

use crate::abi::context::ibv_context;
use crate::abi::device::ibv_gid;
use crate::abi::objects::{ibv_ah_attr, ibv_global_route, ibv_pd};
use crate::abi::work::{ibv_ah, ibv_grh};
use crate::errno::{code, done, failed, given, minus_code, minus1, no_argument, null};
use crate::handle::{GivenUp, Ref, Room, typed};
use crate::object::Object;
use crate::observer::observer;

use super::context::ContextObject;
use super::handles::new_handle;
use super::pd_mr::PdObject;
use super::query::{PORT, check_port};

pub(crate) type AhObject = Object<ibv_ah, Ah>;

/// Returns the address vector of the C attributes; an error without a global route,
/// which RoCE always needs.
pub(crate) fn address_vector(attr: &ibv_ah_attr) -> Result<AddressVector, VerbsError> {
    let is_global = attr.is_global;
    if is_global == 0 {
        return Err(refuse!(EINVAL, "address handle", "is_global"; is_global;
            is "0: RoCE needs ah_attr.is_global and ah_attr.grh"));
    }
    if attr.port_num != 0 {
        check_port(attr.port_num.into())?;
    }
    Ok(AddressVector {
        dgid: Gid(attr.grh.dgid.raw),
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label & 0xf_ffff,
        sl: attr.sl,
    })
}

/// Returns the C attributes of an address vector.
pub(crate) fn ah_attr(av: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        sl: av.sl,
        is_global: 1,
        port_num: PORT,
        ..ibv_ah_attr::default()
    }
}

pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: ibv_create_ah(3).
    let (pd, attr): (Option<&PdObject>, Option<&ibv_ah_attr>) = unsafe { typed((pd, attr.cast_const())) };
    given!(null; pd, attr);
    create(pd, attr).unwrap_or_else(|refused| null(refused))
}

fn create(pd: &PdObject, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, VerbsError> {
    let av = address_vector(attr)?;
    let ah = pd.tail.create_ah(&av)?;
    Ok(AhObject::export(ibv_ah { context: pd.context().get(), pd: pd.public(), handle: new_handle() }, ah))
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: ibv_destroy_ah(3).
    let ah: Option<GivenUp<AhObject>> = unsafe { typed(ah) };
    given!(code; ah);
    ah.free();
    0
}

/// The route back to the sender, from the 40 bytes in front of a received datagram.
struct Route {
    src: Gid,
    dst: Gid,
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
}

impl Route {
    /// Parses the area: an IPv6 header, or an IPv4 header in the last 20 bytes (IBA A17.4.5.2).
    fn parse(area: &[u8; 40]) -> Option<Self> {
        let (_, v4) = area.split_last_chunk::<20>()?;
        let looks_v6 = area[0] >> 4 == 6;
        let looks_v4 = v4[0] >> 4 == 4;
        if looks_v4 && (!looks_v6 || v4[0] & 0xf == 5 && ipv4_checksum_holds(v4)) {
            let address = |at: usize| IpAddr::from(Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]));
            let (src, dst) = (Gid::from(address(12)), Gid::from(address(16)));
            return Some(Self { src, dst, traffic_class: v4[1], flow_label: 0, hop_limit: v4[8] });
        }
        if !looks_v6 {
            return None;
        }
        let word = u32::from_be_bytes([area[0], area[1], area[2], area[3]]);
        let gid = |half: &[u8]| half.first_chunk().map(|raw| Gid(*raw));
        Some(Self {
            src: gid(&area[8..])?,
            dst: gid(&area[24..])?,
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            hop_limit: area[7],
        })
    }
}

/// Checks the header checksum: the ones' complement sum of a valid header is all ones (RFC 791).
fn ipv4_checksum_holds(header: &[u8; 20]) -> bool {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

fn is_multicast(gid: &Gid) -> bool {
    gid.ip().is_multicast()
}

/// Returns the attributes of an address handle that answers a received datagram.
fn attr_from_wc(context: &Context, wc: &Wc, area: Option<&[u8; 40]>) -> Result<ibv_ah_attr, VerbsError> {
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: PORT,
        ..ibv_ah_attr::default()
    };
    if wc.wc_flags & Wc::GRH == 0 {
        return Ok(attr);
    }
    given!(Err; area as "grh");
    if let Some(observer) = observer() {
        (observer.header_used)(area.as_ptr().addr());
    }
    let route = Route::parse(area).ok_or_else(|| {
        let version = area[0] >> 4;
        refuse!(EPROTONOSUPPORT, "argument", "grh"; version; "the GRH is no header of IPv4 or IPv6")
    })?;
    let [low, high] = ip_halves(route.dst.ip());
    if is_multicast(&route.dst) {
        return Err(refuse!(EINVAL, "argument", "grh"; low, high; let ip = ip_of(low, high);
            "the datagram went to the group {ip}: the address handle needs sgid_index of this host"));
    }
    let sgid_index = context.device().gids().index_of(&route.dst).ok_or_else(|| {
        refuse!(EINVAL, "argument", "grh"; low, high; let ip = ip_of(low, high);
            "{ip} is not in the device's GID table"; "'roxie devinfo' prints the GID table")
    })?;
    attr.is_global = 1;
    attr.grh = ibv_global_route {
        dgid: ibv_gid { raw: route.src.0 },
        flow_label: route.flow_label,
        sgid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
    };
    Ok(attr)
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut Wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: ibv_init_ah_from_wc(3). The GRH is the head of a receive buffer and may have any alignment.
    let (context, wc, area, attr): (Ref<ContextObject>, Ref<Wc>, Ref<[u8; 40]>, Room<ibv_ah_attr>) =
        unsafe { typed((context, wc.cast_const(), grh.cast_const().cast(), attr)) };
    given!(minus1; context, wc, attr);
    done!(minus1; check_port(port.into()));
    let filled = done!(minus1; attr_from_wc(&context.tail.context, wc, area));
    attr.write(filled);
    0
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut Wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: ibv_create_ah_from_wc(3). The GRH is the head of a receive buffer and may have any alignment.
    let (pd, wc, area): (Option<&PdObject>, Option<&Wc>, Option<&[u8; 40]>) =
        unsafe { typed((pd, wc.cast_const(), grh.cast_const().cast())) };
    given!(null; pd, wc);
    done!(null; check_port(port.into()));
    let created = pd
        .owner()
        .ok_or_else(|| no_argument!("context"))
        .and_then(|context| attr_from_wc(&context.tail.context, wc, area))
        .and_then(|attr| create(pd, &attr));
    created.unwrap_or_else(|errno| null(errno))
}

/// Returns the Ethernet address of the next hop and its VLAN, 0xffff for none; 0 or a negative errno.
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    /// The netdev adds and removes the tags of its VLAN, so packets have none here.
    const NO_VLAN: u16 = 0xffff;
    // SAFETY: the contract of the manual pages; this function has none of its own.
    let (context, attr, mac, vlan): (Ref<ContextObject>, Ref<ibv_ah_attr>, Room<[u8; 6]>, Room<u16>) =
        unsafe { typed((context, attr.cast_const(), mac, vlan)) };
    given!(minus_code; context, attr, mac);
    done!(minus_code; check_port(attr.port_num.into()));
    match context.tail.context.resolve_mac(attr.grh.sgid_index, Gid(attr.grh.dgid.raw)) {
        Ok(found) => {
            mac.write(found);
            if let Some(vlan) = vlan {
                vlan.write(NO_VLAN);
            }
            0
        }
        Err(error) => {
            minus_code(failed!(error, "address handle", "dgid"; "the neighbour cannot be resolved"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.0.0.1 to 10.0.0.2, TTL 64, TOS 2, UDP; the checksum is right.
    const V4: [u8; 20] = [0x45, 2, 0, 84, 0, 0, 0x40, 0, 64, 17, 0x26, 0x95, 10, 0, 0, 1, 10, 0, 0, 2];

    #[test]
    fn an_ipv4_header_is_found_in_the_last_twenty_bytes() {
        assert!(ipv4_checksum_holds(&V4));
        let mut area = [0; 40];
        area[20..].copy_from_slice(&V4);
        let route = Route::parse(&area).expect("an IPv4 route");
        assert_eq!(route.src, Gid::from(IpAddr::from([10, 0, 0, 1])));
        assert_eq!((route.traffic_class, route.hop_limit), (2, 64));
    }

    #[test]
    fn the_checksum_distinguishes_an_ipv6_source_that_looks_like_an_ipv4_header() {
        let mut area = [0; 40];
        area[0] = 0x60;
        area[7] = 63;
        area[20..].copy_from_slice(&V4);
        area[30] ^= 1;
        let route = Route::parse(&area).expect("an IPv6 route");
        assert_eq!(route.hop_limit, 63);
    }

    #[test]
    fn a_leftover_version_6_in_the_first_byte_does_not_hide_a_valid_ipv4_header() {
        let mut area = [0; 40];
        area[0] = 0x60;
        area[20..].copy_from_slice(&V4);
        assert_eq!(Route::parse(&area).expect("a route").hop_limit, 64);
    }
}

//! Flow specifications (ibv_create_flow(3)): from the bytes of the application to what a rule compares.

use transport::{VerbsError, refuse};

use super::key::{
    DST_IP, DST_MAC, DST_PORT, ETHER_TYPE, FLOW_LABEL, HAS_IPV4, HAS_IPV6, HAS_PORTS, HAS_VLAN, HEADERS,
    IPV4_TYPE, IPV6_TYPE, Key, PROTO, SRC_IP, SRC_MAC, SRC_PORT, TCP, TOS, TTL, UDP, VLAN_TAG,
};

/// What a rule compares: a frame matches if its key equals `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Match {
    pub(crate) value: Key,
    pub(crate) mask: Key,
}

/// The specifications of one rule.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FlowSpecs {
    pub(crate) matches: Match,
    /// Matching frames are dropped.
    pub(crate) drops: bool,
    /// Layers that have a specification: 2, 3, 4 as bits.
    layers: u8,
    /// The type that an Ethernet specification demands.
    ether_type: Option<[u8; 2]>,
}

/// enum ibv_flow_spec_type.
const ETH: u32 = 0x20;
const IPV4: u32 = 0x30;
const IPV6: u32 = 0x31;
const IPV4_EXT: u32 = 0x32;
const TCP_SPEC: u32 = 0x40;
const UDP_SPEC: u32 = 0x41;
const ACTION_DROP: u32 = 0x1001;
/// Types of verbs.h that the device does not support: ESP, tunnels, MPLS, tags, handles, counters. Each may
/// have the bit of the inner headers of a tunnel.
const KNOWN: [u32; 7] = [0x34, 0x50, 0x51, 0x60, 0x1000, 0x1002, 0x1003];
const INNER: u32 = 0x100;

/// Bytes of `type` and `size`.
pub const SPEC_HEADER_LEN: usize = 8;
/// Most specifications of a rule (IB_FLOW_SPEC_SUPPORT_LAYERS of the kernel).
pub const SPECS_MAX: u8 = 10;

impl FlowSpecs {
    /// Adds a specification in the layout of verbs.h, as long as its `size` says. Numbers are in network byte
    /// order.
    ///
    /// # Errors
    /// `EINVAL` for an unknown type, a wrong size, a second specification of a layer, or types that exclude
    /// each other; `EOPNOTSUPP` for a type or a field that the device does not compare.
    pub fn add(&mut self, spec: &[u8]) -> Result<(), VerbsError> {
        let (ty, _) = spec.split_first_chunk::<4>().ok_or_else(|| too_short(spec))?;
        let ty = u32::from_ne_bytes(*ty);
        match ty {
            ETH => self.add_ethernet(field(spec, 6, 40)?, field(spec, 22, 40)?),
            IPV4 => self.add_ipv4(field::<8>(spec, 8, 24)?, field::<8>(spec, 16, 24)?),
            IPV4_EXT => self.add_ipv4(field::<12>(spec, 8, 32)?, field::<12>(spec, 20, 32)?),
            IPV6 => self.add_ipv6(field(spec, 8, 88)?, field(spec, 48, 88)?),
            TCP_SPEC => self.add_ports(TCP, field(spec, 6, 16)?, field(spec, 10, 16)?),
            UDP_SPEC => self.add_ports(UDP, field(spec, 6, 16)?, field(spec, 10, 16)?),
            ACTION_DROP if spec.len() >= SPEC_HEADER_LEN => {
                self.drops = true;
                Ok(())
            }
            _ if is_known(ty) => Err(refuse!(EOPNOTSUPP, "flow specification", "type"; ty;
                "the device does not compare flow specifications of type {ty:#x}")),
            _ => Err(refuse!(EINVAL, "flow specification", "type"; ty;
                "no flow specification has the type {ty:#x}")),
        }
    }

    /// Checks that the specifications fit each other.
    ///
    /// # Errors
    /// `EINVAL` for an Ethernet type other than that of the IP specification.
    pub fn check(&self) -> Result<(), VerbsError> {
        let headers = self.matches.value.0[HEADERS];
        let wanted = [(HAS_IPV4, IPV4_TYPE), (HAS_IPV6, IPV6_TYPE)];
        let differs = |(header, ty)| headers & header != 0 && self.ether_type.is_some_and(|own| own != ty);
        if !wanted.into_iter().any(differs) {
            return Ok(());
        }
        let ether_type = u16::from_be_bytes(self.ether_type.unwrap_or_default());
        Err(refuse!(EINVAL, "flow specification", "ether_type"; ether_type;
            is "{ether_type:#06x}, the IP specification of the rule needs another"))
    }

    /// True without a specification of a header: every frame matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers == 0
    }

    fn begin_layer(&mut self, layer: u8) -> Result<(), VerbsError> {
        if self.layers & 1 << layer != 0 {
            return Err(refuse!(EINVAL, "flow specification", "type"; layer;
                "the rule has two specifications of layer {layer}"));
        }
        self.layers |= 1 << layer;
        Ok(())
    }

    fn compare(&mut self, at: usize, value: &[u8], mask: &[u8]) {
        for (i, (value, mask)) in value.iter().zip(mask).enumerate() {
            self.matches.value.0[at + i] |= value & mask;
            self.matches.mask.0[at + i] |= mask;
        }
    }

    /// As [`compare`](Self::compare), for the protocol, which the IP header and the ports both name.
    fn compare_proto(&mut self, value: u8, mask: u8) -> Result<(), VerbsError> {
        let common = self.matches.mask.0[PROTO] & mask;
        if common & (self.matches.value.0[PROTO] ^ value) != 0 {
            return Err(refuse!(EINVAL, "flow specification", "proto"; value;
                "the rule compares the protocol with {value} and with another number"));
        }
        self.compare(PROTO, &[value], &[mask]);
        Ok(())
    }

    fn require(&mut self, headers: u8) {
        self.compare(HEADERS, &[headers], &[headers]);
    }

    /// `ibv_flow_eth_filter`: destination, source, type, VLAN tag.
    fn add_ethernet(&mut self, value: [u8; 16], mask: [u8; 16]) -> Result<(), VerbsError> {
        self.begin_layer(2)?;
        self.compare(DST_MAC, &value[..6], &mask[..6]);
        self.compare(SRC_MAC, &value[6..12], &mask[6..12]);
        self.compare(ETHER_TYPE, &value[12..14], &mask[12..14]);
        if mask[12..14] == [0xff; 2] {
            self.ether_type = Some([value[12], value[13]]);
        }
        if mask[14..] != [0; 2] {
            self.require(HAS_VLAN);
            self.compare(VLAN_TAG, &value[14..], &mask[14..]);
        }
        Ok(())
    }

    /// `ibv_flow_ipv4_filter`, or `ibv_flow_ipv4_ext_filter` with protocol, TOS, TTL and flags.
    fn add_ipv4<const N: usize>(&mut self, value: [u8; N], mask: [u8; N]) -> Result<(), VerbsError> {
        self.begin_layer(3)?;
        self.require(HAS_IPV4);
        self.compare(SRC_IP, &value[..4], &mask[..4]);
        self.compare(DST_IP, &value[4..8], &mask[4..8]);
        if let ([proto, tos, ttl, _], [proto_mask, tos_mask, ttl_mask, flags_mask]) =
            (&value[8..], &mask[8..])
        {
            if *flags_mask != 0 {
                let mask = *flags_mask;
                return Err(refuse!(EOPNOTSUPP, "flow specification", "flags"; mask;
                    "the device does not compare the flags of IPv4 (mask {mask:#x})"));
            }
            self.compare_proto(*proto, *proto_mask)?;
            self.compare(TOS, &[*tos], &[*tos_mask]);
            self.compare(TTL, &[*ttl], &[*ttl_mask]);
        }
        Ok(())
    }

    /// `ibv_flow_ipv6_filter`: source, destination, flow label, next header, traffic class, hop limit.
    fn add_ipv6(&mut self, value: [u8; 40], mask: [u8; 40]) -> Result<(), VerbsError> {
        self.begin_layer(3)?;
        self.require(HAS_IPV6);
        for (at, from, len) in [(SRC_IP, 0, 16), (DST_IP, 16, 16), (FLOW_LABEL, 32, 4)] {
            self.compare(at, &value[from..from + len], &mask[from..from + len]);
        }
        self.compare_proto(value[36], mask[36])?;
        for (at, from) in [(TOS, 37), (TTL, 38)] {
            self.compare(at, &value[from..=from], &mask[from..=from]);
        }
        Ok(())
    }

    /// `ibv_flow_tcp_udp_filter`: destination, source.
    fn add_ports(&mut self, proto: u8, value: [u8; 4], mask: [u8; 4]) -> Result<(), VerbsError> {
        self.begin_layer(4)?;
        self.compare_proto(proto, 0xff)?;
        if mask != [0; 4] {
            self.require(HAS_PORTS);
        }
        self.compare(DST_PORT, &value[..2], &mask[..2]);
        self.compare(SRC_PORT, &value[2..], &mask[2..]);
        Ok(())
    }
}

fn is_known(ty: u32) -> bool {
    let outer = ty & !INNER;
    KNOWN.contains(&outer)
        || (ty & INNER != 0 && [ETH, IPV4, IPV6, IPV4_EXT, TCP_SPEC, UDP_SPEC].contains(&outer))
}

#[cold]
fn too_short(spec: &[u8]) -> VerbsError {
    let size = spec.len();
    refuse!(EINVAL, "flow specification", "size"; size; is "{size}, less than its type has")
}

/// Returns the bytes at `at` of a structure of `size` bytes; `EINVAL` if the specification is shorter.
fn field<const N: usize>(spec: &[u8], at: usize, size: usize) -> Result<[u8; N], VerbsError> {
    let bytes = spec.get(..size).and_then(|spec| spec[at..].first_chunk());
    bytes.copied().ok_or_else(|| too_short(spec))
}

impl Match {
    #[inline]
    pub(crate) fn covers(&self, key: &Key) -> bool {
        let words = self.mask.0.as_chunks::<8>().0.iter().zip(self.value.0.as_chunks::<8>().0);
        words.zip(key.0.as_chunks::<8>().0).all(|((mask, value), key)| {
            u64::from_ne_bytes(*key) & u64::from_ne_bytes(*mask) == u64::from_ne_bytes(*value)
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::key::tests::frame;
    use super::*;

    /// A specification of `size` bytes with a value and a mask.
    pub(crate) fn spec(ty: u32, size: usize, val: (usize, &[u8]), mask: (usize, &[u8])) -> Vec<u8> {
        let mut spec = vec![0; size];
        spec[..4].copy_from_slice(&ty.to_ne_bytes());
        spec[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
        for (at, bytes) in [val, mask] {
            spec[at..at + bytes.len()].copy_from_slice(bytes);
        }
        spec
    }

    pub(crate) fn ethernet(dst: [u8; 6]) -> Vec<u8> {
        spec(ETH, 40, (6, &dst), (22, &[0xff; 6]))
    }

    fn ipv4(dst: [u8; 4]) -> Vec<u8> {
        spec(IPV4, 24, (12, &dst), (20, &[0xff; 4]))
    }

    pub(crate) fn udp(dst_port: u16) -> Vec<u8> {
        spec(UDP_SPEC, 16, (6, &dst_port.to_be_bytes()), (10, &[0xff; 2]))
    }

    /// An Ethernet specification of a VLAN.
    pub(crate) fn tag(vlan: u16) -> Vec<u8> {
        spec(ETH, 40, (20, &vlan.to_be_bytes()), (36, &[0xf, 0xff]))
    }

    pub(crate) fn specs(list: &[Vec<u8>]) -> Result<FlowSpecs, VerbsError> {
        let mut specs = FlowSpecs::default();
        list.iter().try_for_each(|spec| specs.add(spec))?;
        specs.check().map(|()| specs)
    }

    fn covers(list: &[Vec<u8>], frame: &[u8]) -> bool {
        specs(list).unwrap().matches.covers(&Key::of(frame))
    }

    #[test]
    fn a_rule_compares_the_fields_of_its_masks_only() {
        let to_two = ethernet([2, 0, 0, 0, 0, 2]);
        let all = [to_two.clone(), ipv4([10, 0, 0, 2]), udp(2000)];
        for tag in [None, Some(9)] {
            assert!(covers(&all, &frame(false, UDP, tag)) && covers(&[], &frame(true, TCP, tag)));
            assert!(!covers(&all, &frame(false, TCP, tag)) && !covers(&all, &frame(true, UDP, tag)));
        }
        for other in [
            vec![ethernet([2, 0, 0, 0, 0, 3])],
            vec![ipv4([10, 0, 0, 3])],
            vec![udp(2001)],
            vec![to_two, ipv4([10, 0, 0, 2]), udp(0)],
        ] {
            assert!(!covers(&other, &frame(false, UDP, None)), "{other:?}");
        }
        let net = spec(IPV4, 24, (8, &[10, 0, 0, 99]), (16, &[255, 255, 255, 0]));
        assert!(covers(&[net], &frame(false, UDP, None)), "bits outside the mask do not count");
        let tag_seven = tag(7);
        assert!(covers(std::slice::from_ref(&tag_seven), &frame(false, UDP, Some(0x2007))));
        assert!(!covers(std::slice::from_ref(&tag_seven), &frame(false, UDP, None)));
        let untagged = spec(ETH, 40, (20, &[0, 0]), (36, &[0xf, 0xff]));
        assert!(!covers(&[untagged], &frame(false, UDP, None)), "a tag of 0 is a tag");
        let label =
            spec(IPV6, 88, (40, &[0, 1, 0x23, 0x45, UDP, 0xab]), (80, &[0, 0xf, 0xff, 0xff, 0xff, 0xff]));
        assert!(covers(std::slice::from_ref(&label), &frame(true, UDP, None)));
        assert!(!covers(&[label], &frame(true, TCP, None)));
    }

    #[test]
    fn malformed_specifications_are_refused_as_uverbs_and_mlx5_do() {
        use transport::Errno;
        let refused = |list: &[Vec<u8>]| specs(list).unwrap_err().kind();
        assert_eq!(refused(&[vec![]]), Errno::EINVAL);
        for (ty, size) in
            [(ETH, 40), (IPV4, 24), (IPV4_EXT, 32), (IPV6, 88), (TCP_SPEC, 16), (ACTION_DROP, 8)]
        {
            for len in 4..size {
                let mut short = ty.to_ne_bytes().to_vec();
                short.resize(len, 0);
                assert_eq!(refused(&[short]), Errno::EINVAL, "type {ty:#x}, {len} bytes");
            }
        }
        assert_eq!(refused(&[spec(0x77, 16, (6, &[]), (6, &[]))]), Errno::EINVAL);
        for ty in [0x34, 0x50, 0x60, 0x1000, 0x1003, INNER | ETH] {
            assert_eq!(refused(&[spec(ty, 40, (6, &[]), (6, &[]))]), Errno::EOPNOTSUPP, "type {ty:#x}");
        }
        assert_eq!(refused(&[udp(1), udp(1)]), Errno::EINVAL);
        let flags = spec(IPV4_EXT, 32, (19, &[2]), (31, &[2]));
        assert_eq!(refused(&[flags]), Errno::EOPNOTSUPP);
        let is_v6 = spec(ETH, 40, (18, &[0x86, 0xdd]), (34, &[0xff, 0xff]));
        assert_eq!(refused(&[is_v6, ipv4([1, 2, 3, 4])]), Errno::EINVAL);
        let is_tcp = spec(IPV4_EXT, 32, (16, &[TCP]), (28, &[0xff]));
        let is_tcp_v6 = spec(IPV6, 88, (44, &[TCP]), (84, &[0xff]));
        for is_tcp in [is_tcp, is_tcp_v6] {
            assert_eq!(refused(&[is_tcp.clone(), udp(1)]), Errno::EINVAL);
            assert_eq!(refused(&[udp(1), is_tcp]), Errno::EINVAL, "in the other order");
        }
    }
}

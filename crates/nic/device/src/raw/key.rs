//! The fields of a frame that flow rules compare, at fixed places.

/// Bytes of a key.
pub(crate) const KEY_LEN: usize = 64;

/// Offsets of the fields in a key. Numbers keep their network byte order.
pub(crate) const DST_MAC: usize = 0;
pub(crate) const SRC_MAC: usize = 6;
/// The type after a VLAN tag, if the frame has one.
pub(crate) const ETHER_TYPE: usize = 12;
/// The TCI of the first VLAN tag.
pub(crate) const VLAN_TAG: usize = 14;
/// 16 bytes each; an IPv4 address takes the first four.
pub(crate) const SRC_IP: usize = 16;
pub(crate) const DST_IP: usize = 32;
/// TOS or traffic class.
pub(crate) const TOS: usize = 48;
pub(crate) const TTL: usize = 49;
pub(crate) const PROTO: usize = 50;
/// Which headers the frame has: [`HAS_VLAN`] and so on.
pub(crate) const HEADERS: usize = 51;
pub(crate) const SRC_PORT: usize = 52;
pub(crate) const DST_PORT: usize = 54;
/// 20 bits in four bytes.
pub(crate) const FLOW_LABEL: usize = 56;

pub(crate) const HAS_VLAN: u8 = 1;
pub(crate) const HAS_IPV4: u8 = 2;
pub(crate) const HAS_IPV6: u8 = 4;
/// A TCP or UDP header follows the IP header, which is not of a later fragment.
pub(crate) const HAS_PORTS: u8 = 8;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ETHERNET_LEN: usize = 14;
pub(crate) const VLAN_LEN: usize = 4;
pub(crate) const VLAN_TYPES: [[u8; 2]; 2] = [[0x81, 0], [0x88, 0xa8]];
pub(crate) const IPV4_TYPE: [u8; 2] = [8, 0];
pub(crate) const IPV6_TYPE: [u8; 2] = [0x86, 0xdd];

/// See the module documentation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Key(pub(crate) [u8; KEY_LEN]);

impl Default for Key {
    fn default() -> Self {
        Self([0; KEY_LEN])
    }
}

impl Key {
    /// Returns the key of a frame; fields of headers that are missing or cut are 0.
    pub(crate) fn of(frame: &[u8]) -> Self {
        let mut key = Self::default();
        let Some((ethernet, mut rest)) = frame.split_first_chunk::<ETHERNET_LEN>() else { return key };
        key.put(DST_MAC, &ethernet[..ETHER_TYPE]);
        let mut ty = [ethernet[12], ethernet[13]];
        if VLAN_TYPES.contains(&ty) {
            let Some((tag, after)) = rest.split_first_chunk::<VLAN_LEN>() else { return key };
            key.put(VLAN_TAG, &tag[..2]);
            ty = [tag[2], tag[3]];
            key.0[HEADERS] |= HAS_VLAN;
            rest = after;
        }
        key.put(ETHER_TYPE, &ty);
        match ty {
            IPV4_TYPE => key.add_ipv4(rest),
            IPV6_TYPE => key.add_ipv6(rest),
            _ => {}
        }
        key
    }

    fn add_ipv4(&mut self, packet: &[u8]) {
        let Some(header) = packet.first_chunk::<20>() else { return };
        let header_len = usize::from(header[0] & 0xf) * 4;
        if header[0] >> 4 != 4 || header_len < header.len() {
            return;
        }
        self.put(SRC_IP, &header[12..16]);
        self.put(DST_IP, &header[16..20]);
        (self.0[TOS], self.0[TTL], self.0[PROTO]) = (header[1], header[8], header[9]);
        self.0[HEADERS] |= HAS_IPV4;
        let is_first = header[6] & 0x1f == 0 && header[7] == 0;
        if is_first {
            self.add_ports(packet.get(header_len..).unwrap_or_default());
        }
    }

    fn add_ipv6(&mut self, packet: &[u8]) {
        let Some((header, rest)) = packet.split_first_chunk::<40>() else { return };
        if header[0] >> 4 != 6 {
            return;
        }
        self.put(SRC_IP, &header[8..24]);
        self.put(DST_IP, &header[24..40]);
        self.0[TOS] = header[0] << 4 | header[1] >> 4;
        (self.0[TTL], self.0[PROTO]) = (header[7], header[6]);
        self.put(FLOW_LABEL, &[0, header[1] & 0xf, header[2], header[3]]);
        self.0[HEADERS] |= HAS_IPV6;
        self.add_ports(rest);
    }

    fn add_ports(&mut self, segment: &[u8]) {
        if let (TCP | UDP, Some(ports)) = (self.0[PROTO], segment.first_chunk::<4>()) {
            self.put(SRC_PORT, ports);
            self.0[HEADERS] |= HAS_PORTS;
        }
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn has(&self, headers: u8) -> bool {
        self.0[HEADERS] & headers == headers
    }

    /// Whether the frame is for a group: multicast or broadcast.
    pub(crate) fn is_multicast(&self) -> bool {
        self.0[DST_MAC] & 1 != 0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A frame from 10.0.0.1 port 1000 to 10.0.0.2 port 2000, or the same with IPv6.
    pub(crate) fn frame(v6: bool, proto: u8, tag: Option<u16>) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if let Some(tag) = tag {
            frame.extend([0x81, 0]);
            frame.extend(tag.to_be_bytes());
        }
        if v6 {
            frame.extend([0x86, 0xdd, 0x6a, 0xb1, 0x23, 0x45, 0, 8, proto, 64]);
            frame.extend([[0xfd; 15].as_slice(), &[1], &[0xfd; 15], &[2]].concat());
        } else {
            frame.extend([8, 0, 0x45, 0xab, 0, 28, 0, 0, 0x40, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        frame.extend([1000_u16.to_be_bytes(), 2000_u16.to_be_bytes()].concat());
        frame.extend([0; 16]);
        frame
    }

    #[test]
    fn every_field_has_its_place_with_and_without_a_tag() {
        for tag in [None, Some(0x2007)] {
            let key = Key::of(&frame(false, UDP, tag));
            assert_eq!(key.0[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
            assert_eq!(key.0[ETHER_TYPE..][..2], IPV4_TYPE);
            assert_eq!(key.0[VLAN_TAG..][..2], tag.unwrap_or(0).to_be_bytes());
            assert_eq!((key.0[SRC_IP..][..5].to_vec(), key.0[DST_IP + 3]), (vec![10, 0, 0, 1, 0], 2));
            assert_eq!((key.0[TOS], key.0[TTL], key.0[PROTO]), (0xab, 64, UDP));
            assert_eq!(key.0[SRC_PORT..][..4], [3, 232, 7, 208]);
            let headers = HAS_IPV4 | HAS_PORTS | if tag.is_some() { HAS_VLAN } else { 0 };
            assert_eq!(key.0[HEADERS], headers);
            let key = Key::of(&frame(true, TCP, tag));
            assert_eq!((key.0[TOS], key.0[FLOW_LABEL..][..4].to_vec()), (0xab, vec![0, 1, 0x23, 0x45]));
            assert_eq!((key.0[SRC_IP + 15], key.0[DST_IP + 15], key.0[PROTO]), (1, 2, TCP));
            assert!(key.has(HAS_IPV6 | HAS_PORTS) && !key.has(HAS_IPV4));
        }
    }

    #[test]
    fn frames_that_are_cut_or_malformed_have_the_fields_that_are_there() {
        let whole = frame(false, UDP, Some(5));
        for len in 0..whole.len() {
            let key = Key::of(&whole[..len]);
            assert_eq!(key.has(HAS_VLAN), len >= 18, "{len} bytes");
            assert_eq!(key.has(HAS_IPV4), len >= 38, "{len} bytes");
            assert_eq!(key.has(HAS_PORTS), len >= 42, "{len} bytes");
        }
        let mut short_header = frame(false, UDP, None);
        short_header[14] = 0x44;
        assert!(!Key::of(&short_header).has(HAS_IPV4));
        let mut later_fragment = frame(false, UDP, None);
        later_fragment[21] = 1;
        let key = Key::of(&later_fragment);
        assert!(key.has(HAS_IPV4) && !key.has(HAS_PORTS) && key.0[SRC_PORT..][..4] == [0; 4]);
        assert!(!Key::of(&frame(false, 1, None)).has(HAS_PORTS), "ICMP");
    }
}

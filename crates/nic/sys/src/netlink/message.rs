//! Netlink encoding: messages with a fixed header, attributes of (length, type, value), padded to four.

use std::mem;
use std::net::{IpAddr, Ipv6Addr};

/// linux/netlink.h: the attribute holds attributes.
pub(super) const NLA_F_NESTED: u16 = 1 << 15;
pub(super) const HEADER_LEN: usize = mem::size_of::<libc::nlmsghdr>();

/// A request ready to be sent.
pub(super) fn request(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_LEN + body.len());
    message.extend(((HEADER_LEN + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend(body);
    message
}

/// Splits off the first message: header, body, rest.
pub(super) fn next_message(bytes: &[u8]) -> Option<(libc::nlmsghdr, &[u8], &[u8])> {
    let header = libc::nlmsghdr {
        nlmsg_len: u32_at(bytes, 0)?,
        nlmsg_type: u16_at(bytes, 4)?,
        nlmsg_flags: u16_at(bytes, 6)?,
        nlmsg_seq: u32_at(bytes, 8)?,
        nlmsg_pid: u32_at(bytes, 12)?,
    };
    let len = header.nlmsg_len as usize;
    let body = bytes.get(HEADER_LEN..len)?;
    Some((header, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// Calls `f` with type and value of each attribute.
pub(super) fn each_attribute<'a>(mut bytes: &'a [u8], mut f: impl FnMut(u16, &'a [u8])) {
    while let (Some(len), Some(kind)) = (u16_at(bytes, 0), u16_at(bytes, 2)) {
        let len = usize::from(len);
        let Some(value) = bytes.get(4..len) else { return };
        // The two top bits are flags.
        f(kind & 0x3fff, value);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Appends an attribute.
pub(super) fn put_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends an address as an attribute.
pub(super) fn put_ip(out: &mut Vec<u8>, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => put_attribute(out, kind, &ip.octets()),
        IpAddr::V6(ip) => put_attribute(out, kind, &ip.octets()),
    }
}

pub(super) fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).into())
}

/// Returns a text up to its terminating zero.
pub(super) fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned()
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|v| u64::from_ne_bytes(*v))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|v| u32::from_ne_bytes(*v))
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|v| u16::from_ne_bytes(*v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_messages_are_not_read_beyond_their_end() {
        assert!(next_message(&[16, 0, 0, 0]).is_none());
        each_attribute(&[9, 0, 1, 0, 1], |_, _| panic!("longer than its bytes"));
        each_attribute(&[0, 0, 0, 0, 0, 0, 0, 0], |_, _| panic!("shorter than its header"));
    }

    #[test]
    fn attributes_are_padded_to_four_bytes_and_found_again() {
        let mut bytes = Vec::new();
        put_attribute(&mut bytes, 1, b"abcde");
        put_ip(&mut bytes, 2, "10.0.0.1".parse().unwrap());
        assert_eq!(bytes.len(), 12 + 8);
        let mut found = Vec::new();
        each_attribute(&bytes, |kind, value| found.push((kind, value.to_vec())));
        assert_eq!(found, [(1, b"abcde".to_vec()), (2, vec![10, 0, 0, 1])]);
        let message = request(18, 0, 7, &bytes);
        let (header, body, rest) = next_message(&message).unwrap();
        assert_eq!((header.nlmsg_type, header.nlmsg_seq, body, rest), (18, 7, &bytes[..], &[][..]));
    }
}

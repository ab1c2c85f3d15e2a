//! Map entries as text: numbers, addresses, prefixes, interfaces, plain bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

use bpf::MapKind;
use bpf::recipe::{Access, source_key};
use roxie_capture::filter::parse_number;
use sys::bpf::Program;

use super::MapView;
use super::types::{as_text, hex};
use crate::failure::{Failure, Outcome};
use crate::netdev::{link, links};
use crate::xdp::prefix;

/// The forms of keys and values, for the help text and for error messages.
pub(crate) const FORMS: &str = "a number (12, 0x1f), several of 4 or 8 bytes (1+2), an address (10.0.0.1, \
                                fd00::1), a prefix \
                                (10.0.0.0/8), an interface (eth0), an interface or a queue length with a \
                                program (eth0,FILE.o:PROGRAM), or bytes (hex:00ff)";

/// Parses a key of this map.
pub(super) fn key(map: &MapView, text: &str) -> Outcome<Vec<u8>> {
    let len = map.def.key_size as usize;
    // The map keeps prefixes with their length in front, and addresses of both kinds in 16 bytes.
    let found = match (map.def.kind, prefix(text)) {
        (MapKind::LpmTrie, Some((address, bits))) if len == 20 => Some(Access::key(address, bits).to_vec()),
        (MapKind::LpmTrie, Some((IpAddr::V4(ip), bits))) if len == 8 => {
            Some([u32::from(bits).to_ne_bytes(), ip.octets()].concat())
        }
        _ => map.key.parse(text, len).or_else(|| bytes(text, len)),
    };
    found.ok_or_else(|| wrong("key", text, len))
}

/// Length of a prefix in bits, which a key of a table of prefixes begins with.
pub(super) fn bits(key: &[u8]) -> u32 {
    key.first_chunk().map_or(0, |bits| u32::from_ne_bytes(*bits))
}

/// Whether the prefix `key` is within `prefix`, or the same.
pub(super) fn is_within(key: &[u8], prefix: &[u8]) -> bool {
    let len = bits(prefix) as usize;
    let is_same = |(at, (a, b)): (usize, (&u8, &u8))| {
        let unused = 8_usize.saturating_sub(len - at * 8) as u32;
        u32::from(a ^ b) >> unused == 0
    };
    let mut bytes = key.iter().skip(4).zip(prefix.iter().skip(4)).enumerate().take(len.div_ceil(8));
    bits(prefix) <= bits(key) && bytes.all(is_same)
}

/// Parses a value of this map, as one CPU has it.
pub(super) fn value(map: &MapView, text: &str) -> Outcome<Vec<u8>> {
    let len = map.def.value_size as usize;
    if len > VALUE_BYTES_MAX {
        return Err(Failure::new(format!("a value of {len} bytes cannot be set")));
    }
    let is_device = matches!(map.def.kind, MapKind::Devmap | MapKind::DevmapHash);
    match map.value.parse(text, len).or_else(|| bytes(text, len)) {
        // The entry of a device map has an interface and, if set, a program.
        _ if is_device && text.parse::<u32>().is_err() => {
            let mut value = vec![0; len];
            let index = link(text)?.index.to_ne_bytes();
            value.get_mut(..index.len()).ok_or_else(|| wrong("value", text, len))?.copy_from_slice(&index);
            Ok(value)
        }
        bytes => bytes.ok_or_else(|| wrong("value", text, len)),
    }
}

/// Splits the value of a DEVMAP or CPUMAP into its target and the program for the entry:
/// `eth0,FILE.o:PROGRAM`.
pub(super) fn split_program<'a>(map: &MapView, text: &'a str) -> Option<(&'a str, &'a str)> {
    let takes = matches!(map.def.kind, MapKind::Devmap | MapKind::DevmapHash | MapKind::Cpumap);
    text.split_once(',').filter(|_| takes)
}

/// Enters a program in the value of a DEVMAP or CPUMAP (`struct bpf_devmap_val`, `struct bpf_cpumap_val`).
pub(super) fn put_program(value: &mut [u8], program: &Program) -> Outcome {
    let place = value.get_mut(4..8).ok_or_else(|| {
        Failure::new("the values of this map are too short for a program")
            .hint("values need 8 bytes: struct bpf_devmap_val or struct bpf_cpumap_val")
    })?;
    place.copy_from_slice(&program.as_fd().as_raw_fd().to_ne_bytes());
    Ok(())
}

/// Longest value that can be set: the length comes from another process.
const VALUE_BYTES_MAX: usize = 128 * 1024;

fn wrong(what: &str, text: &str, len: usize) -> Failure {
    Failure::new(format!("{what} '{text}' does not make {len} bytes")).hint(format!("write {FORMS}")).code(2)
}

/// Parses `text` into `len` bytes; the kernel keeps numbers in the byte order of the machine.
fn bytes(text: &str, len: usize) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix("hex:") {
        let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        let bytes = pairs.map(|pair| u8::from_str_radix(pair.filter(|pair| pair.len() == 2)?, 16).ok());
        return bytes.collect::<Option<Vec<u8>>>().filter(|bytes| bytes.len() == len);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return match (address, len) {
            (IpAddr::V4(ip), 4) => Some(ip.octets().to_vec()),
            (_, 16) => Some(source_key(address).to_vec()),
            _ => None,
        };
    }
    let parts: Vec<&str> = text.split('+').collect();
    let each = len / parts.len();
    if each * parts.len() != len || parts.len() > 1 && each < 4 {
        return None;
    }
    let number = |text: &str| {
        let bytes = parse_number(text)?.to_le_bytes();
        let fits = bytes.get(each..).is_none_or(|rest| rest.iter().all(|byte| *byte == 0));
        let mut bytes = bytes.to_vec();
        bytes.resize(each, 0);
        fits.then_some(bytes)
    };
    Some(parts.into_iter().map(number).collect::<Option<Vec<_>>>()?.concat())
}

/// Formats a key.
pub(super) fn show_key(map: &MapView, bytes: &[u8]) -> String {
    let typed = || map.key.decode(bytes).map_or_else(|| plain(bytes, true), |value| as_text(&value));
    match (map.def.kind, bytes.len()) {
        (MapKind::LpmTrie, 20) => match (address(&bytes[4..]), word(&bytes[..4])) {
            (Some(ip @ IpAddr::V4(_)), bits @ 96..) => format!("{ip}/{}", bits - 96),
            (Some(ip), bits) => format!("{ip}/{bits}"),
            (None, _) => hex(bytes),
        },
        (MapKind::LpmTrie, 8) => {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            format!("{ip}/{}", word(&bytes[..4]))
        }
        _ => typed(),
    }
}

/// Formats the value of one CPU.
pub(super) fn show_value(map: &MapView, bytes: &[u8]) -> String {
    match (map.def.kind, bytes.len()) {
        (MapKind::Devmap | MapKind::DevmapHash, 4..) => {
            let name = device(word(&bytes[..4]) as u32);
            let program = bytes.get(4..8).map_or(0, word);
            if program == 0 { name } else { format!("{name}, program {program}") }
        }
        (MapKind::Cpumap, 8) => {
            let (len, program) = (word(&bytes[..4]), word(&bytes[4..]));
            if program == 0 { len.to_string() } else { format!("{len}, program {program}") }
        }
        _ => map.value.decode(bytes).map_or_else(|| plain(bytes, false), |value| as_text(&value)),
    }
}

/// Bytes without a type.
fn plain(bytes: &[u8], is_key: bool) -> String {
    match bytes.len() {
        16 if is_key => address(bytes).map_or_else(|| hex(bytes), |ip| ip.to_string()),
        1 | 2 | 4 | 8 => word(bytes).to_string(),
        len if !is_key && len.is_multiple_of(8) && len <= 64 => {
            bytes.chunks(8).map(|part| word(part).to_string()).collect::<Vec<_>>().join("+")
        }
        _ => hex(bytes),
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?);
    Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4))
}

fn device(index: u32) -> String {
    let links = links().unwrap_or_default();
    links.into_iter().find(|link| link.index == index).map_or_else(|| index.to_string(), |link| link.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_parsed_to_the_size_of_the_map() {
        assert_eq!(bytes("258", 4), Some(vec![2, 1, 0, 0]));
        assert_eq!(bytes("0x1f", 1), Some(vec![0x1f]));
        assert_eq!(bytes("1+2", 16), Some([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0].to_vec()));
        assert_eq!(bytes("10.0.0.1", 4), Some(vec![10, 0, 0, 1]));
        assert_eq!(bytes("10.0.0.1", 16).unwrap()[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(bytes("fd00::1", 16).unwrap()[..2], [0xfd, 0]);
        assert_eq!(bytes("hex:00ff", 2), Some(vec![0, 0xff]));
        assert_eq!(bytes(&u64::MAX.to_string(), 16).unwrap()[8..], [0; 8]);
        for (wrong, len) in [
            ("256", 1),
            ("1+2", 4),
            ("1+2", 7),
            ("fd00::1", 4),
            ("hex:0", 1),
            ("hex:00", 2),
            ("x", 4),
            ("-1", 4),
            ("", 4),
        ] {
            assert_eq!(bytes(wrong, len), None, "{wrong}");
        }
    }

    #[test]
    fn bytes_are_formatted_as_text() {
        assert_eq!(hex(&[0, 0xff]), "hex:00ff");
        assert_eq!(device(u32::MAX), u32::MAX.to_string());
        assert_eq!(device(1), "lo");
    }
}

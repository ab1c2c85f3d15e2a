//! Reads the captures in this directory; included by the tests of `wire` and `transport`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;
use wire::{Ethernet, Ip, ROCE_PORT, Udp};

/// This directory, from the crate that includes this file.
fn dir() -> PathBuf {
    let places = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|above| above.join("tests/golden"));
    places.into_iter().find(|place| place.is_dir()).expect("the captures are in the tree")
}

/// The names of all captures, sorted.
pub(crate) fn names() -> Vec<String> {
    let entries = fs::read_dir(dir()).expect("the captures are in the tree");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "pcap"))
        .map(|path| path.file_stem().expect("a file has a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The bytes of a capture.
#[allow(dead_code)] // Not every test that includes this file uses it.
pub(crate) fn file(name: &str) -> Vec<u8> {
    fs::read(dir().join(format!("{name}.pcap"))).expect("the capture exists")
}

/// The Ethernet frames of a capture.
pub(crate) fn frames(name: &str) -> Vec<Vec<u8>> {
    let file = File::open(dir().join(format!("{name}.pcap"))).expect("the capture exists");
    let mut reader = PcapReader::new(file).expect("a pcap file");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect("a whole record");
        assert_eq!(packet.data.len(), packet.orig_len as usize, "{name}: a frame was cut");
        frames.push(packet.data.into_owned());
    }
    frames
}

/// The headers of a frame with a UDP datagram for RoCEv2, and its payload; `None` for any other frame.
#[allow(dead_code)] // As above.
pub(crate) fn datagram(frame: &[u8]) -> Option<(Ip, Udp, &[u8])> {
    let (_, _, ether_type, rest) = Ethernet::split(frame)?;
    let (ip, rest) = Ip::split(ether_type, rest)?;
    if ip.protocol() != wire::ip::PROTOCOL_UDP {
        return None;
    }
    let (udp, payload) = Udp::split(rest)?;
    (udp.dst_port == ROCE_PORT).then_some((ip, udp, payload))
}

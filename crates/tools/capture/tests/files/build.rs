//! Makes capture files of frames, in formats that the golden captures do not have.

use std::borrow::Cow;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness, TsResolution};
use roxie_capture::source::Source;
use wire::capture::{LinkType, Seen};

/// 2026-11-21 07:22:55.569342001 UTC.
pub(crate) const TIME_NS: u64 = 1_795_245_775_569_342_001;

/// A pcap file of `frames`, a microsecond apart.
pub(crate) fn pcap(
    frames: &[Vec<u8>],
    link: u32,
    endianness: Endianness,
    ts_resolution: TsResolution,
) -> Vec<u8> {
    let header =
        PcapHeader { datalink: DataLink::from(link), endianness, ts_resolution, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).expect("writes to memory");
    for (index, frame) in (0..).zip(frames) {
        let time = Duration::from_nanos(TIME_NS + index * 1000);
        let packet = PcapPacket::new(time, frame.len() as u32, frame);
        writer.write_packet(&packet).expect("writes to memory");
    }
    writer.into_writer()
}

/// A pcapng file with two interfaces and times in nanoseconds: Ethernet with `frames`, and `link` with
/// `others`.
pub(crate) fn pcapng(frames: &[Vec<u8>], link: u32, others: &[Vec<u8>], endianness: Endianness) -> Vec<u8> {
    let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).expect("writes to memory");
    for (name, link) in [("eth0", 1), ("other", link)] {
        let options = vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
            InterfaceDescriptionOption::IfTsResol(9),
        ];
        let block = InterfaceDescriptionBlock { linktype: DataLink::from(link), snaplen: 0, options };
        writer.write_pcapng_block(block).expect("writes to memory");
    }
    for (interface_id, frames) in [(0, frames), (1, others)] {
        for frame in frames {
            let block = EnhancedPacketBlock {
                interface_id,
                timestamp: Duration::from_nanos(TIME_NS),
                original_len: frame.len() as u32,
                data: Cow::Borrowed(frame),
                options: Vec::new(),
            };
            writer.write_pcapng_block(block).expect("writes to memory");
        }
    }
    writer.into_inner()
}

/// Reads a file. Returns number, time and text of each record (the RoCE packet, or why it is none), and the
/// notes.
pub(crate) fn read(file: &[u8]) -> (Vec<(u64, u64, String)>, Vec<String>) {
    let mut source = Source::new(file).expect("a capture");
    let mut packets = Vec::new();
    while let Some(record) = source.next_record().expect("reading memory does not fail") {
        let words = match Seen::parse(record.decode_as, record.data) {
            Ok(seen) => match seen.packet {
                Ok(packet) => format!("{} > {} {packet}", seen.ip.src(), seen.ip.dst()),
                Err(reason) => reason.to_string(),
            },
            Err(reason) => reason.to_string(),
        };
        packets.push((record.number, record.time_ns, words));
    }
    (packets, source.notes().collect())
}

/// The texts of frames, decoded without a file.
pub(crate) fn words(frames: &[Vec<u8>]) -> Vec<String> {
    let word = |frame: &Vec<u8>| {
        let seen = Seen::parse(LinkType::ETHERNET, frame).expect("RoCEv2");
        format!("{} > {} {}", seen.ip.src(), seen.ip.dst(), seen.packet.expect("understood"))
    };
    frames.iter().map(word).collect()
}

//! Both formats, both byte orders, both time units, several interfaces and sections.

use pcap_file::{Endianness, TsResolution};
use roxie_capture::source::Source;

use crate::build::{TIME_NS, pcap, pcapng, read, words};
use crate::golden;

const ETHERNET: u32 = 1;
const RAW: u32 = 101;

#[test]
fn every_variant_of_pcap_gives_the_same_packets() {
    let frames = golden::frames("cm-rping-v4");
    let want = words(&frames);
    for endianness in [Endianness::Little, Endianness::Big] {
        for resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let (packets, notes) = read(&pcap(&frames, ETHERNET, endianness, resolution));
            assert_eq!(notes, [] as [&str; 0]);
            assert!(packets.iter().map(|packet| &packet.2).eq(&want), "{endianness:?} {resolution:?}");
            let exact = if resolution == TsResolution::NanoSecond { 1 } else { 0 };
            assert_eq!((packets[0].0, packets[0].1), (1, TIME_NS - 1 + exact));
            assert_eq!(packets[40].0, 41);
        }
    }
}

#[test]
fn pcapng_interfaces_have_their_own_link_types() {
    let frames = golden::frames("cm-rping-v6");
    let raw: Vec<Vec<u8>> = frames.iter().map(|frame| frame[14..].to_vec()).collect();
    let want = words(&frames);
    for endianness in [Endianness::Little, Endianness::Big] {
        let file = pcapng(&frames, RAW, &raw, endianness);
        let (packets, notes) = read(&file);
        assert_eq!(notes, [] as [&str; 0]);
        assert!(packets.iter().map(|packet| &packet.2).eq(want.iter().chain(&want)));
        assert!(packets.iter().all(|packet| packet.1 == TIME_NS), "{endianness:?}");
    }
}

/// Such files are made by mergecap and cat.
#[test]
fn a_second_section_may_have_the_other_byte_order() {
    let frames = golden::frames("rc-atomic-v4");
    let mut file = pcapng(&frames, RAW, &[], Endianness::Big);
    file.extend(pcapng(&frames, RAW, &[], Endianness::Little));
    let mut source = Source::new(&file[..]).expect("a capture");
    let mut interfaces = Vec::new();
    while let Some(record) = source.next_record().expect("reads") {
        interfaces.push(record.interface);
    }
    assert_eq!(interfaces, [[0; 10], [2; 10]].concat());
    assert_eq!(source.interfaces().len(), 4);
    assert_eq!(source.interfaces()[2].name.as_deref(), Some("eth0"));
}

/// A reader that returns one byte at a time, like a slow pipe.
struct Drip<'a>(&'a [u8]);

impl std::io::Read for Drip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let take = self.0.len().min(1).min(buffer.len());
        buffer[..take].copy_from_slice(&self.0[..take]);
        self.0 = &self.0[take..];
        Ok(take)
    }
}

#[test]
fn a_slow_pipe_is_read_to_its_end() {
    let frames = golden::frames("cm-rping-v4");
    for file in [
        pcap(&frames, ETHERNET, Endianness::Big, TsResolution::NanoSecond),
        pcapng(&frames, RAW, &[], Endianness::Little),
    ] {
        let mut source = Source::new(Drip(&file)).expect("a capture");
        while source.next_record().expect("reads").is_some() {}
        assert_eq!((source.packets(), source.offset()), (frames.len() as u64, file.len() as u64));
    }
}

#[test]
fn a_file_that_is_not_a_capture_is_described() {
    let refusal = |bytes: &[u8]| Source::new(bytes).err().expect("refused").to_string();
    assert_eq!(refusal(b""), "the file is empty");
    let compressed = Source::new(&b"BZh91AY"[..]).err().expect("refused");
    assert_eq!(compressed.to_string(), "the file is compressed with bzip2");
    assert_eq!(compressed.remedy().as_deref(), Some("try: bzcat FILE | roxie capture read -"));
    assert!(refusal(b"#!/bin/sh\necho this is no capture").contains("begins with 23212f62"));
    assert!(refusal(&[0xd4, 0xc3, 0xb2]).contains("neither pcap nor pcapng"));
}

//! Files that `cat` has joined, old forms of pcap, and times that are far off: recovery does not trust one
//! record.

use pcap_file::{Endianness, TsResolution};
use roxie_capture::source::Source;

use crate::build::{TIME_NS, pcap, pcapng, read, words};
use crate::causes::{block, section};
use crate::golden;

/// Bytes of a pcap file's header and of a record's.
const HEADER: usize = 24;
const RECORD: usize = 16;

fn file(frames: &[Vec<u8>]) -> Vec<u8> {
    pcap(frames, 1, Endianness::Little, TsResolution::MicroSecond)
}

#[test]
fn files_that_cat_has_joined_are_all_read() {
    let frames = golden::frames("rc-atomic-v4");
    let raw: Vec<Vec<u8>> = frames.iter().map(|frame| frame[14..].to_vec()).collect();
    let want = words(&frames);
    let forms = [
        file(&frames),
        pcap(&raw, 101, Endianness::Big, TsResolution::NanoSecond),
        pcapng(&frames, 101, &[], Endianness::Big),
        pcapng(&frames, 101, &[], Endianness::Little),
    ];
    for (a, first) in forms.iter().enumerate() {
        for (b, second) in forms.iter().enumerate() {
            let joined = [first.as_slice(), second, first].concat();
            let (packets, notes) = read(&joined);
            assert_eq!(notes, [] as [&str; 0], "{a} {b}");
            assert!(
                packets.iter().map(|packet| &packet.2).eq(want.iter().chain(&want).chain(&want)),
                "{a} {b}"
            );
        }
    }
    // An empty file between them.
    let (packets, notes) = read(&[file(&[]), file(&[]), file(&frames)].concat());
    assert_eq!((packets.len(), notes.len()), (frames.len(), 0));
}

#[test]
fn a_file_behind_one_that_is_cut_or_damaged_is_read() {
    let frames = golden::frames("rc-atomic-v4");
    let (whole, want) = (file(&frames), words(&frames));
    let ng = pcapng(&frames, 101, &[], Endianness::Little);
    for second in [&whole, &ng] {
        for first in [&whole, &ng] {
            let (packets, notes) = read(&[&first[..first.len() - 10], second].concat());
            let got: Vec<&String> = packets.iter().map(|packet| &packet.2).collect();
            assert!(got.ends_with(&want.iter().collect::<Vec<_>>()), "{packets:?} {notes:?}");
            assert!(got.len() >= 2 * want.len() - 1 && !notes.is_empty(), "{notes:?}");
        }
        // The length of the last record.
        let mut first = whole.clone();
        let last = first.len() - frames[frames.len() - 1].len() - RECORD;
        first[last + 8..last + 12].fill(0xff);
        let (packets, notes) = read(&[first.as_slice(), second].concat());
        assert_eq!(packets.len(), 2 * want.len() - 1, "{notes:?}");
        let skipped = frames[frames.len() - 1].len() + RECORD;
        assert!(notes[1].contains(&format!("{skipped} bytes from byte {last} on were skipped")), "{notes:?}");
    }
}

/// Records of which one has a time of 1970 or far in the future, and the next one is damaged.
#[test]
fn a_wrong_time_does_not_end_the_reading() {
    let frames = golden::frames("rc-atomic-v4");
    let want = words(&frames);
    let starts: Vec<usize> = frames
        .iter()
        .scan(HEADER, |at, frame| Some(std::mem::replace(at, *at + RECORD + frame.len())))
        .collect();
    for seconds in [0_u32, 5, 0xffff_fff0, (TIME_NS / 1_000_000_000) as u32 - 86_400 * 365 * 30] {
        for wrong in [0, 3] {
            let mut damaged = file(&frames);
            damaged[starts[wrong]..][..4].copy_from_slice(&seconds.to_le_bytes());
            assert!(read(&damaged).1.is_empty());
            damaged[starts[wrong + 1] + 8..][..4].fill(0xff);
            let (packets, notes) = read(&damaged);
            let got: Vec<&String> = packets.iter().map(|packet| &packet.2).collect();
            assert!(
                got.into_iter().eq(want[..=wrong].iter().chain(&want[wrong + 2..])),
                "{seconds}: {notes:?}"
            );
        }
    }
}

#[test]
fn times_before_1970_keep_their_distances() {
    // An interface with an offset of 60 years back: if_tsoffset.
    let frames = golden::frames("rc-atomic-v4");
    let offset = -60_i64 * 365 * 86_400;
    let mut interface = [1, 0].map(u32::to_le_bytes).concat();
    interface
        .extend([&14_u16.to_le_bytes()[..], &8_u16.to_le_bytes(), &offset.to_le_bytes(), &[0; 4]].concat());
    let mut bytes = section(0)[..28].to_vec();
    bytes.extend(block(1, &interface));
    for (number, frame) in frames.iter().enumerate() {
        let words = [0, 0, number as u32 * 1000, frame.len() as u32, frame.len() as u32];
        bytes.extend(block(6, &[words.map(u32::to_le_bytes).concat(), frame.clone()].concat()));
    }
    let (packets, notes) = read(&bytes);
    assert_eq!((packets.len(), notes.len()), (frames.len(), 0), "{notes:?}");
    assert_eq!(packets[0].1.cast_signed(), offset * 1_000_000_000);
    assert!(packets.windows(2).all(|pair| pair[1].1.wrapping_sub(pair[0].1) == 1_000_000));
}

#[test]
fn simple_blocks_end_at_the_snap_length() {
    let frames = golden::frames("rc-write-v4");
    let mut bytes = section(61);
    for frame in &frames {
        let kept = &frame[..frame.len().min(61)];
        bytes.extend(block(3, &[&(frame.len() as u32).to_le_bytes(), kept].concat()));
    }
    let mut source = Source::new(&bytes[..]).expect("a capture");
    for frame in &frames {
        let record = source.next_record().expect("reads").expect("a packet");
        assert_eq!((record.data, record.original_len), (&frame[..61], frame.len()));
    }
}

#[test]
fn records_with_the_longer_header_of_old_tcpdumps_are_read() {
    let frames = golden::frames("rc-atomic-v4");
    let plain = file(&frames);
    let mut old = plain[..HEADER].to_vec();
    old[..4].copy_from_slice(&0xa1b2_cd34_u32.to_le_bytes());
    let mut at = HEADER;
    for (number, frame) in frames.iter().enumerate() {
        old.extend(&plain[at..at + RECORD]);
        old.extend([1, 0, 0, 0, 8, 0, if number == 0 { 4 } else { 0 }, 0]);
        old.extend(frame);
        at += RECORD + frame.len();
    }
    let (packets, notes) = read(&old);
    assert!(packets.iter().map(|packet| &packet.2).eq(&words(&frames)), "{notes:?}");
    let mut source = Source::new(&old[..]).expect("a capture");
    assert_eq!(source.next_record().expect("reads").expect("a packet").outbound, Some(true));
    assert_eq!(source.next_record().expect("reads").expect("a packet").outbound, Some(false));
    let (packets, notes) = read(&[&old[..old.len() - 5], &plain].concat());
    assert_eq!((packets.len(), notes.len()), (2 * frames.len(), 1), "{notes:?}");
}

//! Cut or damaged files: all readable packets are read, and the notes describe the damage.

use pcap_file::{Endianness, TsResolution};

use crate::build::{pcap, pcapng, read, words};
use crate::golden;

/// Bytes of a record header of pcap, which is shorter than that of pcapng.
const RECORD: usize = 16;

fn both() -> [Vec<u8>; 2] {
    let frames = golden::frames("cm-rping-v4");
    [
        pcap(&frames, 1, Endianness::Little, TsResolution::MicroSecond),
        pcapng(&frames, 1, &[], Endianness::Little),
    ]
}

#[test]
fn a_cut_file_gives_the_packets_before_the_cut() {
    let want = words(&golden::frames("cm-rping-v4"));
    for file in both() {
        let mut most = 0;
        for len in 28..file.len() {
            let (packets, notes) = read(&file[..len]);
            let whole = packets.iter().zip(&want).take_while(|(got, want)| got.2 == **want).count();
            // A part of the last packet may be left.
            assert!(packets.len() <= whole + 1, "{len}: {packets:?}");
            assert!(whole >= most, "{len}: a longer file has no fewer packets");
            most = whole;
            assert!(notes.len() <= 1, "{len}: {notes:?}");
        }
        assert!(most >= want.len() - 1);
    }
}

#[test]
fn the_note_describes_the_place_and_the_missing_bytes() {
    let [pcap, pcapng] = both();
    let (packets, notes) = read(&pcap[..pcap.len() - 100]);
    assert_eq!(notes, ["the file ends inside packet 41: 222 of 322 bytes are there (byte 4784)"]);
    assert_eq!(packets.len(), 41, "the cut packet counts");
    let (_, notes) = read(&pcapng[..pcapng.len() - 100]);
    assert!(
        notes[0].starts_with("the file ends inside the block behind packet 40: 256 of 356 bytes"),
        "{notes:?}"
    );
}

/// A record with an impossible length is skipped, and reading continues at the next plausible record.
#[test]
fn reading_continues_behind_a_damaged_length() {
    let want = words(&golden::frames("cm-rping-v4"));
    let [mut pcap, mut pcapng] = both();
    // The length of the second record, which is behind the file header and a first record of 322 bytes.
    pcap[24 + 16 + 322 + 8..][..4].fill(0xff);
    let second =
        (0..pcapng.len() - 4).filter(|at| pcapng[*at..][..4] == [6, 0, 0, 0]).nth(1).expect("a packet");
    pcapng[second + 4..][..4].fill(0xff);
    for file in [pcap, pcapng] {
        let (packets, notes) = read(&file);
        let got: Vec<&String> = packets.iter().map(|packet| &packet.2).collect();
        assert_eq!(got.len(), want.len() - 1, "{notes:?}");
        assert!(got.into_iter().eq(want[..1].iter().chain(&want[2..])));
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("damaged") && notes[1].contains("were skipped"), "{notes:?}");
    }
}

/// Damages one byte at a time: every seventh, which covers every field of a header in some record.
#[test]
fn one_damaged_byte_costs_few_packets() {
    let want = words(&golden::frames("cm-rping-v4"));
    for file in both() {
        // The headers before the first packet are needed for all packets.
        let first = golden::frames("cm-rping-v4")[0][..12].to_vec();
        let first = file.windows(12).position(|bytes| bytes == first).expect("a packet") - RECORD;
        for at in (first..file.len()).step_by(7) {
            let mut file = file.clone();
            file[at] ^= 0x81;
            let (packets, notes) = read(&file);
            let same = packets.iter().filter(|packet| want.contains(&packet.2)).count();
            assert!(same + 3 >= want.len(), "byte {at}: {same} of {}: {notes:?}", want.len());
        }
    }
}

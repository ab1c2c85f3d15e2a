//! Files that gzip, zstd, lz4 and xz compressed: whole, joined, cut and damaged ones.

use std::io::Write;
use std::path::Path;

use roxie_capture::source::{Source, decompressed};

use crate::golden;

/// The capture, and what the program of each format made of it.
fn capture() -> (Vec<u8>, Vec<(&'static str, Vec<u8>)>) {
    let file = golden::file("cm-rping-v4");
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(&file).expect("memory");
    let mut all = vec![("gzip", packer.finish().expect("memory"))];
    if cfg!(feature = "compression") {
        let formats = [("zstd", "zst"), ("lz4", "lz4"), ("xz", "xz")];
        all.extend(formats.map(|(name, end)| (name, packed(&format!("cm-rping-v4.pcap.{end}")))));
    }
    (file, all)
}

fn packed(name: &str) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/golden/compressed");
    std::fs::read(dir.join(name)).expect("a file of the repository")
}

/// The packets of a file, and the error of its end.
fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Option<String>) {
    let mut source = match Source::new(decompressed(bytes).expect("memory").0) {
        Ok(source) => source,
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let mut packets = Vec::new();
    while let Some(record) = source.next_record().expect("a damaged end is kept") {
        packets.push(record.data.to_vec());
    }
    (packets, source.check_end().err().map(|error| error.to_string()))
}

#[test]
fn a_compressed_file_is_read_like_the_file() {
    let (file, all) = capture();
    let want = read(&file).0;
    assert_eq!(want.len(), 41);
    for (name, packed) in all {
        assert_eq!(decompressed(&*packed).expect("memory").1, Some(name));
        assert_eq!(read(&packed), (want.clone(), None), "{name}");
        // As `cat` joins compressed files.
        let twice = [want.clone(), want.clone()].concat();
        assert_eq!(read(&[&*packed, &packed].concat()), (twice, None), "{name}");
    }
}

#[test]
fn the_packets_in_front_of_the_end_of_a_cut_compressed_file_are_read() {
    let (file, all) = capture();
    let want = read(&file).0;
    for (name, packed) in all {
        for len in 0..packed.len() {
            let (packets, error) = read(&packed[..len]);
            let begins = packets.iter().zip(&want).all(|(packet, want)| want.starts_with(packet));
            assert!(begins && packets.len() <= want.len(), "{name} {len}");
            let error = error.unwrap_or_else(|| panic!("{name} {len} of {} is whole", packed.len()));
            let is_named = error == format!("the file is cut: its {name} data end early");
            assert!(len < 6 || is_named, "{name} {len}: {error}");
        }
        let (packets, error) = read(&packed[..packed.len() - 1]);
        assert!(error.is_some() && packets == want, "{name} {}", packets.len());
        // A frame behind a whole one.
        let joined = [&*packed, &packed[..packed.len() / 2]].concat();
        let (packets, error) = read(&joined);
        assert!(packets.len() >= want.len() && error.is_some_and(|error| error.contains("end early")));
    }
}

#[test]
fn a_damaged_compressed_file_is_not_taken_for_a_whole_one() {
    let (_, all) = capture();
    for (name, packed) in all {
        for at in (0..packed.len()).step_by(5) {
            let mut damaged = packed.clone();
            damaged[at] ^= 0x5a;
            // No checksum covers the flags and the time of gzip, and the window of zstd may be too large.
            let is_checked = !(name == "gzip" && at < 10 || name == "zstd" && at == 5);
            assert!(read(&damaged).1.is_some() || !is_checked, "{name} {at}");
        }
    }
}

#[cfg(feature = "compression")]
#[test]
fn a_file_that_would_take_much_memory_is_refused() {
    // The window descriptor of this frame says 1 TiB.
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0, 0xf0, 0, 0];
    for (name, file) in [("zstd", zstd.to_vec()), ("xz", packed("dictionary-1GiB.xz"))] {
        let (packets, error) = read(&file);
        let want = format!("{name} needs more than 128 MiB for this file");
        assert!(packets.is_empty() && error.is_some_and(|error| error.starts_with(&want)), "{name}");
    }
}

#[cfg(feature = "compression")]
#[test]
fn frames_without_contents_are_skipped_however_many() {
    let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3].repeat(100_000);
    let zstd = packed("cm-rping-v4.pcap.zst");
    assert_eq!(read(&[&skipped[..], &zstd].concat()), read(&zstd));
    // One that is cut.
    let (packets, error) = read(&[&zstd[..], &[0x50, 0x2a, 0x4d, 0x18, 100, 0, 0, 0, 1, 2, 3]].concat());
    assert_eq!(packets.len(), read(&zstd).0.len());
    assert_eq!(error.as_deref(), Some("the file is cut: its zstd data end early"));
}

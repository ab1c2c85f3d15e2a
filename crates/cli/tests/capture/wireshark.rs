//! Compares every field of every golden packet with Wireshark's dissector.

use std::path::Path;

use pcap_file::{Endianness, TsResolution};

use crate::build::pcap;
use crate::golden;

#[path = "../../../../tests/src/wireshark.rs"]
#[expect(unreachable_pub, reason = "where it lives, others use it")]
mod comparison;

/// All captures are joined into one file, so that tshark is started once.
#[test]
fn wireshark_dissects_the_same_fields() {
    let frames: Vec<Vec<u8>> = golden::names().iter().flat_map(|name| golden::frames(name)).collect();
    let file = pcap(&frames, 1, Endianness::Little, TsResolution::NanoSecond);
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("roxie-wireshark-{}.pcap", std::process::id()));
    std::fs::write(&path, file).expect("the temporary directory is writable");
    let compared = comparison::compare(Path::new(env!("CARGO_BIN_EXE_roxie")), &path);
    std::fs::remove_file(&path).expect("it was written");
    match compared {
        Ok(Some(fields)) => assert!(fields > 30_000, "{fields} fields were compared"),
        Ok(None) => println!("skipped: needs tshark"),
        Err(why) => panic!("{why}"),
    }
}

//! Reads arbitrary bytes as a capture file, shows its packets in every style, and analyses it. Bytes that
//! begin like gzip, zstd, lz4 or xz are decompressed. Packets of all link layers go through the tunnels, IP
//! options and extension headers of `wire::capture`.
//!
//! Checks: no panic; packet numbers increase; a packet is not longer than the file; reading ends; the reader
//! does not use more bytes than the file has; the verdict is not empty.

use std::io::Read;

use roxie_capture::analyse::{Analysis, Origin};
use roxie_capture::filter::{Filter, FilterOptions, QueuePairRules};
use roxie_capture::paint::Colours;
use roxie_capture::show::{Show, Style, Times};
use roxie_capture::source::{Source, decompressed};
use wire::capture::{Seen, tunnels};

/// Packets of an input that are shown; all are analysed.
const SHOWN_MAX: u64 = 64;

/// Bytes read of a compressed input, which expands a thousandfold and more.
const UNPACKED_MAX: u64 = 1 << 20;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Ok((input, format)) = decompressed(data) else { return };
    let limit = if format.is_some() { UNPACKED_MAX } else { data.len() as u64 };
    let Ok(mut source) = Source::new(input.take(limit)) else { return };
    let options = FilterOptions { errors: true, ..FilterOptions::default() };
    let mut filter = Filter::new(options, QueuePairRules::default());
    let styles = [Style::Line, Style::Struct, Style::Tree, Style::Json, Style::Hex];
    let mut shows = styles.map(|style| Show::new(style, Times::Delta, Colours::None));
    let mut analysis = Analysis::with_messages();
    let mut count = 0;
    let mut text = String::new();
    while let Some(record) = source.next_record().expect("damage is noted") {
        assert!(record.number > count && record.data.len() as u64 <= limit);
        count = record.number;
        let seen = Seen::parse(record.decode_as, record.data);
        if let Ok(seen) = &seen {
            assert!(seen.udp_payload.len() <= seen.udp_payload_len);
            let around = tunnels(record.decode_as, record.data);
            assert_eq!(around.iter().flatten().count(), usize::from(seen.tunnels));
            let _ = filter.admits(seen);
        }
        if count <= SHOWN_MAX {
            for show in &mut shows {
                text.clear();
                show.packet(&mut text, &record, &seen);
                assert!(text.ends_with('\n'));
            }
        }
        analysis.feed(&record, &seen);
        analysis.take_messages();
    }
    assert!(source.offset() <= limit);
    let verdict = analysis.finish(source.drops(), source.left_out());
    assert!(!verdict.text().is_empty() && !verdict.next(Origin::File("-")).is_empty());
    assert!(verdict.json(Origin::File("-")).is_object());
}

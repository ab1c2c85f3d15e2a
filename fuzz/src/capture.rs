//! Reads arbitrary bytes as a capture file, shows its packets in every style, and analyses it.
//!
//! Checks: no panic; packet numbers increase; a packet is not longer than the file; reading ends; the reader
//! does not use more bytes than the file has; the verdict is not empty.

use roxie_capture::analyse::Analysis;
use roxie_capture::filter::{Filter, FilterOptions, QueuePairRules};
use roxie_capture::paint::Colours;
use roxie_capture::show::{Show, Style, Times};
use roxie_capture::source::Source;
use wire::capture::Seen;

/// Packets of an input that are shown; all are analysed.
const SHOWN_MAX: u64 = 64;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Ok(mut source) = Source::new(data) else { return };
    let options = FilterOptions { errors: true, ..FilterOptions::default() };
    let mut filter = Filter::new(options, QueuePairRules::default());
    let styles = [Style::Line, Style::Struct, Style::Tree, Style::Json, Style::Hex];
    let mut shows = styles.map(|style| Show::new(style, Times::Delta, Colours::None));
    let mut analysis = Analysis::with_messages();
    let mut count = 0;
    let mut text = String::new();
    while let Some(record) = source.next_record().expect("memory can be read") {
        assert!(record.number > count && record.data.len() <= data.len());
        count = record.number;
        let seen = Seen::parse(record.link_type, record.data);
        if let Ok(seen) = &seen {
            assert!(seen.udp_payload.len() <= seen.udp_payload_len);
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
    assert!(source.offset() <= data.len() as u64);
    let verdict = analysis.finish(source.drops(), source.left_out());
    assert!(!verdict.text().is_empty());
}

//! Fuzzes the reader of capture files: an arbitrary file is read, decoded in every style and analysed.
//!
//! Checked: no panic; packet numbers increase by one; a packet is not longer than the file; reading ends; the
//! reader does not consume more bytes than the file has; the verdict is not empty.

use roxie_cli::capture::analyse::Analysis;
use roxie_cli::capture::filter::{Filter, FilterArgs, Management};
use roxie_cli::capture::show::{Show, Style, Times};
use roxie_cli::capture::source::Source;
use roxie_cli::terminal::Terminal;
use wire::capture::Seen;

/// Number of packets decoded per input; all packets are analysed.
const SHOWN_MAX: u64 = 64;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Ok(mut source) = Source::new(data) else { return };
    let mut filter =
        Filter::new(FilterArgs { only_errors: true, ..FilterArgs::default() }, Management::Named);
    let styles = [Style::Line, Style::Struct, Style::Tree, Style::Json, Style::Hex];
    let mut shows = styles.map(|style| Show::new(style, Times::Delta, Terminal::plain()));
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

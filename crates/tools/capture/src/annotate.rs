//! Writes a capture again as pcapng, with the findings of an analysis as comments of its packets.
//!
//! Wireshark shows the comments in the packet's tree and finds them with the filter `frame.comment`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Read, Write};

use crate::analyse::Verdict;
use crate::source::Source;
use crate::write::{NewInterface, NewPacket, Writer};

/// Comments by packet number.
pub type Comments = HashMap<u64, Vec<String>>;

/// The comments for the packets of an analysed capture.
///
/// The text of a finding is a comment of the first packet concerned; the packet that revealed it gets a
/// reference. The packet of the first finding also has the verdict.
#[must_use]
pub fn comments(verdict: &Verdict) -> Comments {
    let mut comments = Comments::new();
    for finding in &verdict.findings {
        let (kind, at, by) = (finding.kind.name(), finding.at.number, finding.shown_by);
        comments.entry(at).or_default().push(format!("roxie: {kind}: {}", finding.text));
        if by != at && by != 0 {
            let reference = format!("roxie: {kind}: shows what happened to packet {at}");
            comments.entry(by).or_default().push(reference);
        }
        for (also, by) in &finding.also {
            let text = format!("roxie: {kind}: as at packet {at}, shown by packet {by}");
            comments.entry(*also).or_default().push(text);
        }
    }
    if let Some(first) = verdict.first() {
        let text = format!("roxie: verdict: {}", verdict.text());
        comments.entry(first.at.number).or_default().push(text);
    }
    comments
}

/// Copies all packets of `source` to `output`, with `comments` added to those the packets have.
///
/// Interfaces, directions and comments of the input are kept; `drops` is written as the drop counter of the
/// first interface.
///
/// # Errors
/// If the input cannot be read or the output cannot be written.
pub fn copy<R: Read, W: Write>(
    source: &mut Source<R>,
    output: W,
    comments: &Comments,
    drops: u64,
) -> io::Result<()> {
    let during = |step: &str, error: io::Error| io::Error::new(error.kind(), format!("{step}: {error}"));
    let reading = |error| during("reading the capture", error);
    let writing = |error| during("writing the annotated capture", error);
    let mut writer = Writer::new(output).map_err(writing)?;
    while let Some(record) = source.next_record().map_err(reading)? {
        let data = record.data.to_vec();
        let packet = NewPacket {
            interface: record.interface,
            time_ns: record.time_ns,
            original_len: record.original_len,
            data: &data,
            outbound: record.outbound,
            verdict: record.verdict,
        };
        let kept = record.comment.map(|comment| String::from_utf8_lossy(comment).into_owned());
        let added = comments.get(&record.number).into_iter().flatten();
        let texts: Vec<Cow<'_, str>> =
            kept.into_iter().map(Cow::Owned).chain(added.map(|text| Cow::Borrowed(text.as_str()))).collect();
        for interface in &source.interfaces()[writer.interfaces()..=packet.interface] {
            let (name, left_out) = (interface.name.as_deref(), interface.left_out.as_deref());
            let (times, link_type) = (interface.times.as_deref(), interface.link_type);
            let described = NewInterface { name, left_out, times, link_type };
            writer.interface(&described).map_err(writing)?;
        }
        writer.packet(&packet, texts).map_err(writing)?;
    }
    if drops > 0 && writer.interfaces() > 0 {
        writer.drops(0, drops).map_err(writing)?;
    }
    writer.output().flush().map_err(writing)
}

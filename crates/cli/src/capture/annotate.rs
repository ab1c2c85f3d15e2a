//! `roxie capture annotate`: the same packets with what was found as their comments, in pcapng, which Wireshark shows.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::analyse::{self, Analysis, Verdict};
use super::write::{NewPacket, Writer};
use super::{source, target};
use crate::failure::{During, Failure, Outcome};
use crate::terminal::Terminal;

/// Write a capture again, with the findings as comments of its packets
///
/// The output is pcapng with times in nanoseconds; interfaces, directions, drop counters and comments of the input are kept.
/// Wireshark shows the comments in the packet's tree and finds them with the filter frame.comment.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  roxie capture annotate trace.pcap -o trace.pcapng
          Then, in Wireshark: frame.comment
  roxie capture annotate trace.pcap -o - | tshark -r - -Y frame.comment -T fields -e frame.comment
          As text")]
pub(super) struct AnnotateArgs {
    /// The file; it is read twice
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to write, or - for standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,
}

pub(super) fn run(args: &AnnotateArgs) -> Outcome {
    if target::is_standard(&args.file) || is_stream(&args.file) {
        let failure = Failure::new("the capture is read twice, which standard input and pipes cannot be");
        return Err(failure.hint("write it to a file first"));
    }
    target::spare_input(&args.file, &args.output)?;
    let terminal = Terminal::stdout();
    let mut first = source::open(&args.file)?;
    let verdict = analyse::with_progress(&mut first, Analysis::new(), |_, _| Ok(true))?;
    first.check(&args.file.display().to_string())?;
    let comments = comments(&verdict);
    copy(args, target::create(&args.output)?, &comments, first.drops())?;
    if !target::is_standard(&args.output) {
        terminal.line(&format!(
            "{}: {} packets, {} of them with comments. {}",
            args.output.display(),
            verdict.totals.packets,
            comments.len(),
            verdict.text()
        ));
    }
    Ok(())
}

/// Whether what is read from there is gone then. Asked of the name, since opening a pipe waits for whoever fills it.
fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| {
        let kind = meta.file_type();
        kind.is_fifo() || kind.is_socket() || kind.is_char_device()
    })
}

/// What is said of each packet. A finding stands at the packet it shows in and, in short, at the one that gave it away.
fn comments(verdict: &Verdict) -> HashMap<u64, Vec<String>> {
    let mut comments: HashMap<u64, Vec<String>> = HashMap::new();
    for finding in &verdict.findings {
        let (kind, at, by) = (finding.kind.name(), finding.at.number, finding.shown_by);
        comments.entry(at).or_default().push(format!("roxie: {kind}: {}", finding.text));
        if by != at && by != 0 {
            comments
                .entry(by)
                .or_default()
                .push(format!("roxie: {kind}: shows what happened to packet {at}"));
        }
    }
    if let Some(first) = verdict.first() {
        let text = format!("roxie: verdict: {}", verdict.text());
        comments.entry(first.at.number).or_default().push(text);
    }
    comments
}

fn copy(
    args: &AnnotateArgs,
    writer: Box<dyn Write>,
    comments: &HashMap<u64, Vec<String>>,
    drops: u64,
) -> Outcome {
    let mut source = source::open(&args.file)?;
    let mut writer = Writer::new(BufWriter::new(writer)).during("writing")?;
    while let Some(record) = source.next_record().during("reading")? {
        let packet = NewPacket {
            interface: record.interface,
            time_ns: record.time_ns,
            original_len: record.original_len,
            data: record.data,
            outbound: record.outbound,
        };
        let data = record.data.to_vec();
        let packet = NewPacket { data: &data, ..packet };
        let kept = record.comment.map(|comment| String::from_utf8_lossy(comment).into_owned());
        let said = comments.get(&record.number).into_iter().flatten();
        let texts: Vec<Cow<'_, str>> =
            kept.into_iter().map(Cow::Owned).chain(said.map(|text| Cow::Borrowed(text.as_str()))).collect();
        for interface in &source.interfaces()[writer.interfaces()..=packet.interface] {
            let (name, left_out) = (interface.name.as_deref(), interface.left_out.as_deref());
            writer.interface(name, left_out, interface.link_type).during("writing")?;
        }
        writer.packet(&packet, texts).during("writing")?;
    }
    if drops > 0 && writer.interfaces() > 0 {
        writer.drops(0, drops).during("writing")?;
    }
    writer.output().flush().during("writing")
}

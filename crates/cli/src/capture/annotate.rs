//! `roxie capture annotate`: the same packets with what was found as their comments, in pcapng, which Wireshark shows.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::{DataLink, Endianness, PcapError};

use super::analyse::{self, Analysis, Verdict};
use super::source::{self, Interface, Record};
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
    if args.file.as_os_str() == "-" {
        return Err(Failure::new("the capture is read twice, which standard input cannot be"));
    }
    let same = args.output.as_os_str() != "-"
        && args.file.canonicalize().ok().is_some_and(|file| args.output.canonicalize().ok() == Some(file));
    if same {
        return Err(Failure::new("the output would overwrite the input"));
    }
    let terminal = Terminal::stdout();
    let mut first = source::open(&args.file)?;
    let verdict = analyse::read(&mut first, Analysis::new(), |_, _| Ok(true))?;
    let comments = comments(&verdict);
    let writer: Box<dyn Write> = if args.output.as_os_str() == "-" {
        Box::new(io::stdout())
    } else {
        let name = args.output.display();
        Box::new(File::create(&args.output).during(&format!("creating {name}"))?)
    };
    copy(args, writer, &comments, first.drops())?;
    if args.output.as_os_str() != "-" {
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
    let writing = |result: Result<usize, PcapError>| result.map(|_| ()).during("writing");
    // Big-endian, in which pcap-file writes the two halves of a statistics block's time in their order.
    let mut writer =
        PcapNgWriter::with_endianness(BufWriter::new(writer), Endianness::Big).during("writing")?;
    let mut described = 0;
    let mut last_ns = 0;
    while let Some(record) = source.next_record().during("reading")? {
        let interface = record.interface;
        last_ns = record.time_ns;
        let block = packet(&record, comments.get(&record.number).map_or(&[][..], Vec::as_slice));
        while described <= interface {
            writing(writer.write_pcapng_block(description(&source.interfaces()[described])))?;
            described += 1;
        }
        writing(writer.write_pcapng_block(block))?;
    }
    if drops > 0 && described > 0 {
        let options = vec![InterfaceStatisticsOption::IsbOsDrop(drops)];
        let block = InterfaceStatisticsBlock { interface_id: 0, timestamp: last_ns, options };
        writing(writer.write_pcapng_block(block))?;
    }
    writer.into_inner().flush().during("writing")
}

fn packet(record: &Record<'_>, comments: &[String]) -> EnhancedPacketBlock<'static> {
    let kept = record.comment.map(|comment| String::from_utf8_lossy(comment).into_owned());
    let texts = kept.into_iter().chain(comments.iter().cloned());
    let mut options: Vec<_> = texts.map(|text| EnhancedPacketOption::Comment(Cow::Owned(text))).collect();
    if let Some(outbound) = record.outbound {
        options.push(EnhancedPacketOption::Flags(if outbound { 2 } else { 1 }));
    }
    EnhancedPacketBlock {
        interface_id: record.interface as u32,
        timestamp: Duration::from_nanos(record.time_ns),
        original_len: record.original_len as u32,
        data: Cow::Owned(record.data.to_vec()),
        options,
    }
}

fn description(interface: &Interface) -> InterfaceDescriptionBlock<'static> {
    let mut options = vec![InterfaceDescriptionOption::IfTsResol(9)];
    options.extend(interface.name.clone().map(|name| InterfaceDescriptionOption::IfName(Cow::Owned(name))));
    InterfaceDescriptionBlock {
        linktype: DataLink::from(u32::from(interface.link_type.0)),
        snaplen: 0,
        options,
    }
}

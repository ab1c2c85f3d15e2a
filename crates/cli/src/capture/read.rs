//! `roxie capture read`: prints packets as text.

use clap::{Args, value_parser};
use roxie_capture::filter::{Filter, QueuePairRules};
use roxie_capture::show::{Show, Style, Times};
use roxie_capture::source::Record;
use wire::capture::{NotRoce, Seen};

use super::Packets;
use super::filter::FilterArgs;
use super::input::{InputArgs, snap_to_show};
use super::pager::Output;
use crate::failure::{During, Outcome};
use crate::terminal::{self, Terminal};
use crate::words::{Word, one_of};

/// Show the packets of a capture file, of an interface or of a process
///
/// Reads pcap and pcapng, also compressed with gzip, zstd, lz4 or xz: either byte order, micro- and
/// nanoseconds, several interfaces; Ethernet with VLAN tags, Linux cooked captures (tcpdump -i any), raw IP,
/// PPP, ERF; RoCEv1, RoCEv2 and InfiniBand, also in VXLAN, GENEVE, GRE, ERSPAN, MPLS, PPPoE, GTP-U, NSH and
/// IP tunnels. Shows all readable packets of a damaged or cut file, and at the end a description of the
/// damage. Other traffic in the file is counted, not shown.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/capture-read.txt"))]
pub(super) struct ReadArgs {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Show packets that are not RoCEv2 as well
    #[arg(long, help_heading = "Which packets")]
    all: bool,
    /// With a number in this range: A..B, both included
    #[arg(long, value_name = "A..B", value_parser = parse_numbers, help_heading = "Which packets")]
    packet: Option<(u64, u64)>,
    /// Stop after N packets
    #[arg(short = 'c', long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Use only the first N bytes of each packet; 'headers' are 128
    #[arg(short = 's', long, value_name = "N", value_parser = snap_to_show)]
    snap: Option<u32>,
    /// Capture only the first of every N packets of an interface or a process
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(2..), requires = "live")]
    sample: Option<u32>,
    /// How packets are shown
    #[arg(long, value_parser = one_of(&STYLES), default_value = "line", value_name = "STYLE")]
    #[arg(help_heading = "Output")]
    format: Style,
    /// Same as --format json
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    json: bool,
    /// How times are shown
    #[arg(short = 't', long, value_parser = one_of(&TIMES), default_value = "day", value_name = "TIMES")]
    #[arg(help_heading = "Output")]
    time: Times,
    /// Write straight to the terminal
    #[arg(long, help_heading = "Output")]
    no_pager: bool,
}

/// The words of `--format`.
const STYLES: [Word<Style>; 5] = [
    ("line", Style::Line, "One line for each packet"),
    ("struct", Style::Struct, "The headers as the C structs of Linux's rxe driver"),
    ("tree", Style::Tree, "Every field of every header"),
    ("json", Style::Json, "One JSON object for each packet, on one line, with Wireshark's field names"),
    ("hex", Style::Hex, "One line for each packet, and its bytes"),
];
/// The words of `--time`.
const TIMES: [Word<Times>; 5] = [
    ("day", Times::Day, "Time of day, UTC"),
    ("relative", Times::Relative, "Seconds since the first packet"),
    ("delta", Times::Delta, "Seconds since the packet shown before"),
    ("epoch", Times::Epoch, "Seconds since 1970"),
    ("none", Times::None, "No times"),
];

/// Numbers of packets by the decision about them.
#[derive(Default)]
struct Counts {
    shown: u64,
    filtered: u64,
    others: u64,
    /// RoCEv2 packets that `--snap` cuts inside their headers.
    cut: u64,
}

pub(super) fn run(args: &ReadArgs) -> Outcome {
    let options = args.filter.options();
    let mut source = args.input.open(args.snap, options.clone(), args.sample)?;
    let style = if args.json { Style::Json } else { args.format };
    let mut show = Show::new(style, args.time, Terminal::stdout().colours());
    let show_others = args.all && options.is_empty();
    let rules = QueuePairRules { data_is_selected: args.input.is_process(), ..QueuePairRules::default() };
    let mut filter = Filter::new(options, rules);
    // Packets of a live capture are shown when they arrive.
    let live = args.input.is_live();
    let mut output = Output::new(!args.no_pager && !live, style == Style::Json);
    let mut counts = Counts::default();
    while args.count.is_none_or(|count| counts.shown < count) {
        let Some(record) = source.next_record().during("reading")? else { break };
        match args.packet {
            Some((_, last)) if record.number > last => break,
            Some((first, _)) if record.number < first => continue,
            _ => {}
        }
        let whole = record.data;
        let record = cut(record, args.snap);
        let seen = Seen::parse(record.decode_as, record.data);
        let is_cut = seen.is_err() && record.data.len() < whole.len();
        counts.cut += u64::from(is_cut && Seen::parse(record.decode_as, whole).is_ok());
        if !is_shown(&mut filter, show_others, &seen, &mut counts) {
            continue;
        }
        counts.shown += 1;
        let mut has_reader = output.append(|out| show.packet(out, &record, &seen)).during("writing")?;
        if live {
            has_reader = output.flush().during("writing")?;
        }
        if !has_reader {
            break;
        }
    }
    output.finish().during("writing")?;
    report(args, &source, &counts);
    args.input.check_end(&source)
}

fn parse_numbers(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err(format!("'{text}' is not a range of packet numbers: 7..12")),
    }
}

/// The record with at most `snap` bytes.
fn cut(record: Record<'_>, snap: Option<u32>) -> Record<'_> {
    let len = snap.map_or(usize::MAX, |snap| snap as usize).min(record.data.len());
    Record { data: &record.data[..len], ..record }
}

/// Whether a packet is shown; counts it otherwise.
fn is_shown(
    filter: &mut Filter,
    show_others: bool,
    seen: &Result<Seen<'_>, NotRoce>,
    counts: &mut Counts,
) -> bool {
    match seen {
        Ok(seen) => {
            let admitted = filter.admits(seen);
            counts.filtered += u64::from(!admitted);
            admitted
        }
        Err(_) => {
            counts.others += 1;
            show_others
        }
    }
}

/// Prints notes about damage, dropped packets and packets not shown.
fn report(args: &ReadArgs, source: &Packets, counts: &Counts) {
    let mut notes: Vec<String> = source.notes().collect();
    if source.drops() > 0 {
        notes
            .push(format!("the capture is incomplete: {} packets were not captured in time", source.drops()));
    }
    notes.extend(source.left_out().map(|what| format!("the capture is incomplete on purpose: {what}")));
    let timed = source.interfaces().iter().find_map(|interface| interface.times.as_deref());
    notes.extend(timed.map(|times| format!("receive times: {times}")));
    let unknown = source.interfaces().iter().find(|interface| interface.link_type.name().is_none());
    if let Some(interface) = unknown {
        notes.push(format!(
            "link type {} is not supported; its packets are not decoded",
            interface.link_type.0
        ));
    }
    if source.packets() == 0 {
        notes.push("the capture has no packets".to_owned());
    } else if counts.shown == 0 && counts.cut > 0 {
        notes.push(format!(
            "nothing to show: the headers of {} RoCEv2 packets are longer than --snap {}",
            counts.cut,
            args.snap.unwrap_or_default()
        ));
    } else if counts.shown == 0 {
        let (filtered, others) = (counts.filtered, counts.others);
        notes.push(format!(
            "nothing to show: {filtered} RoCEv2 packets filtered out, {others} of other kinds"
        ));
    } else if counts.others > 0 && !args.all && terminal::is_stderr() {
        notes.push(format!("{} packets are not RoCEv2 (--all shows them)", counts.others));
    }
    for note in notes {
        say!("roxie: {}: {note}", args.input.name());
    }
}

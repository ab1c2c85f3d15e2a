//! `roxie capture read`: packets of a file, one after the other, as text.

use std::io::{self, IsTerminal};

use clap::{Args, value_parser};
use wire::capture::{NotRoce, Seen};

use super::filter::{Filter, FilterArgs, Management};
use super::input::{InputArgs, front};
use super::pager::Output;
use super::show::{Show, Style, Times};
use super::source::{self, Record};
use crate::failure::{During, Outcome};
use crate::terminal::Terminal;

/// Show the packets of a capture file, of an interface or of a process
///
/// Reads pcap and pcapng: either byte order, micro- and nanoseconds, several interfaces; Ethernet with VLAN tags, Linux
/// cooked captures (tcpdump -i any) and raw IP. Of a damaged or cut file everything readable is shown, and said at the end
/// what was wrong with it. Other traffic in the file is counted, not shown.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Exit status:
  0 if packets were read, whatever they said; 1 with the reason if there is no capture.

Examples:
  roxie capture read trace.pcapng
          A line for each packet
  roxie capture read trace.pcapng --qp 0x11 --only-errors
          What went wrong on a queue pair
  roxie capture read -i eth0 -s headers
          Live, 128 bytes of each packet
  roxie capture read -p 4711 --qp 0x11
          What a process sends and receives on a queue pair; no root
  tcpdump -i any -w - udp port 4791 | roxie capture read -
          Live, from tcpdump
  roxie capture read trace.pcapng --json | jq 'select(.\"infiniband.aeth.syndrome\" > 31)'
          For programs; the names are Wireshark's
  roxie capture read trace.pcapng --format struct -c 1
          The headers as C structs")]
pub(super) struct ReadArgs {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Packets that are not RoCEv2 as well
    #[arg(long, help_heading = "Which packets")]
    all: bool,
    /// Stop after so many packets
    #[arg(short = 'c', long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Look at the first N bytes of each packet only; 'headers' are 128
    #[arg(short = 's', long, value_name = "N", value_parser = front)]
    snap: Option<u32>,
    /// Of an interface or a process, look at the first of every N packets only
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(2..), requires = "live")]
    sample: Option<u32>,
    /// How packets are shown
    #[arg(long, value_enum, default_value_t, value_name = "STYLE", help_heading = "Output")]
    format: Style,
    /// Same as --format json
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    json: bool,
    /// How times are shown
    #[arg(short = 't', long, value_enum, default_value_t, value_name = "TIMES", help_heading = "Output")]
    time: Times,
    /// Write straight to the terminal
    #[arg(long, help_heading = "Output")]
    no_pager: bool,
}

/// Packets by what became of them.
#[derive(Default)]
struct Counts {
    shown: u64,
    filtered: u64,
    others: u64,
    /// RoCEv2, but cut so short by `--snap` that this does not show.
    cut: u64,
}

pub(super) fn run(args: &ReadArgs) -> Outcome {
    let mut source = args.input.open(args.snap, &args.filter, args.sample)?;
    let terminal = Terminal::stdout();
    let style = if args.json { Style::Json } else { args.format };
    let mut show = Show::new(style, args.time, terminal);
    let management = match args.input.knows_queue_pairs() {
        true => Management::NamedOfChosen,
        false => Management::Named,
    };
    let mut filter = Filter::new(args.filter.clone(), management);
    let wants_others = args.all && args.filter.is_empty();
    // What comes in slowly shall be seen at once; a file does not come in slowly.
    let live = args.input.is_live();
    let mut output = Output::new(!args.no_pager && !live);
    let mut counts = Counts::default();
    let mut text = String::new();
    while args.count.is_none_or(|count| counts.shown < count) {
        let Some(record) = source.next_record().during("reading")? else { break };
        let whole = record.data;
        let record = cut(record, args.snap);
        let seen = Seen::parse(record.link_type, record.data);
        let is_cut = seen.is_err() && record.data.len() < whole.len();
        counts.cut += u64::from(is_cut && Seen::parse(record.link_type, whole).is_ok());
        if !wanted(&mut filter, wants_others, &seen, &mut counts) {
            continue;
        }
        counts.shown += 1;
        text.clear();
        show.packet(&mut text, &record, &seen);
        let mut readers = output.write(&text).during("writing")?;
        if live {
            readers = output.flush().during("writing")?;
        }
        if !readers {
            break;
        }
    }
    output.finish().during("writing")?;
    report(args, &source, &counts);
    source.check(&args.input.name())
}

fn cut(record: Record<'_>, snap: Option<u32>) -> Record<'_> {
    let len = snap.map_or(usize::MAX, |snap| snap as usize).min(record.data.len());
    Record { data: &record.data[..len], ..record }
}

fn wanted(
    filter: &mut Filter,
    wants_others: bool,
    seen: &Result<Seen<'_>, NotRoce>,
    counts: &mut Counts,
) -> bool {
    match seen {
        Ok(seen) => {
            let wanted = filter.admits(seen);
            counts.filtered += u64::from(!wanted);
            wanted
        }
        Err(_) => {
            counts.others += 1;
            wants_others
        }
    }
}

/// What the output does not show, for whoever reads it.
fn report<R: io::Read>(args: &ReadArgs, source: &source::Source<R>, counts: &Counts) {
    let mut notes: Vec<String> = source.notes().collect();
    if source.drops() > 0 {
        notes.push(format!("whoever captured this lost {} packets", source.drops()));
    }
    notes.extend(source.left_out().map(|what| format!("not every packet was captured: {what}")));
    let unknown = source.interfaces().iter().find(|interface| interface.link_type.name().is_none());
    if let Some(interface) = unknown {
        notes
            .push(format!("link type {} is not known here; its packets are not read", interface.link_type.0));
    }
    if source.packets() == 0 {
        notes.push("there are no packets in it".to_owned());
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
    } else if counts.others > 0 && !args.all && io::stderr().is_terminal() {
        notes.push(format!("{} packets are not RoCEv2 (--all shows them)", counts.others));
    }
    for note in notes {
        eprintln!("roxie: {}: {note}", args.input.name());
    }
}

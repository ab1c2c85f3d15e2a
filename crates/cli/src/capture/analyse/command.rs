//! `roxie capture analyse`: a file in, connections, findings and a verdict out.

use std::io::Read;
use std::time::{Duration, Instant};

use clap::Args;

use super::{Analysis, Verdict, summary};
use crate::capture::ahead::{self, Looked};
use crate::capture::clock;
use crate::capture::filter::FilterArgs;
use crate::capture::input::{InputArgs, front};
use crate::capture::pager::Output;
use crate::capture::source::Source;
use crate::failure::{During, Outcome};
use crate::terminal::{self, Progress, Terminal};

/// Packets between two looks at the clock.
const PROGRESS_PACKETS: u64 = 1 << 16;
/// Time between two updates of the progress line.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Say what happened on every connection of a capture, and what went wrong first
///
/// Follows each queue pair from whichever packet on the capture begins: messages, latencies, packets sent again with the cause (a lost
/// request, a lost acknowledgement, a NAK, a receiver that was not ready), duplicates, reordering, refused keys, path MTU,
/// congestion, handshakes and rejects. Memory does not grow with the length of the file.
#[derive(Debug, Args)]
#[command(after_long_help = "\
What an onlooker cannot know: packets lost behind the point of capture show only if somebody reacts to it. On UC and UD nobody does.

Exit status:
  0 if nothing went wrong; 3 if something did; 1 if the file could not be read, or
  the interface has gone.

Examples:
  roxie capture analyse trace.pcapng
          Connections, findings, verdict
  roxie capture analyse -i eth0 -s headers --seconds 10
          Of ten seconds of live traffic
  roxie capture analyse -p 4711
          Of a process that runs on roxie, until it ends; no root
  roxie capture analyse trace.pcapng --messages
          A line for each message as well
  roxie capture analyse trace.pcapng --json | jq -r .verdict
          For programs")]
pub(crate) struct AnalyseArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Look at the first N bytes of each packet of an interface or a process only; 'headers' are 128
    #[arg(short = 's', long, value_name = "N", value_parser = front, requires = "live")]
    snap: Option<u32>,
    /// A line for each message: verb, size, packets, latency
    #[arg(long, conflicts_with = "json")]
    messages: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Write straight to the terminal
    #[arg(long)]
    no_pager: bool,
}

pub(crate) fn run(args: &AnalyseArgs) -> Outcome<u8> {
    let terminal = Terminal::stdout();
    let mut source = args.input.open(args.snap, &FilterArgs::default(), None)?;
    let mut lines = String::new();
    let verdict = if args.messages {
        // Lines can be many: they go out as they come.
        let mut output = Output::new(!args.no_pager);
        let verdict = read(&mut source, Analysis::with_messages(), |analysis, _| {
            lines.clear();
            messages(&mut lines, analysis);
            output.write(&lines).during("writing")
        })?;
        output.write(&summary::text(&verdict, terminal)).during("writing")?;
        output.finish().during("writing")?;
        verdict
    } else {
        let verdict = with_progress(&mut source, Analysis::new(), |_, _| Ok(true))?;
        if args.json {
            terminal::print(&summary::json(&verdict).to_string());
        } else {
            let mut output = Output::new(!args.no_pager);
            output.write(&summary::text(&verdict, terminal)).during("writing")?;
            output.finish().during("writing")?;
        }
        verdict
    };
    for note in source.notes() {
        eprintln!("roxie: {}: {note}", args.input.name());
    }
    source.check(&args.input.name())?;
    Ok(if verdict.findings.is_empty() { 0 } else { 3 })
}

/// Feeds a whole file to an analysis. `each` is called after every packet, and says whether to go on.
pub(crate) fn read<R: Read + Send>(
    source: &mut Source<R>,
    mut analysis: Analysis,
    mut each: impl FnMut(&mut Analysis, &Looked<'_>) -> Outcome<bool>,
) -> Outcome<Verdict> {
    ahead::each(source, |packet| {
        analysis.feed_checked(&packet.record, &packet.seen, packet.icrc);
        each(&mut analysis, packet)
    })?;
    Ok(analysis.finish(source.drops(), source.left_out()))
}

/// As [`read`], while a person at a terminal sees how far it is.
pub(crate) fn with_progress<R: Read + Send>(
    source: &mut Source<R>,
    analysis: Analysis,
    mut each: impl FnMut(&mut Analysis, &Looked<'_>) -> Outcome<bool>,
) -> Outcome<Verdict> {
    let (start, progress, total) = (Instant::now(), Progress::stderr(), source.total_len());
    let mut shown = start;
    let verdict = read(source, analysis, |analysis, packet| {
        let number = packet.record.number;
        if number % PROGRESS_PACKETS == 0 && shown.elapsed() > PROGRESS_EVERY {
            shown = Instant::now();
            progress.show(&words(packet.offset, total, number, start));
        }
        each(analysis, packet)
    });
    progress.done();
    verdict
}

/// `[=====     ] 47 %, 1.2 GB/s, 12345678 packets`.
fn words(offset: u64, total: Option<u64>, packets: u64, start: Instant) -> String {
    let rate = offset as f64 / start.elapsed().as_secs_f64().max(1e-9) / 1e9;
    let bar = match total {
        Some(total) if total > 0 => {
            let percent = (offset * 100 / total).min(100) as usize;
            format!("[{:<20}] {percent} %, ", "=".repeat(percent / 5))
        }
        _ => String::new(),
    };
    format!("{bar}{rate:.2} GB/s, {packets} packets")
}

fn messages(out: &mut String, analysis: &mut Analysis) {
    use std::fmt::Write;
    for (half, message, at) in analysis.take_messages() {
        let half = &analysis.halves()[half];
        let again = if message.resent > 0 {
            format!(", {} packets sent again", message.resent)
        } else {
            String::new()
        };
        let packets = match (message.first.number, message.last.number) {
            (first, last) if first == last => format!("packet {first}"),
            (first, last) => format!("packets {first} to {last}"),
        };
        let answered = match at.number {
            number if number == message.last.number => String::new(),
            number => {
                let took = clock::span(at.ns.saturating_sub(message.last.ns));
                format!(", answered after {took} in packet {number}")
            }
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:>6} {} {} {} (PSN {} to {}), {packets}{answered}{again}",
            message.first.number,
            clock::time_of_day(message.first.ns),
            half.name(),
            message.words(),
            message.first_psn,
            message.last_psn
        );
    }
}

//! `roxie capture analyse`: prints connections, findings and a verdict for a capture.

use std::io::Read;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clap::Args;
use roxie_capture::analyse::{self, Analysis, Verdict};
use roxie_capture::decode::Decoded;
use roxie_capture::filter::FilterOptions;
use roxie_capture::source::Source;

use super::input::{InputArgs, snap_to_show};
use super::pager::Output;
use crate::failure::{During, Outcome};
use crate::terminal::{self, Progress, Terminal};

/// Packets between two readings of the clock.
const PROGRESS_PACKETS: u64 = 1 << 16;
/// Time between two updates of the progress line.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Say what happened on every connection of a capture, and what went wrong first
///
/// Follows each queue pair, also if the capture begins in the middle of its connection: messages, latencies,
/// retransmissions with their cause (a lost request, a lost ACK, a NAK, a receiver without posted receives),
/// duplicates, reordering, refused keys, path MTU, congestion, connection setup and rejects. Ends with a
/// verdict, how far the packets prove it, and the command to run next. Memory does not grow with the length
/// of the file.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/capture-analyse.txt"))]
pub(super) struct AnalyseArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Capture only the first N bytes of each packet of an interface or a process; 'headers' are 128
    #[arg(short = 's', long, value_name = "N", value_parser = snap_to_show, requires = "live")]
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

/// Runs the subcommand; returns its exit code.
pub(super) fn run(args: &AnalyseArgs) -> Outcome<u8> {
    let mut source = args.input.open(args.snap, FilterOptions::default(), None)?;
    let verdict =
        if args.messages { with_messages(args, &mut source)? } else { without_messages(args, &mut source)? };
    for note in source.notes() {
        say!("roxie: {}: {note}", args.input.name());
    }
    args.input.check_end(&source)?;
    Ok(if verdict.findings.is_empty() { 0 } else { 3 })
}

/// Prints each message when it is completed, then the summary.
fn with_messages<R: Read + Send>(args: &AnalyseArgs, source: &mut Source<R>) -> Outcome<Verdict> {
    let mut output = Output::new(!args.no_pager, false);
    let mut lines = String::new();
    let mut written = Ok(());
    let verdict = analyse::analyse(source, Analysis::with_messages(), |analysis, _| {
        lines.clear();
        analysis.write_messages(&mut lines);
        match output.write(&lines).during("writing") {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(failure) => {
                written = Err(failure);
                ControlFlow::Break(())
            }
        }
    })
    .during("reading")?;
    written?;
    output.write(&summary(args, &verdict)).during("writing")?;
    output.finish().during("writing")?;
    Ok(verdict)
}

fn summary(args: &AnalyseArgs, verdict: &Verdict) -> String {
    args.input.with_origin(|origin| verdict.summary(Terminal::stdout().colours(), origin))
}

/// Prints the result as text or JSON.
fn without_messages<R: Read + Send>(args: &AnalyseArgs, source: &mut Source<R>) -> Outcome<Verdict> {
    let verdict = with_progress(source, Analysis::new(), |_, _| {})?;
    if args.json {
        terminal::json(&args.input.with_origin(|origin| verdict.json(origin)));
    } else {
        let mut output = Output::new(!args.no_pager, false);
        output.write(&summary(args, &verdict)).during("writing")?;
        output.finish().during("writing")?;
    }
    Ok(verdict)
}

/// Analyses a source and shows the progress on a terminal. `each` is called after every packet.
pub(super) fn with_progress<R: Read + Send>(
    source: &mut Source<R>,
    analysis: Analysis,
    mut each: impl FnMut(&mut Analysis, &Decoded<'_>),
) -> Outcome<Verdict> {
    let (start, progress, total) = (Instant::now(), Progress::stderr(), source.total_len());
    let mut shown = start;
    let verdict = analyse::analyse(source, analysis, |analysis, packet| {
        let number = packet.record.number;
        if number % PROGRESS_PACKETS == 0 && shown.elapsed() > PROGRESS_EVERY {
            shown = Instant::now();
            progress.show(&progress_line(packet.offset, total, number, start));
        }
        each(analysis, packet);
        ControlFlow::Continue(())
    });
    progress.done();
    verdict.during("reading")
}

/// `[=====     ] 47 %, 1.2 GB/s, 12345678 packets`.
fn progress_line(offset: u64, total: Option<u64>, packets: u64, start: Instant) -> String {
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

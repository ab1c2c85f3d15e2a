//! `roxie capture report`: the outcome of an analysis as one HTML page with plots, which needs nothing else to be looked at, or
//! the plots alone as a drawing.

mod colours;
mod drawing;
mod page;
mod plot;
mod png;
mod series;
mod svg;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use wire::Psn;
use wire::capture::Seen;

use super::analyse::{self, Analysis, At, Verdict};
use super::{source, target};
use crate::failure::{During, Failure, Outcome};
use crate::terminal::Terminal;
use drawing::Sheet;
use series::{Points, Series};

/// Directions that are plotted; further ones are in the table only.
const PLOTTED_MAX: usize = 256;

/// Make an HTML page of a capture: verdict, connections, and plots of throughput, latency and packet sequence numbers
///
/// The page stands alone: no scripts, nothing loaded from anywhere. Packets sent again are marked in the plots. A name that ends in
/// .svg or .png gives the plots alone.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  roxie capture report trace.pcapng -o trace.html
          A page to look at and to send around
  roxie capture report trace.pcapng -o trace.svg
          The plots as a drawing
  roxie capture report trace.pcapng -o trace.png
          The same as pixels
  roxie capture report trace.pcapng -o - | ssh host 'cat > trace.html'
          The page on standard output")]
pub(super) struct ReportArgs {
    /// The file, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The page to write, or the drawing if its name ends in .svg or .png; - writes the page to standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,
}

/// What is written.
enum Form {
    Page,
    Drawing,
    Pixels,
}

/// What is plotted of one direction.
#[derive(Default)]
struct Trace {
    throughput: Series,
    /// Requests, by how many numbers they are behind the first.
    psn: Points,
    /// Requests that are no further than those before: sent again or overtaken.
    again: Points,
    acks: Points,
    first: Option<Psn>,
    highest: i64,
}

/// What is plotted of a capture.
#[derive(Default)]
struct Traces {
    directions: Vec<Trace>,
    latency: Points,
}

pub(super) fn run(args: &ReportArgs) -> Outcome {
    let form = Form::of(&args.output)?;
    target::spare_input(&args.file, &args.output)?;
    let terminal = Terminal::stdout();
    let mut source = source::open(&args.file)?;
    let mut traces = Traces::default();
    let verdict = analyse::with_progress(&mut source, Analysis::with_messages(), |analysis, packet| {
        let at = At { number: packet.record.number, ns: packet.record.time_ns };
        if let (Ok(seen), Some(direction)) = (&packet.seen, analysis.current()) {
            traces.packet(analysis, direction, at, seen);
        }
        for (_, message, done) in analysis.take_messages() {
            if done.number != message.last.number {
                traces.latency.add(done.ns, done.ns.saturating_sub(message.last.ns) as f64);
            }
        }
        Ok(true)
    })?;
    if verdict.totals.roce == 0 {
        return Err(Failure::new(format!("{}: {}", args.file.display(), verdict.text())));
    }
    let name = args.file.file_name().map_or_else(|| "standard input".into(), |name| name.to_string_lossy());
    let report = match form {
        Form::Drawing => Sheet::new(&name, &verdict, &traces).svg().into_bytes(),
        Form::Pixels => png::png(&Sheet::new(&name, &verdict, &traces))?,
        Form::Page => page::html(&name, &verdict, &traces, source.notes()).into_bytes(),
    };
    let mut output = target::create(&args.output)?;
    let written = output.write_all(&report).and_then(|()| output.flush());
    written.during(&format!("writing {}", args.output.display()))?;
    if !target::is_standard(&args.output) {
        terminal.line(&format!("{}: {}", args.output.display(), verdict.text()));
    }
    Ok(())
}

impl Form {
    /// What a name asks for; a page, if it has no ending.
    fn of(output: &Path) -> Outcome<Self> {
        match output.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase()).as_deref() {
            None | Some("html" | "htm") => Ok(Self::Page),
            Some("svg") => Ok(Self::Drawing),
            Some("png") => Ok(Self::Pixels),
            Some(other) => {
                let failure = Failure::new(format!("{}: nothing is written as .{other}", output.display()));
                Err(failure.hint("there are .html (or .htm), .svg and .png").code(2))
            }
        }
    }
}

impl Traces {
    fn packet(&mut self, analysis: &Analysis, direction: usize, at: At, seen: &Seen<'_>) {
        if direction >= PLOTTED_MAX {
            return;
        }
        while self.directions.len() <= direction {
            self.directions.push(Trace::default());
        }
        let Ok(packet) = &seen.packet else { return };
        self.directions[direction].throughput.add(at.ns, seen.payload_len() as u64);
        if packet.row().is_request() {
            self.directions[direction].request(packet.bth.psn, at);
        } else if let Some(peer) = analysis.halves()[direction].peer
            && let Some(trace) = self.directions.get_mut(peer)
            && let Some(first) = trace.first
        {
            let behind = trace.unwrapped(packet.bth.psn, first);
            trace.acks.add(at.ns, behind as f64);
        }
    }
}

impl Trace {
    fn request(&mut self, psn: Psn, at: At) {
        let new = self.first.is_none();
        let first = *self.first.get_or_insert(psn);
        let behind = self.unwrapped(psn, first);
        if new || behind > self.highest {
            self.highest = behind;
            self.psn.add(at.ns, behind as f64);
        } else {
            self.again.add(at.ns, behind as f64);
        }
    }

    /// How far `psn` is from the first, however often the circle closed in between.
    fn unwrapped(&self, psn: Psn, first: Psn) -> i64 {
        let highest = Psn::new((i64::from(first.value()) + self.highest) as u32);
        self.highest + i64::from(psn.distance_from(highest))
    }
}

/// The directions worth a plot, busiest first.
fn busiest(verdict: &Verdict, most: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..verdict.halves.len().min(PLOTTED_MAX)).collect();
    order.sort_by_key(|index| std::cmp::Reverse(verdict.halves[*index].counts.bytes));
    order.truncate(most);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_when_the_circle_closes() {
        let mut trace = Trace::default();
        for (n, psn) in (0u64..).zip([0xff_fffe, 0xff_ffff, 0, 1, 0, 5]) {
            trace.request(Psn::new(psn), At { number: n + 1, ns: n });
        }
        assert_eq!(trace.highest, 7);
        assert_eq!(trace.again.list(), [(4, 2.0)]);
    }
}

//! `roxie capture report`: writes the result of an analysis as an HTML page or an SVG drawing.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use roxie_capture::analyse::{Analysis, Origin};
use roxie_capture::report::{Report, Traces};

use super::analyse::with_progress;
use super::{DecodeArgs, open, target};
use crate::failure::{During, Failure, Outcome};
use crate::terminal::Terminal;

/// Make an HTML page of a capture: verdict, connections, and plots of throughput, latency and packet sequence
/// numbers
///
/// The page has no scripts and loads no other files. Retransmitted packets are marked in the plots. A name
/// that ends in .svg gives the plots alone.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/capture-report.txt"))]
pub(super) struct ReportArgs {
    /// The file, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The page to write, or the drawing if its name ends in .svg; - writes the page to standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    decode_as: DecodeArgs,
}

/// Format of the output.
enum Format {
    Html,
    Svg,
}

pub(super) fn run(args: &ReportArgs) -> Outcome {
    let format = Format::of(&args.output)?;
    target::spare_input(&args.file, &args.output)?;
    let mut source = args.decode_as.apply(open(&args.file)?)?;
    let mut traces = Traces::default();
    let verdict = with_progress(&mut source, Analysis::with_messages(), |analysis, packet| {
        traces.add(analysis, packet);
    })?;
    if verdict.totals.roce == 0 {
        return Err(Failure::new(format!("{}: {}", args.file.display(), verdict.text())));
    }
    let name = args.file.file_name().map_or_else(|| "standard input".into(), |name| name.to_string_lossy());
    let notes: Vec<String> = source.notes().collect();
    let file = args.file.to_string_lossy();
    let report = Report {
        name: &name,
        origin: Origin::File(&file),
        verdict: &verdict,
        traces: &traces,
        notes: &notes,
    };
    let bytes = match format {
        Format::Html => report.html().into_bytes(),
        Format::Svg => report.svg().into_bytes(),
    };
    let mut output = target::create(&args.output)?;
    let written = output.write_all(&bytes).and_then(|()| output.flush());
    written.during(&format!("writing {}", args.output.display()))?;
    if !target::is_standard(&args.output) {
        Terminal::stdout().line(&format!("{}: {}", args.output.display(), verdict.text()));
    }
    Ok(())
}

impl Format {
    /// The format for the ending of a file name; HTML without an ending.
    fn of(output: &Path) -> Outcome<Self> {
        match output.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase()).as_deref() {
            None | Some("html" | "htm") => Ok(Self::Html),
            Some("svg") => Ok(Self::Svg),
            Some(other) => {
                let failure = Failure::new(format!("{}: .{other} is not supported", output.display()));
                Err(failure.hint("use .html (or .htm) or .svg").code(2))
            }
        }
    }
}

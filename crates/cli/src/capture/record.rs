//! `roxie capture record`: an interface's traffic into pcapng files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::filter::FilterArgs;
use super::input::{LiveArgs, snap};
use super::live::{CUT_OFF, Live};
use super::target;
use crate::failure::{During, Failure, Outcome};
use crate::terminal::Terminal;

/// Write the traffic of an interface or of a process to a pcapng file
///
/// RoCEv2 packets of both directions, as the wire has them: bursts that the kernel still has in one buffer are taken apart. What was
/// lost because the file was written too slowly is counted in the file and said at the end.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  roxie capture record -i eth0 -o trace.pcapng -s headers
          128 bytes of each packet, until Ctrl-C
  roxie capture record -i eth0 -o ring.pcapng --rotate-size 100 --files 10
          The last gigabyte: ring.pcapng, ring.1.pcapng, ...
  roxie capture record -i eth0 -o naks.pcapng -s headers --nak
          Refusals only; nothing else is copied
  roxie capture record -p 4711 -o trace.pcapng
          What a process on roxie sends and receives, until it ends; no root

Exit status:
  0 if --seconds, a signal or the end of the process has ended it; 1 if it could not go on.")]
pub(super) struct RecordArgs {
    #[command(flatten)]
    live: LiveArgs,
    /// Where to write, or - for standard output
    #[arg(short = 'o', long, value_name = "FILE", requires = "live")]
    output: PathBuf,
    /// Keep the first N bytes of each packet: 96 at least, or 'headers', which are 128
    #[arg(short = 's', long, value_name = "N", value_parser = snap)]
    snap: Option<u32>,
    /// Write the first of every N packets only
    ///
    /// Packets are counted before all other conditions: on each CPU for an interface, in each device for a process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    sample: Option<u32>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Begin another file when this one has so many millions of bytes
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..1_000_000))]
    rotate_size: Option<u64>,
    /// Begin another file after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    rotate_seconds: Option<u64>,
    /// Files to keep; the oldest is written over
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    files: Option<u32>,
}

/// Unit of `--rotate-size`.
const MB: u64 = 1_000_000;
/// Time between two updates of the progress line.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

pub(super) fn run(args: &RecordArgs) -> Outcome {
    // Clap asks for one, or the other.
    let Some(place) = args.live.place() else { return Ok(()) };
    let name = &place.name();
    let rotates = args.rotate_size.is_some() || args.rotate_seconds.is_some();
    let to_stdout = target::is_standard(&args.output);
    if rotates && to_stdout {
        return Err(Failure::new("standard output cannot be rotated").code(2));
    }
    if args.files.is_some() && !rotates {
        return Err(Failure::new("--files needs --rotate-size or --rotate-seconds").code(2));
    }
    let wanted = args.live.wanted(args.snap, &args.filter, args.sample);
    // First what can fail without having disturbed anything.
    let mut file = open(&args.output, 0)?;
    let mut live = Live::new(&place, &wanted)?;
    let terminal = if to_stdout { Terminal::plain() } else { Terminal::stdout() };
    let (mut opened, mut shown, mut number) = (Instant::now(), Instant::now(), 0);
    let (mut in_file, mut total) = (0, 0);
    loop {
        let bytes = live.next_bytes().during(name)?;
        if bytes.is_empty() {
            break;
        }
        // Whoever follows the file sees what there is.
        file.write_all(bytes).and_then(|()| file.flush()).map_err(|error| {
            let what = format!("writing {}: {error}", args.output.display());
            Failure::new(what).hint("the capture has ended; what the file has until there can be read")
        })?;
        in_file += bytes.len() as u64;
        total += bytes.len() as u64;
        let full = args.rotate_size.is_some_and(|size| in_file >= size * MB);
        let old = args.rotate_seconds.is_some_and(|seconds| opened.elapsed().as_secs() >= seconds);
        if full || old {
            number = (number + 1) % args.files.unwrap_or(u32::MAX);
            file = open(&args.output, number)?;
            live.next_section().during("pcapng")?;
            (opened, in_file) = (Instant::now(), 0);
        }
        if shown.elapsed() > PROGRESS_EVERY {
            shown = Instant::now();
            terminal.progress(&format!("{} packets, {total} bytes", live.packets()));
        }
    }
    terminal.progress_done();
    let lost = live.lost().during(name)?;
    let sample = args.sample.map(|sample| format!(", a sample: one of {sample}")).unwrap_or_default();
    eprintln!("{} packets captured, {lost} lost{sample}", live.packets());
    if lost > 0 && live.has_rested() {
        eprintln!(
            "roxie: no CPU was idle, so the capture took a part of one only: --cpu 100 loses less, and slows down the traffic"
        );
    }
    if live.has_failed() {
        return Err(Failure::new(format!("{name}: {CUT_OFF}")));
    }
    Ok(())
}

/// The file of that number: `trace.pcapng`, `trace.1.pcapng`, ...
fn open(path: &Path, number: u32) -> Outcome<Box<dyn Write>> {
    if number == 0 {
        return target::create(path);
    }
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    target::create(&path.with_extension(format!("{number}.{extension}")))
}

//! `roxie capture record`: writes live traffic to pcapng files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use roxie_capture::live::{LiveCapture, Options};

use super::filter::FilterArgs;
use super::input::{LiveArgs, snap_to_record};
use super::{start, target};
use crate::failure::{During, Failure, Outcome};
use crate::terminal::Terminal;

/// Write the traffic of an interface or of a process to a pcapng file
///
/// Records RoCEv2 packets of both directions as they are on the wire: bursts of the kernel are split into
/// packets. Packets that could not be read in time are counted in the file and in the last message.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/capture-record.txt"))]
pub(super) struct RecordArgs {
    #[command(flatten)]
    live: LiveArgs,
    /// Where to write, or - for standard output
    #[arg(short = 'o', long, value_name = "FILE", requires = "live")]
    output: PathBuf,
    /// Record the first N bytes of each packet: 96 at least, or 'headers', which are 128
    #[arg(short = 's', long, value_name = "N", value_parser = snap_to_record)]
    snap: Option<u32>,
    /// Record only the first of every N packets
    ///
    /// Packets are counted before all other conditions: on each CPU for an interface, in each device for a
    /// process.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(2..))]
    sample: Option<u32>,
    /// Take receive times from the driver: the NIC's timestamp, or the time in the driver's receive loop
    ///
    /// By an XDP program, which must be the only one on the interface and runs in the driver: 'roxie doctor'
    /// lists the receive hints of each interface. While it is attached, the kernel merges no received packets
    /// (GRO), which costs the receivers CPU time. Attaching it resets the queues of some NICs.
    #[arg(long, requires = "interface", conflicts_with = "pid")]
    nic_time: bool,
    /// Also record the packets that hooks of the process do not pass, with the verdict
    ///
    /// A received packet is recorded twice then: as it arrived, and with the verdict of the ingress hook. The
    /// verdict is a packet option and a comment in the file. --sample does not apply to the verdicts.
    #[arg(long, requires = "pid")]
    verdicts: bool,
    #[command(flatten)]
    filter: FilterArgs,
    /// Begin another file when this one has this many millions of bytes
    #[arg(long, value_name = "MB", value_parser = value_parser!(u64).range(1..1_000_000))]
    rotate_size: Option<u64>,
    /// Files to keep; the oldest is overwritten
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    files: Option<u32>,
}

/// Unit of `--rotate-size`.
const MB: u64 = 1_000_000;
/// Time between two updates of the progress line.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Runs the subcommand.
pub(super) fn run(args: &RecordArgs) -> Outcome {
    // Clap requires one of both options.
    let Some(point) = args.live.point() else { return Ok(()) };
    let name = &point.name();
    check_rotation(args)?;
    let options = args.live.options(args.snap, args.filter.options(), args.sample);
    let options = Options { nic_time: args.nic_time, verdicts: args.verdicts, ..options };
    // The file first: an error must not disturb the captured traffic. It is emptied after the start: a
    // capture that cannot start neither leaves an empty file nor destroys an earlier one.
    let reserved = target::Reserved::new(&args.output)?;
    let mut capture = start(&point, options)?;
    let output = reserved.begin()?;
    let mut files = Files { args, output, number: 0, len: 0 };
    let to_stdout = target::is_standard(&args.output);
    let terminal = if to_stdout { Terminal::plain() } else { Terminal::stdout() };
    let (mut shown, mut total) = (Instant::now(), 0);
    loop {
        let bytes = capture.next_bytes().during(name)?;
        if bytes.is_empty() {
            break;
        }
        total += bytes.len() as u64;
        files.write(bytes)?;
        if files.is_full() {
            files.rotate()?;
            capture.next_section().during("pcapng")?;
        }
        if shown.elapsed() > PROGRESS_EVERY {
            shown = Instant::now();
            terminal.progress(&format!("{} packets, {total} bytes", capture.packets()));
        }
    }
    terminal.progress_done();
    summarize(args, name, &capture)
}

/// Prints the numbers of packets; fails if the capture ended early.
fn summarize(args: &RecordArgs, name: &str, capture: &LiveCapture) -> Outcome {
    let lost = capture.dropped().during(name)?;
    let sample = args.sample.map(|sample| format!(", a sample: one of {sample}")).unwrap_or_default();
    say!("{} packets captured, {lost} lost{sample}", capture.packets());
    if let Some(times) = capture.receive_times() {
        say!(
            "receive times: {} by the NIC, {} in the driver, {} in the network stack",
            times.nic,
            times.driver,
            times.stack
        );
    }
    if lost > 0 && capture.has_paused() {
        say!(
            "roxie: no CPU was idle, and the reader kept to its CPU limit: --cpu 100 loses fewer packets \
             and slows down the traffic"
        );
    }
    match capture.failure() {
        Some(failure) => Err(Failure::new(format!("{name}: {failure}"))),
        None => Ok(()),
    }
}

/// Refuses combinations of rotation options that clap accepts.
fn check_rotation(args: &RecordArgs) -> Outcome {
    let rotates = args.rotate_size.is_some();
    if rotates && target::is_standard(&args.output) {
        return Err(Failure::new("standard output cannot be rotated").hint("give -o FILE").code(2));
    }
    if args.files.is_some() && !rotates {
        return Err(Failure::new("--files needs --rotate-size").code(2));
    }
    Ok(())
}

/// The files being written.
struct Files<'a> {
    args: &'a RecordArgs,
    output: Box<dyn Write>,
    number: u32,
    /// Bytes in the present file.
    len: u64,
}

impl Files<'_> {
    /// Writes complete blocks. Programs that follow the file can read them at once.
    fn write(&mut self, bytes: &[u8]) -> Outcome {
        self.len += bytes.len() as u64;
        self.output.write_all(bytes).and_then(|()| self.output.flush()).map_err(|error| {
            let what = format!("writing {}: {error}", self.args.output.display());
            Failure::new(what).hint("the capture has ended; the packets written before can be read")
        })
    }

    /// Whether another file is due.
    fn is_full(&self) -> bool {
        self.args.rotate_size.is_some_and(|size| self.len >= size * MB)
    }

    /// Begins another file, or overwrites the oldest.
    fn rotate(&mut self) -> Outcome {
        self.number = (self.number + 1) % self.args.files.unwrap_or(u32::MAX);
        self.output = open(&self.args.output, self.number)?;
        self.len = 0;
        Ok(())
    }
}

/// Creates the file of a number: `trace.pcapng`, `trace.1.pcapng`, ...
fn open(path: &Path, number: u32) -> Outcome<Box<dyn Write>> {
    if number == 0 {
        return target::create(path);
    }
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    target::create(&path.with_extension(format!("{number}.{extension}")))
}

//! `roxie capture`: command lines, progress and exit codes around the library `roxie_capture`.

mod analyse;
mod annotate;
mod filter;
pub(crate) mod input;
mod pager;
mod read;
mod record;
mod report;
mod target;

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use nix::sys::signal::Signal;
use roxie_capture::live::{CapturePoint, LiveCapture, LiveError, Options};
use roxie_capture::source::{self, DecodeRule, OpenError, Source};
use sys::lower_priority;

use crate::ending::Ending;
use crate::engines::engines_of;
use crate::failure::{During, Failure, Outcome};

/// Record, decode and analyse RoCEv2 traffic
///
/// Captures network interfaces and processes, and reads pcap and pcapng files of any program: tcpdump,
/// Wireshark, dumpcap on a mirrored switch port, a NIC's sniffer.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Read(read::ReadArgs),
    Record(record::RecordArgs),
    #[command(alias = "analyze")]
    Analyse(analyse::AnalyseArgs),
    Annotate(annotate::AnnotateArgs),
    Report(report::ReportArgs),
}

/// A source of packets: a file, standard input, or a live capture.
pub(crate) type Packets = Source<Box<dyn Read + Send>>;

/// The lowest priority that still runs on a busy machine.
const NICE: i32 = 19;

/// Runs the subcommand.
///
/// # Errors
/// If the capture cannot be read or started, or the output cannot be written.
pub(crate) fn run(args: &CaptureArgs) -> Outcome<ExitCode> {
    match &args.command {
        Command::Read(args) => read::run(args).map(|()| ExitCode::SUCCESS),
        Command::Record(args) => record::run(args).map(|()| ExitCode::SUCCESS),
        Command::Annotate(args) => annotate::run(args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(args).map(|()| ExitCode::SUCCESS),
        Command::Analyse(args) => analyse::run(args).map(ExitCode::from),
    }
}

/// Starts a live capture that SIGINT, SIGTERM and SIGHUP end in order.
pub(crate) fn start(point: &CapturePoint, options: Options) -> Outcome<LiveCapture> {
    // From here on a signal ends the capture and not the process: captured packets are still written.
    let ending = Ending::by(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let stop = Some(Arc::new(ending.as_fd().try_clone_to_owned().during("signals")?));
    start_unattended(point, Options { stop, ..options })
}

/// Starts a live capture at the lowest priority of the calling thread; `ROXIE_TAP` selects how it is
/// attached.
pub(crate) fn start_unattended(point: &CapturePoint, mut options: Options) -> Outcome<LiveCapture> {
    options.attachment = input::attachment(std::env::var_os(input::ATTACHMENT).as_deref())?;
    options.notify = Some(|message| say!("roxie: {message}"));
    // The captured programs come first: packets that find the buffer full are counted. Fails if the user has
    // set a lower priority already.
    let _ = lower_priority(NICE);
    LiveCapture::new(point, options).map_err(cannot_capture)
}

/// What the user says of packets that a file does not describe.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DecodeArgs {
    /// Decode as: udp.port==1021,rocev2 or linktype==147,ethernet (may be given several times)
    ///
    /// The form is that of tshark. A UDP port carries rocev2, vxlan, vxlan-gpe, geneve, mpls or gtp, in both
    /// directions; up to 8 ports, also registered ones. A link type is ethernet, raw, sll, sll2, infiniband,
    /// ppp or erf.
    #[arg(short = 'd', long = "decode-as", value_name = "RULE")]
    rules: Vec<DecodeRule>,
}

impl DecodeArgs {
    /// The same source, decoded by these rules.
    pub(crate) fn apply(&self, mut source: Packets) -> Outcome<Packets> {
        source.decode_as(&self.rules).map_err(|error| Failure::new(error.to_string()).code(2))?;
        Ok(source)
    }
}

/// Opens a file, or standard input for `-`. Errors name it.
pub(crate) fn open(path: &Path) -> Outcome<Packets> {
    let name = if target::is_standard(path) { "standard input".into() } else { path.display().to_string() };
    source::open(path).map_err(|error| cannot_open(error).of(&format!("reading {name}")))
}

/// The failure to open a file, with what the user can do about it.
pub(crate) fn cannot_open(error: OpenError) -> Failure {
    Failure::new(error.to_string()).hint_if(error.remedy())
}

/// The failure to start a live capture, with what the user can do about it.
fn cannot_capture(error: LiveError) -> Failure {
    let failure = Failure::new(error.to_string());
    match &error {
        // `engines` finds out why: no such process, another user, another network namespace.
        LiveError::NoDevice { pid } | LiveError::Connect { pid, .. } => {
            engines_of(*pid).err().unwrap_or(failure)
        }
        LiveError::TooManyHosts { .. } => failure.code(2),
        _ => failure.hint_if(error.remedy()),
    }
}

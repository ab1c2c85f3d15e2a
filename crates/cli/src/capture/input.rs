//! Where packets come from: a file, standard input, or an interface that is being listened to.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use bpf::Tap;
use clap::{Args, value_parser};

use super::filter::FilterArgs;
use super::live::PERCENT;
use super::source::{self, Source};
use super::{Place, Wanted, listen};
use crate::failure::Outcome;

/// What `-s headers` means.
const HEADERS_LEN: u32 = 128;

/// A source of packets on the command line.
#[derive(Clone, Debug, Args)]
pub(crate) struct InputArgs {
    /// The file, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "live", conflicts_with = "live")]
    file: Option<PathBuf>,
    #[command(flatten)]
    live: LiveArgs,
}

/// What to listen to, and how, on the command line.
#[derive(Clone, Debug, Args)]
pub(crate) struct LiveArgs {
    /// Listen on this network interface, both directions, until Ctrl-C (needs root)
    ///
    /// Sees what sockets send and what XDP programs have passed; AF_XDP sockets are by-passed by the network stack and so by this.
    #[arg(short = 'i', long, value_name = "IF", group = "live")]
    interface: Option<String>,
    /// Listen to a process that runs on roxie, both directions, until Ctrl-C or its end; without privileges
    ///
    /// Sees what comes in before the process's hooks and what leaves after them, whichever port it has.
    #[arg(short = 'p', long, value_name = "PID", group = "live", conflicts_with = "interface")]
    pid: Option<u32>,
    /// Stop listening after so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "live")]
    seconds: Option<Duration>,
    /// Copies wait in so many MiB, 64 of an interface and 16 of a process if not given; what finds no room is counted
    #[arg(short = 'B', long, value_name = "MIB", value_parser = buffer, requires = "live")]
    buffer: Option<u32>,
    /// Of a CPU that others need, take so many percent for reading
    ///
    /// Where a CPU is idle, the capture takes what it needs. Where none is, it would take from those it looks at: it stops there, and
    /// packets that find no room in the meantime are counted as lost. 100: take everything, whatever it costs them.
    #[arg(long, value_name = "PERCENT", default_value_t = PERCENT, value_parser = value_parser!(u32).range(1..=100))]
    cpu: u32,
}

impl LiveArgs {
    /// Where to listen, if anywhere.
    pub(crate) fn place(&self) -> Option<Place> {
        match (&self.interface, self.pid) {
            (Some(netdev), _) => Some(Place::Netdev(netdev.clone())),
            (None, Some(pid)) => Some(Place::Process(pid)),
            (None, None) => None,
        }
    }

    /// What to copy: only what `filter` asks for, and `snap` bytes of each packet, of the first of every `sample` packets.
    pub(crate) fn wanted(&self, snap: Option<u32>, filter: &FilterArgs, sample: Option<u32>) -> Wanted {
        let (filter, duration) = (filter.clone(), self.seconds);
        Wanted { snap, filter, sample, duration, buffer: self.buffer, cpu: Some(self.cpu) }
    }
}

impl InputArgs {
    /// Opens the file or starts to listen, as [`LiveArgs::wanted`] has it.
    pub(crate) fn open(
        &self,
        snap: Option<u32>,
        filter: &FilterArgs,
        sample: Option<u32>,
    ) -> Outcome<Source<Box<dyn Read + Send>>> {
        match self.live.place() {
            Some(place) => listen(&place, &self.live.wanted(snap, filter, sample)),
            None => source::open(&self.file.clone().unwrap_or_else(|| PathBuf::from("-"))),
        }
    }

    /// Whether `--qp` has been looked at by a process, which knows its queue pairs.
    pub(crate) fn knows_queue_pairs(&self) -> bool {
        self.live.pid.is_some()
    }

    /// Packets come in as they are sent.
    pub(crate) fn is_live(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.as_os_str() == "-")
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        match (&self.file, self.live.place()) {
            (Some(file), _) if file.as_os_str() != "-" => file.display().to_string(),
            (None, Some(place)) => place.name(),
            _ => "standard input".to_owned(),
        }
    }
}

/// Bytes to look at of each packet: a number, or `headers`.
pub(crate) fn front(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("0 bytes show nothing".to_owned()),
        Ok(len) => Ok(len),
        Err(_) if text == "headers" => Ok(HEADERS_LEN),
        Err(_) => Err("a number of bytes, or 'headers'".to_owned()),
    }
}

/// Bytes to keep of each packet: as many as its headers may have at least.
pub(crate) fn snap(text: &str) -> Result<u32, String> {
    let too_few = || format!("headers have up to {} bytes", Tap::SNAP_MIN);
    front(text).and_then(|len| if len < Tap::SNAP_MIN { Err(too_few()) } else { Ok(len) })
}

/// MiB of a ring.
fn buffer(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(mib) if mib <= 1024 && mib.is_power_of_two() => Ok(mib),
        _ => Err("a power of two from 1 to 1024".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds: 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

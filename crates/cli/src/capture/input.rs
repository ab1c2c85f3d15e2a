//! Where packets come from: a file, standard input, or an interface that is being listened to.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::filter::FilterArgs;
use super::source::{self, Source};
use super::{Place, Wanted, listen};
use crate::failure::Outcome;

/// A source of packets on the command line.
#[derive(Clone, Debug, Args)]
pub(crate) struct InputArgs {
    /// The file, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "live")]
    file: Option<PathBuf>,
    /// Listen on this network interface, both directions, until Ctrl-C (needs root)
    ///
    /// Sees what sockets send and what XDP programs have passed; AF_XDP sockets are by-passed by the network stack and so by this.
    #[arg(short = 'i', long, value_name = "IF", group = "live", conflicts_with = "file")]
    interface: Option<String>,
    /// Listen to a process that runs on roxie, both directions, until Ctrl-C or its end; without privileges
    ///
    /// Sees what comes in before the process's hooks and what leaves after them, whichever port it has.
    #[arg(short = 'p', long, value_name = "PID", group = "live", conflicts_with_all = ["file", "interface"])]
    pid: Option<u32>,
    /// Stop listening after so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "live")]
    seconds: Option<Duration>,
    /// Copies of an interface's packets wait in so many MiB, 64 if not given; what finds no room is counted
    #[arg(short = 'B', long, value_name = "MIB", value_parser = buffer, requires = "interface")]
    buffer: Option<u32>,
}

impl InputArgs {
    /// Opens the file or starts to listen: then only what `filter` asks for is copied, and `snap` bytes of each packet, of the
    /// first of every `sample` packets.
    pub(crate) fn open(
        &self,
        snap: Option<u32>,
        filter: &FilterArgs,
        sample: Option<u32>,
    ) -> Outcome<Source<Box<dyn Read + Send>>> {
        let Some(place) = self.place() else {
            return source::open(&self.file.clone().unwrap_or_else(|| PathBuf::from("-")));
        };
        let (filter, duration) = (filter.clone(), self.seconds);
        listen(&place, &Wanted { snap, filter, sample, duration, buffer: self.buffer })
    }

    fn place(&self) -> Option<Place> {
        match (&self.interface, self.pid) {
            (Some(netdev), _) => Some(Place::Netdev(netdev.clone())),
            (None, Some(pid)) => Some(Place::Process(pid)),
            (None, None) => None,
        }
    }

    /// Whether `--qp` has been looked at by a process, which knows its queue pairs.
    pub(crate) fn knows_queue_pairs(&self) -> bool {
        self.pid.is_some()
    }

    /// Packets come in as they are sent.
    pub(crate) fn is_live(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.as_os_str() == "-")
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        match (&self.file, self.place()) {
            (Some(file), _) if file.as_os_str() != "-" => file.display().to_string(),
            (None, Some(place)) => place.name(),
            _ => "standard input".to_owned(),
        }
    }
}

/// MiB of a ring.
pub(super) fn buffer(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(mib) if mib <= 1024 && mib.is_power_of_two() => Ok(mib),
        _ => Err("a power of two from 1 to 1024".to_owned()),
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds: 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

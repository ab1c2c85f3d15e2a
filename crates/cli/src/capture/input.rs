//! Where packets come from: a file, standard input, or an interface that is being listened to.

use std::io::Read;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::live::{Live, Wanted};
use super::source::{self, Source};
use crate::failure::Outcome;

/// A source of packets on the command line.
#[derive(Clone, Debug, Args)]
pub(crate) struct InputArgs {
    /// The file, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "interface")]
    file: Option<PathBuf>,
    /// Listen on this network interface, both directions, until Ctrl-C (needs root)
    ///
    /// Sees what sockets send and what XDP programs have passed; AF_XDP sockets are by-passed by the network stack and so by this.
    #[arg(short = 'i', long, value_name = "IF", conflicts_with = "file")]
    interface: Option<String>,
    /// Stop listening after so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "interface")]
    seconds: Option<Duration>,
}

impl InputArgs {
    /// Opens the file or starts to listen. Of an interface's packets only those from or to `hosts` (any, if there are none) are
    /// copied, and `snap` bytes of each.
    pub(crate) fn open(&self, snap: Option<u32>, hosts: &[IpAddr]) -> Outcome<Source<Box<dyn Read>>> {
        let (Some(netdev), None) = (&self.interface, &self.file) else {
            return source::open(&self.file.clone().unwrap_or_else(|| PathBuf::from("-")));
        };
        let wanted = Wanted { netdev: netdev.clone(), snap, hosts: hosts.to_vec(), duration: self.seconds };
        Source::new(Box::new(Live::new(&wanted)?) as Box<dyn Read>)
    }

    /// Packets come in as they are sent.
    pub(crate) fn is_live(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.as_os_str() == "-")
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        match (&self.file, &self.interface) {
            (Some(file), _) => file.display().to_string(),
            (None, Some(netdev)) => netdev.clone(),
            (None, None) => "standard input".to_owned(),
        }
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds: 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

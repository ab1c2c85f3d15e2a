//! Command line options that name a source of packets: a file, standard input, an interface or a process.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bpf::Tap;
use clap::{ArgGroup, Args, value_parser};
use roxie_capture::analyse::Origin;
use roxie_capture::filter::FilterOptions;
use roxie_capture::live::{Attachment, CapturePoint, Options, PERCENT};
use roxie_capture::shell::quote;
use roxie_capture::source::Source;

use super::{DecodeArgs, Packets, cannot_open, open, start, target};
use crate::failure::{Failure, Outcome};

/// Bytes that `-s headers` captures.
const HEADERS_LEN: u32 = 128;
/// Environment variable that selects how programs are attached to an interface.
pub(super) const ATTACHMENT: &str = "ROXIE_TAP";

/// A source of packets on the command line.
#[derive(Clone, Debug, Args)]
pub(super) struct InputArgs {
    /// The file, or - for standard input; gzip, zstd, lz4 and xz are decompressed
    #[arg(value_name = "FILE", conflicts_with = "live")]
    file: Option<PathBuf>,
    #[command(flatten)]
    live: LiveArgs,
    #[command(flatten)]
    decode_as: DecodeArgs,
}

/// A live capture on the command line.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("live").multiple(true))]
pub(super) struct LiveArgs {
    /// Capture this network interface, both directions, until Ctrl-C (needs root)
    ///
    /// Captures packets that sockets send and that XDP programs pass to the network stack. AF_XDP sockets
    /// bypass the stack, and so this capture.
    ///
    /// With --pid: capture only the devices of the process on this interface.
    #[arg(short = 'i', long, value_name = "IF", group = "live")]
    interface: Option<String>,
    /// Capture a process that runs on roxie, both directions, until Ctrl-C or its end; without privileges
    ///
    /// Captures incoming packets before the process's hooks and outgoing packets after them, on every kind of
    /// port. The devices that it has open are captured, each as an interface; --interface chooses one.
    #[arg(short = 'p', long, value_name = "PID", group = "live")]
    pid: Option<u32>,
    /// Stop the capture after this time
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "live")]
    seconds: Option<Duration>,
    /// Memory in MiB for packets that wait for the reader (default 64 for an interface, 16 for a process)
    ///
    /// Packets that find the memory full are counted as lost.
    #[arg(short = 'B', long, value_name = "MIB", value_parser = buffer, requires = "live")]
    buffer: Option<u32>,
    /// CPU limit for reading while the machine is busy, in percent of one CPU
    ///
    /// While a CPU is idle, the reader has no limit. Otherwise it would slow down the captured programs;
    /// packets that it cannot read in time are counted as lost. 100: no limit.
    #[arg(long, value_name = "PERCENT", default_value_t = PERCENT)]
    #[arg(value_parser = value_parser!(u32).range(1..=100))]
    cpu: u32,
}

impl LiveArgs {
    /// The interface or process to capture, if one is named.
    pub(super) fn point(&self) -> Option<CapturePoint> {
        match (self.pid, &self.interface) {
            (Some(pid), _) => Some(CapturePoint::Process(pid)),
            (None, Some(netdev)) => Some(CapturePoint::Netdev(netdev.clone())),
            (None, None) => None,
        }
    }

    /// Options of a capture with this filter, of `snap_len` bytes of the first of every `sample` packets.
    pub(super) fn options(
        &self,
        snap_len: Option<u32>,
        filter: FilterOptions,
        sample: Option<u32>,
    ) -> Options {
        Options {
            snap_len,
            netdev: self.interface.clone(),
            filter,
            sample,
            duration: self.seconds,
            buffer_mib: self.buffer,
            cpu_percent: Some(self.cpu),
            ..Options::default()
        }
    }
}

impl InputArgs {
    /// Opens the file, or starts a capture with [`LiveArgs::options`].
    pub(super) fn open(
        &self,
        snap_len: Option<u32>,
        filter: FilterOptions,
        sample: Option<u32>,
    ) -> Outcome<Packets> {
        let Some(point) = self.live.point() else {
            return open(self.file.as_deref().ok_or_else(no_source)?)
                .and_then(|source| self.decode_as.apply(source));
        };
        let capture = start(&point, self.live.options(snap_len, filter, sample))?;
        let source = Source::new(Box::new(capture) as Box<dyn Read + Send>).map_err(cannot_open)?;
        self.decode_as.apply(source)
    }

    /// The source, for the command to run next: its name, and whether it is live.
    pub(super) fn with_origin<T>(&self, use_it: impl FnOnce(Origin<'_>) -> T) -> T {
        let point = [
            self.live.pid.map(|pid| format!("-p {pid}")),
            self.live.interface.as_ref().map(|name| format!("-i {}", quote(name))),
        ];
        match point.into_iter().flatten().collect::<Vec<_>>().join(" ").as_str() {
            "" => use_it(Origin::File(&self.file.as_deref().unwrap_or(Path::new("-")).to_string_lossy())),
            point => use_it(Origin::Live(point)),
        }
    }

    /// Whether a process is captured, which selects packets by both ends of its queue pairs.
    pub(super) fn is_process(&self) -> bool {
        self.live.pid.is_some()
    }

    /// Whether packets may arrive slowly: a live capture or standard input.
    pub(super) fn is_live(&self) -> bool {
        self.file.as_ref().is_none_or(|file| target::is_standard(file))
    }

    /// Name of the source in messages.
    pub(super) fn name(&self) -> String {
        match (&self.file, self.live.point()) {
            (Some(file), _) if !target::is_standard(file) => file.display().to_string(),
            (None, Some(point)) => point.name(),
            _ => "standard input".to_owned(),
        }
    }

    /// Fails if the source, read to its end, was not a readable capture.
    pub(super) fn check_end(&self, source: &Packets) -> Outcome {
        target::check_end(source, &self.name())
    }
}

/// The command line names no source of packets.
fn no_source() -> Failure {
    let examples = [
        "trace.pcapng    a capture file; - is standard input",
        "-i eth0         live, a network interface (root)",
        "-p 4711         live, a process that runs on roxie ('roxie top' lists them)",
    ];
    Failure::new("no packets to read: name a file, an interface or a process")
        .lines(examples.map(|example| format!("  {example}")))
        .code(2)
}

/// The value of `ROXIE_TAP`.
pub(super) fn attachment(word: Option<&OsStr>) -> Outcome<Attachment> {
    match word.unwrap_or_default().as_encoded_bytes() {
        b"" => Ok(Attachment::Any),
        b"tcx" => Ok(Attachment::Tcx),
        b"clsact" => Ok(Attachment::Clsact),
        _ => {
            let word = word.unwrap_or_default().display();
            Err(Failure::new(format!("{ATTACHMENT}={word}: set it to tcx or clsact, or unset it")).code(2))
        }
    }
}

/// Bytes to show of each packet: a number, or `headers`.
pub(super) fn snap_to_show(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("0 bytes show nothing".to_owned()),
        Ok(len) => Ok(len),
        Err(_) if text == "headers" => Ok(HEADERS_LEN),
        Err(_) => Err("a number of bytes, or 'headers'".to_owned()),
    }
}

/// Bytes to record of each packet: at least the longest headers.
pub(crate) fn snap_to_record(text: &str) -> Result<u32, String> {
    let too_few = || format!("headers have up to {} bytes", Tap::SNAP_MIN);
    snap_to_show(text).and_then(|len| if len < Tap::SNAP_MIN { Err(too_few()) } else { Ok(len) })
}

/// MiB of the ring buffer.
fn buffer(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(mib) if mib <= 1024 && mib.is_power_of_two() => Ok(mib),
        _ => Err("a power of two from 1 to 1024".to_owned()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds: 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_attachment_is_refused() {
        for (word, expected) in
            [("", Attachment::Any), ("tcx", Attachment::Tcx), ("clsact", Attachment::Clsact)]
        {
            assert_eq!(attachment(Some(OsStr::new(word))).ok(), Some(expected));
        }
        assert_eq!(attachment(None).ok(), Some(Attachment::Any));
        let refused = attachment(Some(OsStr::new("CLSACT"))).expect_err("names are in lower case");
        assert!(refused.to_string().contains("ROXIE_TAP=CLSACT"), "{refused}");
    }
}

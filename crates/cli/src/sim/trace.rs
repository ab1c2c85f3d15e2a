//! `roxie sim --trace`: the events of one run, as text or as a capture file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use ::sim::{Options, Sight, What};
use roxie_capture::write::{NewInterface, NewPacket, Writer};
use wire::capture::LinkType;

use super::fabrics;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::terminal::Terminal;

/// Exit code if the trace cannot be written; 1 is a violation.
const NOT_WRITTEN: u8 = 2;

/// Runs one fabric, writes its events, also those before a violation, then prints the result.
pub(super) fn run(options: &Options, path: &Path) -> Outcome {
    let is_capture = path.extension().is_some_and(|extension| extension == "pcapng");
    let hint = "give --trace a file that can be created";
    let out = output::create_or_stdout(path).map_err(|failure| failure.hint(hint).code(NOT_WRITTEN))?;
    let out = BufWriter::new(out);
    let (written, result) = if is_capture {
        let mut capture = Capture::default();
        let result = ::sim::run(options, Some(&mut |sight| capture.see(sight)));
        (capture.write(out).map_err(|error| not_written(path, error)), result)
    } else {
        let mut words = Words { out, written: Ok(()) };
        let result = ::sim::run(options, Some(&mut |sight| words.see(sight)));
        (words.finish().map_err(|error| not_written(path, error)), result)
    };
    let outcome = result.map_err(|failed| fabrics::violation(&failed))?;
    written?;
    Terminal::stdout().line(&fabrics::verdict(&outcome));
    Ok(())
}

fn not_written(path: &Path, error: impl fmt::Display) -> Failure {
    Failure::new(format!("writing {}: {error}", path.display())).code(NOT_WRITTEN)
}

/// Prints a line for each event.
struct Words<W> {
    out: W,
    written: io::Result<()>,
}

impl<W: Write> Words<W> {
    fn see(&mut self, sight: &Sight<'_>) {
        if self.written.is_ok() {
            self.written = writeln!(self.out, "{sight}");
        }
    }

    fn finish(mut self) -> Result<(), String> {
        // A reader that closes the pipe is no failure.
        let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        match self.written.and_then(|()| self.out.flush()) {
            Err(error) if !closed(&error) => Err(error.to_string()),
            _ => Ok(()),
        }
    }
}

/// Frames as they left their nodes, one interface each, with comments on lost and damaged frames.
#[derive(Default)]
struct Capture {
    frames: Vec<Recorded>,
    comments: BTreeMap<u64, Vec<String>>,
    nodes: usize,
}

struct Recorded {
    number: u64,
    at_ns: u64,
    node: usize,
    bytes: Vec<u8>,
}

impl Capture {
    fn see(&mut self, sight: &Sight<'_>) {
        let at_ns = sight.at_ns;
        match sight.what {
            What::Sent { number, to, frame, is_copy } => {
                self.nodes = self.nodes.max(sight.node + 1).max(to + 1);
                self.frames.push(Recorded { number, at_ns, node: sight.node, bytes: frame.to_vec() });
                if is_copy {
                    self.comment(number, "roxie sim: a duplicate made by the network".to_owned());
                }
            }
            What::Damaged { number, cause, .. } => {
                self.comment(number, format!("roxie sim: damaged afterwards ({})", cause.name()));
            }
            What::Lost { number, cause, .. } => {
                let (ms, ns) = (at_ns / 1_000_000, at_ns % 1_000_000);
                self.comment(number, format!("roxie sim: lost at {ms}.{ns:06} ms ({})", cause.name()));
            }
            _ => {}
        }
    }

    fn comment(&mut self, number: u64, text: String) {
        self.comments.entry(number).or_default().push(text);
    }

    fn write(self, out: impl Write) -> io::Result<()> {
        let Self { frames, mut comments, nodes } = self;
        let mut writer = Writer::new(out)?;
        for node in 0..nodes {
            let name = format!("node{node}");
            writer.interface(&NewInterface {
                name: Some(&name),
                left_out: None,
                times: None,
                link_type: LinkType::ETHERNET,
            })?;
        }
        for Recorded { number, at_ns, node, bytes } in frames {
            let (interface, original_len) = (node, bytes.len());
            let (outbound, verdict) = (None, None);
            let packet =
                NewPacket { interface, time_ns: at_ns, original_len, data: &bytes, outbound, verdict };
            writer
                .packet(&packet, comments.remove(&number).unwrap_or_default().into_iter().map(Cow::Owned))?;
        }
        writer.output().flush()
    }
}

//! `roxie capture annotate`: writes a capture again, with the findings as comments.

use std::io::BufWriter;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use roxie_capture::analyse::Analysis;
use roxie_capture::annotate;

use super::analyse::with_progress;
use super::{DecodeArgs, open, target};
use crate::failure::{Failure, Outcome};
use crate::terminal::Terminal;

/// Write a capture again, with the findings as comments of its packets
///
/// The output is pcapng with times in nanoseconds; interfaces, directions, drop counters and comments of the
/// input are kept. Wireshark shows the comments in the packet's tree and finds them with the filter
/// frame.comment.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/capture-annotate.txt"))]
pub(super) struct AnnotateArgs {
    /// The file; it is read twice
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to write, or - for standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    decode_as: DecodeArgs,
}

pub(super) fn run(args: &AnnotateArgs) -> Outcome {
    if target::is_standard(&args.file) || is_stream(&args.file) {
        let failure = Failure::new("the capture is read twice, which standard input and pipes cannot be");
        return Err(failure.hint("write it to a file first"));
    }
    target::spare_input(&args.file, &args.output)?;
    let mut source = args.decode_as.apply(open(&args.file)?)?;
    let verdict = with_progress(&mut source, Analysis::new(), |_, _| {})?;
    target::check_end(&source, &args.file.display().to_string())?;
    let comments = annotate::comments(&verdict);
    let output = BufWriter::new(target::create(&args.output)?);
    annotate::copy(&mut open(&args.file)?, output, &comments, source.drops())
        .map_err(|error| Failure::new(error.to_string()))?;
    if !target::is_standard(&args.output) {
        Terminal::stdout().line(&format!(
            "{}: {} packets, {} of them with comments. {}",
            args.output.display(),
            verdict.totals.packets,
            comments.len(),
            verdict.text()
        ));
    }
    Ok(())
}

/// Whether the file can be read only once. Decided by its name: opening a pipe waits for a writer.
fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| {
        let kind = meta.file_type();
        kind.is_fifo() || kind.is_socket() || kind.is_char_device()
    })
}

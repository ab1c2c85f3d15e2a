//! Files that the subcommands write, and the checks before and after.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use roxie_capture::source::Source;

use crate::failure::{During, Failure, Outcome};

/// Whether the path is `-`, which names standard input or standard output.
pub(super) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Creates a file, or returns standard output for `-`.
pub(super) fn create(path: &Path) -> Outcome<Box<dyn Write>> {
    if is_standard(path) {
        return Ok(Box::new(io::stdout()));
    }
    let file = File::create(path).during(&format!("creating {}", path.display()))?;
    Ok(Box::new(file))
}

/// Fails if output and input are the same file, by whatever names. To be called before the output is created,
/// which empties it.
pub(super) fn spare_input(input: &Path, output: &Path) -> Outcome {
    let input = regular_file(if is_standard(input) { Path::new("/dev/stdin") } else { input });
    let output = regular_file(if is_standard(output) { Path::new("/dev/stdout") } else { output });
    if input.is_some() && input == output {
        return Err(Failure::new("the output would overwrite the input").hint("write to another file"));
    }
    Ok(())
}

/// Fails if the source, read to its end, was not a readable capture.
pub(super) fn check_end<R: Read>(source: &Source<R>, name: &str) -> Outcome {
    source.check_end().map_err(|error| Failure::new(format!("{name}: {error}")))
}

/// Device and inode of a regular file; `None` for others: a terminal may be both input and output.
fn regular_file(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok()?;
    meta.is_file().then(|| (meta.dev(), meta.ino()))
}

//! Where a command writes what it makes of a capture.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::failure::{During, Failure, Outcome};

/// `-`, which stands for standard input or standard output.
pub(super) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Creates a file, or gives standard output for `-`.
pub(super) fn create(path: &Path) -> Outcome<Box<dyn Write>> {
    if is_standard(path) {
        return Ok(Box::new(io::stdout()));
    }
    let file = File::create(path).during(&format!("creating {}", path.display()))?;
    Ok(Box::new(file))
}

/// Refuses an output that is the input, whatever names the two have. To be asked before the output is created, which empties it.
pub(super) fn spare_input(input: &Path, output: &Path) -> Outcome {
    let input = file(if is_standard(input) { Path::new("/dev/stdin") } else { input });
    let output = file(if is_standard(output) { Path::new("/dev/stdout") } else { output });
    if input.is_some() && input == output {
        return Err(Failure::new("the output would overwrite the input").hint("write to another file"));
    }
    Ok(())
}

/// Which file a name leads to, if it is one that keeps what is written: a terminal may well be both ends.
fn file(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok()?;
    meta.is_file().then(|| (meta.dev(), meta.ino()))
}

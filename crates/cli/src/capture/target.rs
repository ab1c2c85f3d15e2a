//! Files that the subcommands write, and the checks before and after.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use roxie_capture::source::Source;
use sys::NamedFile;

use crate::failure::{During, Failure, Outcome};
pub(super) use crate::output::{create_or_stdout as create, is_standard};
use crate::terminal;

/// A file that can be written, as it was before; it is removed again if it did not exist and is not begun.
pub(super) struct Reserved<'a> {
    path: &'a Path,
    /// `None` for standard output.
    file: Option<File>,
    /// Where it is, if it did not exist.
    made: Option<NamedFile>,
}

impl<'a> Reserved<'a> {
    /// Opens the file, or creates it.
    pub(super) fn new(path: &'a Path) -> Outcome<Self> {
        if is_standard(path) {
            return Ok(Self { path, file: None, made: None });
        }
        let what = format!("creating {}", path.display());
        let place = NamedFile::at(path).during(&what)?;
        let (file, made) = match place.create_new() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (place.open_to_write().during(&what)?, None)
            }
            created => (created.during(&what)?, Some(place)),
        };
        Ok(Self { path, file: Some(file), made })
    }

    /// Empties the file and returns it, or returns standard output.
    pub(super) fn begin(mut self) -> Outcome<Box<dyn Write>> {
        let Some(file) = self.file.take() else { return Ok(Box::new(terminal::data())) };
        self.made = None;
        if file.metadata().is_ok_and(|meta| meta.is_file()) {
            file.set_len(0).during(&format!("emptying {}", self.path.display()))?;
        }
        Ok(Box::new(file))
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(place) = &self.made {
            // The error that prevented the capture is reported already.
            let _ = place.remove();
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_file_that_is_not_begun_is_as_before() {
        let path = std::env::temp_dir().join(format!("roxie-reserved-{}", std::process::id()));
        drop(Reserved::new(&path).expect("the temporary directory is writable"));
        assert!(!path.exists());
        fs::write(&path, "an earlier capture").expect("writable");
        drop(Reserved::new(&path).expect("exists"));
        assert_eq!(fs::read(&path).expect("still there"), b"an earlier capture");
        let mut output = Reserved::new(&path).and_then(Reserved::begin).expect("exists");
        output.write_all(b"new").expect("writable");
        assert_eq!(fs::read(&path).expect("there"), b"new");
        fs::remove_file(&path).expect("the test wrote it");
    }
}

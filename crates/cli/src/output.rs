//! Files and directories where the user wants them.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use sys::{Dir, NamedFile, Walk};

use crate::failure::{During, Outcome};
use crate::terminal;
use crate::user_dir::not_trusted;

/// Creates a file, or empties the one that is there.
pub(crate) fn create(path: &Path) -> Outcome<File> {
    NamedFile::at(path).and_then(|place| place.create()).writing(path)
}

/// Whether the path is `-`, which names standard input or standard output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Creates a file, or returns standard output for `-`.
pub(crate) fn create_or_stdout(path: &Path) -> Outcome<Box<dyn Write>> {
    if is_standard(path) {
        return Ok(Box::new(terminal::data()));
    }
    Ok(Box::new(create(path)?))
}

/// Replaces a file by these bytes: readers see the old one or the whole new one.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Outcome {
    let place = NamedFile::at(path);
    place.and_then(|place| place.dir().replace(place.name(), bytes, mode)).writing(path)
}

/// Opens a directory from which other users load programs and libraries, and makes it if it does not exist.
/// Only root and this user may change what is in it.
pub(crate) fn trusted_dir(path: &Path) -> Outcome<Dir> {
    Dir::prove(path, Walk { make: Some(0o755), ..Walk::default() }).map_err(|why| not_trusted(&why))
}

/// Makes the directories of a path that do not exist.
pub(crate) fn make_dirs(path: &Path) -> Outcome {
    std::fs::create_dir_all(path).writing(path)
}

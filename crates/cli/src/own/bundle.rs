//! The libraries inside the file of the `roxie` program, so that one file is the whole installation.
//!
//! They follow the ELF image, which the kernel and the loader do not read further than its headers say:
//!
//! ```text
//! ELF image | file | file | ... | entry | entry | ... | trailer
//! entry:   name, padded with zeros (32 bytes), length (8), CRC-32 (4), zero (4)
//! trailer: number of entries (4), CRC-32 of the entries (4), MAGIC (16)
//! ```
//!
//! All numbers are little-endian. `strip` removes what follows the image.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use sys::Dir;

/// Last bytes of a program that contains libraries.
const MAGIC: &[u8; 16] = b"roxie-libraries1";
const NAME_LEN: usize = 32;
const ENTRY_LEN: usize = NAME_LEN + 16;
const TRAILER_LEN: usize = 8 + MAGIC.len();
/// Files in a bundle, at most; more is damage.
const ENTRIES_MAX: usize = 16;
/// Bytes of one file in a bundle, at most: 20 times the largest library with debug information.
const FILE_LEN_MAX: u64 = 256 << 20;

/// A file in the bundle.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Entry {
    /// File name without directories.
    pub(super) name: String,
    offset: u64,
    len: u64,
    crc: u32,
}

/// The libraries that a program file contains.
#[derive(Debug)]
pub(crate) struct Bundle {
    file: File,
    entries: Vec<Entry>,
    /// Bytes before the first file: the ELF image.
    image_len: u64,
    /// Identifies the contents of all files.
    pub(super) fingerprint: u32,
}

impl Bundle {
    /// Reads the table of the bundle in `program`; `None` if the program contains no libraries.
    ///
    /// # Errors
    /// The file cannot be read, or the table is damaged (`InvalidData`).
    pub(crate) fn open(program: &Path) -> io::Result<Option<Self>> {
        let mut file = File::open(program)?;
        let len = file.metadata()?.len();
        let Some(trailer_at) = len.checked_sub(TRAILER_LEN as u64) else { return Ok(None) };
        let trailer: [u8; TRAILER_LEN] = read_at(&mut file, trailer_at)?;
        if &trailer[8..] != MAGIC {
            return Ok(None);
        }
        let count = u32_at(&trailer, 0) as usize;
        let table_len = count * ENTRY_LEN;
        if count > ENTRIES_MAX || table_len as u64 > trailer_at {
            return Err(damaged("its number of libraries is wrong"));
        }
        let table_at = trailer_at - table_len as u64;
        let mut table = vec![0; table_len];
        file.seek(SeekFrom::Start(table_at))?;
        file.read_exact(&mut table)?;
        let fingerprint = u32_at(&trailer, 4);
        if crc32fast::hash(&table) != fingerprint {
            return Err(damaged("the table of its libraries does not have its CRC"));
        }
        let mut entries: Vec<Entry> =
            table.chunks_exact(ENTRY_LEN).map(Entry::parse).collect::<Result<_, _>>()?;
        let mut at = table_at;
        for entry in entries.iter_mut().rev() {
            at =
                at.checked_sub(entry.len).ok_or_else(|| damaged("its libraries are longer than the file"))?;
            entry.offset = at;
        }
        Ok(Some(Self { file, entries, image_len: at, fingerprint }))
    }

    /// The files, in the order of the table.
    #[cfg(test)]
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Makes `dir` contain all files. Files that are there and intact are kept. The others are written under
    /// another name and renamed, so a program that starts meanwhile finds a whole file.
    ///
    /// # Errors
    /// A file cannot be written, or its contents do not have their CRC (`InvalidData`).
    pub(crate) fn unpack(&mut self, dir: &Dir) -> io::Result<()> {
        for entry in self.entries.clone() {
            if !entry.is_intact(dir) {
                dir.replace(OsStr::new(&entry.name), &self.read(&entry)?, 0o755)?;
            }
        }
        Ok(())
    }

    /// Returns the contents of one file.
    ///
    /// # Errors
    /// It cannot be read, or it does not have its CRC (`InvalidData`).
    pub(super) fn read(&mut self, entry: &Entry) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(entry.offset))?;
        Read::by_ref(&mut self.file).take(entry.len).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != entry.len || crc32fast::hash(&bytes) != entry.crc {
            return Err(damaged(&format!("{} in it does not have its CRC", entry.name)));
        }
        Ok(bytes)
    }
}

impl Entry {
    fn of(name: &str, bytes: &[u8]) -> Self {
        Self { name: name.to_owned(), offset: 0, len: bytes.len() as u64, crc: crc32fast::hash(bytes) }
    }

    fn parse(bytes: &[u8]) -> io::Result<Self> {
        let name = bytes[..NAME_LEN].split(|byte| *byte == 0).next().unwrap_or_default();
        let name = std::str::from_utf8(name).map_err(|_| damaged("a name in it is not text"))?;
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(damaged("a name in it is not a file name"));
        }
        let len = u64::from_le_bytes(bytes[NAME_LEN..NAME_LEN + 8].try_into().expect("eight bytes"));
        if len > FILE_LEN_MAX {
            return Err(damaged("a library in it is too long"));
        }
        Ok(Self { name: name.to_owned(), offset: 0, len, crc: u32_at(bytes, NAME_LEN + 8) })
    }

    fn emit(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        bytes[..self.name.len()].copy_from_slice(self.name.as_bytes());
        bytes[NAME_LEN..NAME_LEN + 8].copy_from_slice(&self.len.to_le_bytes());
        bytes[NAME_LEN + 8..NAME_LEN + 12].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// Whether `dir` has a file with the name and the contents of this entry.
    fn is_intact(&self, dir: &Dir) -> bool {
        let name = OsStr::new(&self.name);
        let is_file = dir.metadata(name).is_ok_and(|meta| meta.is_file() && meta.len() == self.len);
        is_file && dir.read(name).is_ok_and(|bytes| crc32fast::hash(&bytes) == self.crc)
    }
}

/// Returns the ELF image of `program`, without libraries that it contains, followed by `libraries`.
///
/// # Errors
/// The program cannot be read, or a name is longer than 31 bytes (`InvalidInput`).
pub(super) fn make(program: &Path, libraries: &[(String, Vec<u8>)]) -> io::Result<Vec<u8>> {
    let image_len = Bundle::open(program)?.map_or(u64::MAX, |bundle| bundle.image_len);
    let mut bytes = Vec::new();
    File::open(program)?.take(image_len).read_to_end(&mut bytes)?;
    let mut table = Vec::new();
    for (name, contents) in libraries {
        if name.len() >= NAME_LEN {
            return Err(io::Error::new(ErrorKind::InvalidInput, format!("{name}: the name is too long")));
        }
        bytes.extend_from_slice(contents);
        table.extend_from_slice(&Entry::of(name, contents).emit());
    }
    bytes.extend_from_slice(&table);
    bytes.extend_from_slice(&u32::try_from(libraries.len()).expect("a few").to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&table).to_le_bytes());
    bytes.extend_from_slice(MAGIC);
    Ok(bytes)
}

fn read_at<const N: usize>(file: &mut File, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the program file is damaged: {what}"))
}

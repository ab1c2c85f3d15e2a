//! Why a capture cannot be opened or was not readable.

use std::fmt;
use std::io;

use super::compressed;

/// Why a file cannot be opened as a capture.
#[derive(Debug)]
pub enum OpenError {
    /// The operating system refused to open or read it.
    Io(io::Error),
    /// The path names a directory.
    Directory,
    /// The file has no bytes.
    Empty,
    /// The file is compressed.
    Compressed {
        /// Name of the compression format.
        format: &'static str,
        /// Program that writes the decompressed file to standard output.
        command: &'static str,
    },
    /// The file is neither pcap nor pcapng; these are its first bytes, at most four.
    UnknownFormat(Vec<u8>),
    /// The file ends inside its header.
    TruncatedHeader {
        /// Bytes of the file.
        len: usize,
        /// Bytes of the header.
        whole: usize,
    },
}

impl OpenError {
    /// Names the format of a file that begins with `bytes` and is not a capture.
    pub(super) fn not_a_capture(bytes: &[u8]) -> Self {
        match compressed::format(bytes) {
            Some((format, command)) => Self::Compressed { format, command },
            None => Self::UnknownFormat(bytes[..bytes.len().min(4)].to_vec()),
        }
    }

    /// What the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Compressed { command, .. } => Some(format!("try: {command} FILE | roxie capture read -")),
            Self::UnknownFormat(_) => Some("Wireshark's editcap converts other formats".to_owned()),
            _ => None,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Directory => f.write_str("this is a directory, not a capture file"),
            Self::Empty => f.write_str("the file is empty"),
            Self::Compressed { format, .. } => write!(f, "the file is compressed with {format}"),
            Self::UnknownFormat(first) => {
                f.write_str("neither pcap nor pcapng: the file begins with ")?;
                first.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::TruncatedHeader { len, whole } => {
                write!(f, "the file ends inside its header, after {len} of {whole} bytes")
            }
        }
    }
}

impl std::error::Error for OpenError {}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Why a capture that was read to its end is not usable.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EndError {
    /// The input ended early, with this explanation.
    CutOff(String),
    /// The file begins like a capture, but no packet in it can be read.
    NothingReadable,
}

impl fmt::Display for EndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutOff(why) => f.write_str(why),
            Self::NothingReadable => {
                f.write_str("the file is damaged from its beginning: no packet can be read")
            }
        }
    }
}

impl std::error::Error for EndError {}

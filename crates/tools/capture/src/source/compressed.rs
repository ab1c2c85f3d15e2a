//! Compressed captures: their formats, and how roxie decompresses them as it reads.
//!
//! Memory is bounded whatever a file says, and does not grow with what the file unpacks to.

use std::io::{self, Cursor, ErrorKind, Read};

use flate2::read::MultiGzDecoder;

/// Bytes decompressed at once. Some decompressors lose what they had made of the last ones when they find the
/// end of a cut file.
const PIECE: usize = 8 << 10;
/// Compression formats: the first bytes of a file, the name, and the program that writes the decompressed
/// file to standard output. [`decoder`] knows those that roxie decompresses.
const FORMATS: [(&[u8], &str, &str); 11] = [
    // RFC 1952.
    (&[0x1f, 0x8b], "gzip", "zcat"),
    // RFC 8878, and a frame that pzstd begins with.
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstdcat"),
    (&[0x50, 0x2a, 0x4d, 0x18], "zstd", "zstdcat"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4", "lz4cat"),
    // Frames without an end: a cut file cannot be told from a whole one.
    (&[0x02, 0x21, 0x4c, 0x18], "lz4 -l", "lz4cat"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xzcat"),
    (b"BZh", "bzip2", "bzcat"),
    (b"LZIP", "lzip", "lzip -dc"),
    (&[0x1f, 0x9d], "compress", "zcat"),
    (b"PK\x03\x04", "zip", "unzip -p"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x -so"),
];
/// The longest of their first bytes.
const MAGIC_LEN: usize = 6;
/// Bytes that a decompressor may remember. `xz -9` needs 65 MiB, `zstd --long` 128; half would refuse both. A
/// file that wants more is refused before memory is taken.
const MEMORY_MAX: u64 = 128 << 20;

type Input<'a> = Box<dyn Read + Send + 'a>;

/// The compression of a file that begins with these bytes: its name, and the program that undoes it.
pub(super) fn format(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let found = FORMATS.into_iter().find(|(magic, ..)| bytes.starts_with(magic));
    found.map(|(_, name, command)| (name, command))
}

/// The contents of `input`, and the name of the format that they were decompressed from: gzip, and with the
/// feature `compression` zstd, lz4 and xz.
///
/// # Errors
/// Those of reading the first bytes.
pub fn decompressed<'a>(
    mut input: impl Read + Send + 'a,
) -> io::Result<(Box<dyn Read + Send + 'a>, Option<&'static str>)> {
    let mut front = Vec::with_capacity(MAGIC_LEN);
    // A pipe may give one byte at a time.
    input.by_ref().take(MAGIC_LEN as u64).read_to_end(&mut front)?;
    let found = format(&front);
    let whole: Input<'a> = Box::new(Cursor::new(front).chain(input));
    let Some((name, _)) = found else { return Ok((whole, None)) };
    Ok(match decoder(name, whole) {
        Ok(input) => (Box::new(Unpacked { name, input }), Some(name)),
        Err(whole) => (whole, None),
    })
}

/// The decompressed input, or the input if roxie does not decompress this format.
fn decoder<'a>(name: &str, input: Input<'a>) -> Result<Input<'a>, Input<'a>> {
    Ok(match name {
        "gzip" => Box::new(MultiGzDecoder::new(input)),
        #[cfg(feature = "compression")]
        "zstd" => Box::new(frames::Zstd::new(input)),
        #[cfg(feature = "compression")]
        "lz4" => Box::new(frames::Lz4::new(input)),
        #[cfg(feature = "compression")]
        "xz" => Box::new(frames::xz(input)),
        _ => return Err(input),
    })
}

/// A decompressed input. Its errors name the format.
struct Unpacked<'a> {
    name: &'static str,
    input: Input<'a>,
}

impl Read for Unpacked<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(PIECE);
        self.input.read(&mut buf[..len]).map_err(|error| {
            let name = self.name;
            let why = match error.kind() {
                ErrorKind::UnexpectedEof => format!("the file is cut: its {name} data end early"),
                ErrorKind::OutOfMemory => format!(
                    "{name} needs more than {} MiB for this file; decompress it with a program of its own",
                    MEMORY_MAX >> 20
                ),
                ErrorKind::InvalidData
                | ErrorKind::InvalidInput
                | ErrorKind::Other
                | ErrorKind::Unsupported => format!("the {name} data cannot be decompressed: {error}"),
                _ => return error,
            };
            io::Error::new(ErrorKind::InvalidData, why)
        })
    }
}

#[cfg(feature = "compression")]
mod frames {
    //! Formats of which a file has one frame or several, as `cat` joins them.

    use std::io::{self, BufReader, ErrorKind, Read};

    use lz4_flex::frame::FrameDecoder as Lz4Decoder;
    use lzma_rust2::XzReader;
    use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
    use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder as ZstdDecoder};

    use super::{Input, MEMORY_MAX};

    pub(super) fn xz(input: Input<'_>) -> impl Read + Send {
        XzReader::new_mem_limit(BufReader::new(input), true, (MEMORY_MAX >> 10) as u32)
    }

    /// An input that knows how much of it was read, and whether that was all.
    struct Counted<'a> {
        input: BufReader<Input<'a>>,
        len: u64,
        is_at_end: bool,
    }

    impl<'a> Counted<'a> {
        fn new(input: Input<'a>) -> Self {
            Self { input: BufReader::new(input), len: 0, is_at_end: false }
        }
    }

    impl Read for Counted<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let len = self.input.read(buf)?;
            self.len += len as u64;
            self.is_at_end |= len == 0 && !buf.is_empty();
            Ok(len)
        }
    }

    /// The frames of an lz4 file. The decoder ends alike behind a frame and where a file is cut.
    pub(super) struct Lz4<'a> {
        decoder: Lz4Decoder<Counted<'a>>,
        is_between: bool,
    }

    impl<'a> Lz4<'a> {
        pub(super) fn new(input: Input<'a>) -> Self {
            Self { decoder: Lz4Decoder::new(Counted::new(input)), is_between: true }
        }
    }

    impl Read for Lz4<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            loop {
                let before = self.decoder.get_ref().len;
                let len = self.decoder.read(buf)?;
                let input = self.decoder.get_ref();
                if len == 0 && input.is_at_end && !(self.is_between && input.len == before) {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                self.is_between = len == 0;
                if len > 0 || input.is_at_end {
                    return Ok(len);
                }
            }
        }
    }

    /// The frames of a zstd file.
    pub(super) struct Zstd<'a> {
        decoder: ZstdDecoder,
        input: Counted<'a>,
        /// Why the input ended, to be told behind what was decompressed.
        error: Option<io::Error>,
    }

    impl<'a> Zstd<'a> {
        pub(super) fn new(input: Input<'a>) -> Self {
            let mut decoder = ZstdDecoder::new();
            decoder.set_max_window_size(MEMORY_MAX);
            Self { decoder, input: Counted::new(input), error: None }
        }

        fn error(&self, error: &FrameDecoderError) -> io::Error {
            if self.input.is_at_end {
                return ErrorKind::UnexpectedEof.into();
            }
            let is_too_large = matches!(error, FrameDecoderError::WindowSizeTooBig { .. });
            let kind = if is_too_large { ErrorKind::OutOfMemory } else { ErrorKind::InvalidData };
            io::Error::new(kind, error.to_string())
        }

        /// Begins the next frame; returns false at the end of the file.
        fn begin(&mut self) -> io::Result<bool> {
            let sums = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
            if matches!(sums, (Some(said), Some(is)) if said != is) {
                return Err(io::Error::new(ErrorKind::InvalidData, "the checksum is wrong"));
            }
            loop {
                let before = self.input.len;
                match self.decoder.init(&mut self.input) {
                    Ok(()) => return Ok(true),
                    Err(_) if self.input.is_at_end && self.input.len == before => return Ok(false),
                    Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                        length,
                        ..
                    })) => {
                        let mut frame = self.input.by_ref().take(length.into());
                        if io::copy(&mut frame, &mut io::sink())? < length.into() {
                            return Err(ErrorKind::UnexpectedEof.into());
                        }
                    }
                    Err(error) => return Err(self.error(&error)),
                }
            }
        }
    }

    impl Read for Zstd<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            while self.decoder.can_collect() == 0 {
                if self.decoder.is_finished() {
                    if let Some(error) = self.error.take() {
                        return Err(error);
                    }
                    if !self.begin()? {
                        return Ok(0);
                    }
                }
                let one = BlockDecodingStrategy::UptoBlocks(1);
                if let Err(error) = self.decoder.decode_blocks(&mut self.input, one) {
                    self.error = Some(self.error(&error));
                    // The decoder keeps the last window until the last block: an empty one, with a checksum.
                    let last = [1, 0, 0, 0, 0, 0, 0];
                    if self.decoder.decode_blocks(&last[..], BlockDecodingStrategy::All).is_err() {
                        return self.error.take().map_or(Ok(0), Err);
                    }
                }
            }
            self.decoder.read(buf)
        }
    }
}

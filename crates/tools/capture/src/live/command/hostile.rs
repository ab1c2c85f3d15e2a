//! Fuzz target: engines that send anything, and write anything into the memory of their taps.
//!
//! Input of each of two engines: the number of its messages but the first, then the first message, the
//! memory behind the page of the reader, and the other messages; each with its length in front, two bytes.
//! Of the page of the writer, the input has 16 bytes: the position, and the number of lost records.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use sys::{RecordWriter, page_size, send_record, seqpacket_pair};

use super::CommandCapture;
use crate::source::Source;

/// Bytes of the storage of each engine.
const STORAGE: usize = 1 << 16;
/// Bytes of the page of the writer that it uses.
const FRONT: usize = 16;

/// Panics unless the capture is a complete file with the packets that were counted.
pub(crate) fn check_command(bytes: &[u8]) {
    // No engine connects here: they are connected already.
    let nowhere = File::open("/dev/null").expect("every Linux has it");
    let mut capture = CommandCapture::on(nowhere.into(), None).expect("memory");
    let mut rest = bytes;
    let ends: Vec<OwnedFd> = (0..2).map(|_| connect(&mut capture, &mut rest)).collect();
    let mut file = capture.read().expect("two sockets").to_vec();
    drop(ends);
    file.extend_from_slice(capture.read().expect("two sockets"));
    assert!(capture.engines.is_empty(), "both have ended");
    capture.close();
    file.append(capture.writer.output());

    let mut source = Source::new(&file[..]).expect("a capture");
    let mut packets = 0;
    while let Some(record) = source.next_record().expect("memory") {
        assert!(record.data.len() <= record.original_len);
        packets += 1;
    }
    assert_eq!(source.notes().next(), None, "the file has no damage");
    let count = capture.count();
    assert_eq!((packets, source.drops()), (count.packets, count.lost));
}

/// Connects an engine to the capture; returns its end of the connection.
fn connect(capture: &mut CommandCapture, rest: &mut &[u8]) -> OwnedFd {
    let messages = rest.split_off_first().copied().unwrap_or(0);
    let (first, memory) = (piece(rest), piece(rest));
    let (engine, reader) = seqpacket_pair().expect("descriptors");
    let (_writer, shared) = RecordWriter::new(STORAGE).expect("memory");
    let shared = File::from(shared);
    let (front, storage) = memory.split_at(memory.len().min(FRONT));
    for (part, page) in [(front, 1), (storage, 2)] {
        shared.write_all_at(part, page * page_size() as u64).expect("memory");
    }
    // A full socket refuses further messages.
    let _full = send_record(engine.as_fd(), first, &[], &[shared.as_fd()]);
    for _ in 0..messages {
        let _full = send_record(engine.as_fd(), piece(rest), &[], &[]);
    }
    capture.connected.push(reader);
    engine
}

/// Splits off the next part of the input.
fn piece<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let Some((len, behind)) = rest.split_first_chunk() else { return std::mem::take(rest) };
    let len = usize::from(u16::from_le_bytes(*len)).min(behind.len());
    let (piece, behind) = behind.split_at(len);
    *rest = behind;
    piece
}

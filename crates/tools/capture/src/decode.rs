//! Decodes the packets of a capture; for large files a second thread reads and checks the invariant CRCs.
//!
//! The two threads pass a fixed number of batches back and forth. Nothing is allocated for a single packet,
//! and memory does not grow with the length of the file.

use std::io::{self, Read};
use std::ops::{ControlFlow, Range};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use wire::capture::{IcrcCheck, NotRoce, Seen};

use crate::source::{Record, Source};

/// Bytes of packets in a batch: small enough to stay in the L2 cache until the caller uses it.
const BATCH_LEN: usize = 256 << 10;
/// Packets in a batch.
const BATCH_PACKETS: usize = 2048;
/// Batches that circulate between the two threads.
const BATCHES: usize = 4;
/// Shorter files, in bytes, are read by the caller's thread: starting a second one would take longer.
const THREAD_MIN: u64 = 1 << 20;

/// A packet of a capture, decoded.
pub struct Decoded<'a> {
    /// The packet as the file has it, without its comment.
    pub record: Record<'a>,
    /// Its headers, or why it is not RoCEv2.
    pub seen: Result<Seen<'a>, NotRoce>,
    /// Result of the invariant CRC check; `Cut` for packets that are not RoCEv2.
    pub icrc: IcrcCheck,
    /// Bytes of the file read so far, to within a batch.
    pub offset: u64,
}

/// Calls `handle` with every packet of `source`, in order, until it returns `Break` or the file ends.
///
/// Packets of a source of unknown length (a pipe, a live capture) are handled as they arrive.
///
/// # Errors
/// Those of reading the source.
pub fn each_packet<R: Read + Send>(
    source: &mut Source<R>,
    mut handle: impl FnMut(&Decoded<'_>) -> ControlFlow<()>,
) -> io::Result<()> {
    if source.total_len().is_none_or(|len| len < THREAD_MIN) {
        loop {
            let offset = source.offset();
            let Some(record) = source.next_record()? else { return Ok(()) };
            let seen = Seen::parse(record.decode_as, record.data);
            let icrc = check(&seen);
            if handle(&Decoded { record, seen, icrc, offset }).is_break() {
                return Ok(());
            }
        }
    }
    let (full, filled) = sync_channel(BATCHES);
    let (empty, emptied) = sync_channel(BATCHES);
    for _ in 0..BATCHES {
        // The channel has room for all of them.
        let _ = empty.send(Batch::default());
    }
    thread::scope(|scope| {
        scope.spawn(move || fill_batches(source, &emptied, &full));
        // This call drops its channel ends when it returns, which ends the reading thread.
        handle_batches(filled, empty, &mut handle)
    })
}

/// Reads until the file ends or the handling thread has dropped its channel ends.
fn fill_batches<R: Read>(
    source: &mut Source<R>,
    empty: &Receiver<Batch>,
    full: &SyncSender<io::Result<Batch>>,
) {
    while let Ok(mut batch) = empty.recv() {
        let more = batch.fill(source);
        let ended = !matches!(more, Ok(true));
        if full.send(more.map(|_| batch)).is_err() || ended {
            break;
        }
    }
}

fn handle_batches(
    filled: Receiver<io::Result<Batch>>,
    empty: SyncSender<Batch>,
    handle: &mut dyn FnMut(&Decoded<'_>) -> ControlFlow<()>,
) -> io::Result<()> {
    while let Ok(batch) = filled.recv() {
        let batch = batch?;
        for packet in &batch.packets {
            let record = packet.record(&batch.bytes);
            let seen = Seen::parse(record.decode_as, record.data);
            let icrc = packet.icrc.unwrap_or_else(|| check(&seen));
            if handle(&Decoded { record, seen, icrc, offset: batch.offset }).is_break() {
                return Ok(());
            }
        }
        // Fails at the end of the file, when the reading thread has ended: the batch is then dropped.
        let _ = empty.send(batch);
    }
    Ok(())
}

fn check(seen: &Result<Seen<'_>, NotRoce>) -> IcrcCheck {
    seen.as_ref().map_or(IcrcCheck::Cut, Seen::icrc)
}

/// Packets that were read and not handled yet.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    packets: Vec<BatchRecord>,
    /// Offset in the file behind the last packet.
    offset: u64,
}

/// A [`Record`] with its bytes in a batch.
struct BatchRecord {
    /// Without the bytes and what devices have told.
    record: Record<'static>,
    data: Range<usize>,
    /// `None` if the end of the packet was not captured: the check is then free.
    icrc: Option<IcrcCheck>,
    told: Vec<(usize, String)>,
}

impl Batch {
    /// Replaces the contents with the next packets; returns whether the file may have more.
    fn fill<R: Read>(&mut self, source: &mut Source<R>) -> io::Result<bool> {
        self.bytes.clear();
        self.packets.clear();
        let mut more = true;
        while self.bytes.len() < BATCH_LEN && self.packets.len() < BATCH_PACKETS {
            let Some(record) = source.next_record()? else {
                more = false;
                break;
            };
            let whole = record.data.len() >= record.original_len;
            let icrc = whole.then(|| check(&Seen::parse(record.decode_as, record.data)));
            let start = self.bytes.len();
            self.bytes.extend_from_slice(record.data);
            let (data, told) = (start..self.bytes.len(), record.told.to_vec());
            self.packets.push(BatchRecord { record: record.bare(), data, icrc, told });
        }
        self.offset = source.offset();
        Ok(more)
    }
}

impl BatchRecord {
    fn record<'a>(&'a self, bytes: &'a [u8]) -> Record<'a> {
        Record { data: &bytes[self.data.clone()], told: &self.told, ..self.record }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source;

    /// A pcap file of `packets` frames that are not RoCEv2; each ends with its index.
    fn file(packets: u32) -> Vec<u8> {
        let mut bytes =
            vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
        for number in 0..packets {
            for word in [7, number % 1_000_000, 100, 100] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend([0; 96]);
            bytes.extend(number.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn packets_of_a_large_file_arrive_in_order_until_the_handler_stops() {
        const PACKETS: u32 = 20_000;
        let path = std::env::temp_dir().join(format!("roxie-decode-{}.pcap", std::process::id()));
        std::fs::write(&path, file(PACKETS)).expect("the temporary directory is writable");
        for wanted in [PACKETS, 5, BATCH_PACKETS as u32] {
            let mut source = source::open(&path).expect("a capture");
            assert!(source.total_len().is_some_and(|len| len > THREAD_MIN));
            let mut next = 0_u32;
            let done = each_packet(&mut source, |packet| {
                assert_eq!(packet.record.number, u64::from(next) + 1);
                assert!(packet.record.data.ends_with(&next.to_le_bytes()));
                next += 1;
                if next < wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            assert!(done.is_ok());
            assert_eq!(next, wanted);
        }
        std::fs::remove_file(&path).expect("the test wrote it");
    }
}

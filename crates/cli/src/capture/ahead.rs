//! Reads a file ahead: framing and the invariant CRC on a thread of their own, while the caller follows the connections.
//!
//! The two threads hand batches of packets back and forth: nothing is allocated for a packet, and memory is that of the batches,
//! however long the file.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use wire::capture::{IcrcCheck, LinkType, NotRoce, Seen};

use super::source::{Record, Source};
use crate::failure::{During, Outcome};

/// Bytes of packets in a batch: small enough to be in the cache still when it is looked at.
const BATCH_LEN: usize = 256 << 10;
/// Packets in a batch.
const BATCH_PACKETS: usize = 2048;
/// Batches on their way.
const BATCHES: usize = 4;
/// A shorter file is read before a thread has started.
const AHEAD_MIN: u64 = 1 << 20;

/// A packet of a capture, decoded.
pub(super) struct Looked<'a> {
    pub(super) record: Record<'a>,
    pub(super) seen: Result<Seen<'a>, NotRoce>,
    /// What its invariant CRC says; `Cut` of what is no RoCEv2.
    pub(super) icrc: IcrcCheck,
    /// How much of the file has been read, give or take a batch.
    pub(super) offset: u64,
}

/// Gives every packet of `source`, without comments, to `look`, which says whether to go on. Packets that come in as they are
/// sent (`source` has no known length) are looked at as they come.
///
/// # Errors
/// If reading fails, and those of `look`.
pub(super) fn each<R: Read + Send>(
    source: &mut Source<R>,
    mut look: impl FnMut(&Looked<'_>) -> Outcome<bool>,
) -> Outcome {
    if source.total_len().is_none_or(|len| len < AHEAD_MIN) {
        loop {
            let offset = source.offset();
            let Some(record) = source.next_record().during("reading")? else { return Ok(()) };
            let seen = Seen::parse(record.link_type, record.data);
            let icrc = check(&seen);
            if !look(&Looked { record, seen, icrc, offset })? {
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
        scope.spawn(move || fill(source, &emptied, &full));
        // Both ends are dropped when that is over, which ends the other thread.
        take(filled, empty, &mut look)
    })
}

/// Reads until the end of the file, or until nobody takes the batches any more.
fn fill<R: Read>(source: &mut Source<R>, empty: &Receiver<Batch>, full: &SyncSender<io::Result<Batch>>) {
    while let Ok(mut batch) = empty.recv() {
        let more = batch.fill(source);
        let ended = !matches!(more, Ok(true));
        if full.send(more.map(|_| batch)).is_err() || ended {
            break;
        }
    }
}

fn take(
    filled: Receiver<io::Result<Batch>>,
    empty: SyncSender<Batch>,
    look: &mut dyn FnMut(&Looked<'_>) -> Outcome<bool>,
) -> Outcome {
    while let Ok(batch) = filled.recv() {
        let batch = batch.during("reading")?;
        for packet in &batch.packets {
            let record = packet.record(&batch.bytes);
            let seen = Seen::parse(record.link_type, record.data);
            let icrc = packet.icrc.unwrap_or_else(|| check(&seen));
            if !look(&Looked { record, seen, icrc, offset: batch.offset })? {
                return Ok(());
            }
        }
        // At the end of the file nobody wants it back.
        let _ = empty.send(batch);
    }
    Ok(())
}

fn check(seen: &Result<Seen<'_>, NotRoce>) -> IcrcCheck {
    seen.as_ref().map_or(IcrcCheck::Cut, Seen::icrc)
}

/// Packets that were read and not looked at yet.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    packets: Vec<Kept>,
    /// Where in the file reading goes on.
    offset: u64,
}

/// A [`Record`] whose bytes are in a batch.
struct Kept {
    number: u64,
    time_ns: u64,
    interface: usize,
    link_type: LinkType,
    data: Range<usize>,
    original_len: usize,
    outbound: Option<bool>,
    /// `None` where looking at it costs nothing, since the end of the packet is not there.
    icrc: Option<IcrcCheck>,
}

impl Batch {
    /// Fills it anew; whether there may be more in the file.
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
            let icrc = whole.then(|| check(&Seen::parse(record.link_type, record.data)));
            let start = self.bytes.len();
            self.bytes.extend_from_slice(record.data);
            self.packets.push(Kept {
                number: record.number,
                time_ns: record.time_ns,
                interface: record.interface,
                link_type: record.link_type,
                data: start..self.bytes.len(),
                original_len: record.original_len,
                outbound: record.outbound,
                icrc,
            });
        }
        self.offset = source.offset();
        Ok(more)
    }
}

impl Kept {
    fn record<'a>(&self, bytes: &'a [u8]) -> Record<'a> {
        Record {
            number: self.number,
            time_ns: self.time_ns,
            interface: self.interface,
            link_type: self.link_type,
            data: &bytes[self.data.clone()],
            original_len: self.original_len,
            outbound: self.outbound,
            comment: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::source;

    /// A pcap file of so many datagrams to the RoCE port, none of which is a packet, with their numbers in them.
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
    fn packets_come_in_their_order_as_long_as_they_are_wanted() {
        const PACKETS: u32 = 20_000;
        let path = std::env::temp_dir().join(format!("roxie-ahead-{}.pcap", std::process::id()));
        std::fs::write(&path, file(PACKETS)).expect("writable");
        for wanted in [PACKETS, 5, BATCH_PACKETS as u32] {
            let mut source = source::open(&path).expect("a capture");
            assert!(source.total_len().is_some_and(|len| len > AHEAD_MIN));
            let mut next = 0_u32;
            let done = each(&mut source, |packet| {
                assert_eq!(packet.record.number, u64::from(next) + 1);
                assert!(packet.record.data.ends_with(&next.to_le_bytes()));
                next += 1;
                Ok(next < wanted)
            });
            assert!(done.is_ok());
            assert_eq!(next, wanted);
        }
        std::fs::remove_file(&path).expect("it was written");
    }
}

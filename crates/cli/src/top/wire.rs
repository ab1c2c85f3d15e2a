//! Connections as an interface shows them: a thread captures and analyses, whoever looks takes the numbers.

use std::io::Read;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ::wire::capture::Seen;
use roxie::status::QpStatus;

use super::table::{Counts, Item, Key};
use crate::capture::analyse::{Analysis, Half};
use crate::capture::{Place, Wanted, listen};
use crate::failure::{Failure, Outcome};

/// Headers are enough.
const SNAP: u32 = 128;

/// An interface that is listened to.
pub(super) struct Wire {
    name: String,
    analysis: Arc<Mutex<Analysis>>,
    thread: thread::JoinHandle<()>,
}

impl Wire {
    /// Starts to listen.
    pub(super) fn open(name: &str) -> Outcome<Self> {
        let analysis = Arc::new(Mutex::new(Analysis::new()));
        let (begun, begins) = mpsc::channel();
        let (place, shared) = (Place::Netdev(name.to_owned()), Arc::clone(&analysis));
        let thread = thread::spawn(move || {
            let wanted = Wanted { snap: Some(SNAP), ..Wanted::default() };
            let mut source = match listen(&place, &wanted) {
                Ok(source) => source,
                Err(failure) => return drop(begun.send(Err(failure))),
            };
            // Nobody waits: the program has ended.
            if begun.send(Ok(())).is_ok() {
                feed(&mut source, &shared);
            }
        });
        begins.recv().unwrap_or_else(|_| Err(Failure::new("the capture has ended before it began")))?;
        Ok(Self { name: name.to_owned(), analysis, thread })
    }

    /// The connections so far; a direction whose other one was not seen stands alone.
    pub(super) fn look(&self) -> Outcome<Vec<Item>> {
        if self.thread.is_finished() {
            return Err(Failure::new(format!("{}: the capture has ended", self.name)));
        }
        let analysis = self.analysis.lock().unwrap_or_else(PoisonError::into_inner);
        let halves = analysis.halves();
        let each = halves.iter().enumerate().filter_map(|(index, half)| {
            let back = match half.peer {
                Some(peer) if peer < index => return None,
                peer => peer.and_then(|peer| halves.get(peer)),
            };
            Some(item(half, back))
        });
        Ok(each.collect())
    }

    pub(super) fn summary(&self) -> String {
        let analysis = self.analysis.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = analysis.totals();
        let lost = match totals.not_followed {
            0 => String::new(),
            packets => format!(", {packets} packets not followed"),
        };
        format!("{}: {} RoCEv2 packets seen{lost}", self.name, totals.roce)
    }
}

fn feed(source: &mut crate::capture::source::Source<Box<dyn Read + Send>>, analysis: &Mutex<Analysis>) {
    while let Ok(Some(record)) = source.next_record() {
        let seen = Seen::parse(record.link_type, record.data);
        analysis.lock().unwrap_or_else(PoisonError::into_inner).feed(&record, &seen);
    }
}

/// A connection, from the side whose packets were seen first.
fn item(half: &Half, back: Option<&Half>) -> Item {
    let key = half.key;
    let status = QpStatus {
        qpn: back.map(|back| back.key.qp).unwrap_or_default(),
        service: half.service_name().to_owned(),
        local: Some(key.src),
        remote: Some(key.dst),
        dest_qpn: Some(key.qp),
        round_trip_ns: half.counts.latency.percentile(50),
        ..QpStatus::default()
    };
    let of = |count: fn(&Half) -> u64| (count(half), back.map_or(0, count));
    let messages = of(|half| half.counts.messages.iter().map(|(_, count)| count).sum());
    let (bytes, packets) = (of(|half| half.counts.bytes), of(|half| half.counts.packets));
    let both = |count: fn(&Half) -> u64| {
        let (there, back) = of(count);
        there + back
    };
    let totals: Counts = [
        bytes.0,
        bytes.1,
        messages.0,
        messages.1,
        packets.0,
        packets.1,
        both(|half| half.counts.resent),
        both(|half| half.counts.episodes),
        both(|half| half.counts.naks),
        both(|half| half.counts.rnr_naks),
        both(|half| half.counts.cnps),
        both(|half| half.counts.ce),
    ];
    let key = Key::Wire { src: key.src, dst: key.dst, qpn: key.qp };
    Item { key, command: String::new(), status, totals }
}

//! Writing the records of a tap to the memory that its reader shares, in the format of an interface's tap
//! ([`TapHeader`]).
//!
//! If only the first bytes of packets are wanted, consecutive packets of one burst or batch share a
//! record, which contains the outer headers once. The reader derives the others as the kernel does for a
//! burst: identifications count up, and all lengths but the last packet's are those of the header. A
//! record is published when the next packet does not belong to it, at the end of its batch, and before
//! the engine does anything other than sending.

use bpf::TapHeader;
use wire::icrc::ICRC_LEN;
use wire::{IcrcHeader, Qpn};

use super::HookPoint;
use roxie::port::Headers;
use roxie::runtime::Runtime;
use sys::RecordWriter;

/// What the packets of a flow or a batch have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    pub(super) headers: Headers,
    pub(super) icrc: IcrcHeader,
}

/// A packet at the tap.
pub(super) struct Passing<'a> {
    pub(super) point: HookPoint,
    pub(super) outer: &'a Outer,
    /// IPv4 identification.
    pub(super) id: u16,
    /// BTH to pad.
    pub(super) body: &'a [u8],
    /// The ICRC of a received packet; not computed yet on egress.
    pub(super) icrc: Option<[u8; ICRC_LEN]>,
    /// The local queue pair that sends it.
    pub(super) sender: Option<Qpn>,
}

/// Records of packets for a reader.
#[derive(Debug)]
pub(super) struct Copies {
    memory: RecordWriter,
    /// The clock of the records' times.
    runtime: Runtime,
    /// Most bytes of each frame, but always the outer headers; 0 for all.
    snap_len: usize,
    /// Distance of two packets' copies in a record; 0 if each packet has its own record.
    stride: usize,
    /// Most packets of a record.
    packets_max: usize,
    run: Option<Run>,
    /// Packets wait for the reader instead of being lost.
    is_complete: bool,
    /// When the reader became slow ([`is_reader_slow`](Self::is_reader_slow)), in nanoseconds.
    slow_since_ns: Option<u64>,
}

/// The packets of the open record.
#[derive(Clone, Copy, Debug)]
struct Run {
    point: HookPoint,
    outer_len: usize,
    is_v6: bool,
    /// Identification of the next packet.
    next_id: u16,
    /// UDP payload of each packet but the last.
    segment: usize,
    /// UDP payload of all packets.
    payload_len: usize,
    packets: usize,
    /// The last packet was shorter, so no further one can follow.
    is_complete: bool,
}

/// With more bytes of each frame than this, every packet has a record of its own.
const SHARED_SNAP_MAX: usize = 298;
/// Most packets of a record: those of a burst of 64 KiB at path MTU 1024.
const PACKETS_MAX: usize = 64;
/// Longest pause for the reader, which may have been killed or write to a slow disk. With a second on each
/// side the retries of `ib_write_bw` are exceeded (timeout 14, retry_cnt 7).
const PAUSE_MAX_NS: u64 = 100_000_000;
/// The memory holds at least this many records, however small it is.
const RECORDS_MIN: usize = 4;

impl Copies {
    /// Creates a writer of `snap_len` bytes of each frame, 0 for all, to this memory.
    pub(super) fn new(memory: RecordWriter, snap_len: usize, runtime: Runtime) -> Copies {
        let is_shared = (1..=SHARED_SNAP_MAX).contains(&snap_len);
        let stride =
            if is_shared { snap_len.saturating_sub(Headers::LEN_V4).max(1).next_multiple_of(8) } else { 0 };
        let room = (memory.len() / RECORDS_MIN).saturating_sub(TapHeader::PACKETS_AT);
        let packets_max = room.checked_div(stride).map_or(1, |packets| packets.clamp(1, PACKETS_MAX));
        let (is_complete, slow_since_ns) = (false, None);
        Copies { memory, runtime, snap_len, stride, packets_max, run: None, is_complete, slow_since_ns }
    }

    /// Packets wait for the reader instead of being lost. Each packet has a record of its own, published
    /// before the packet leaves: so no record of its receiver is published earlier.
    pub(super) fn complete(self) -> Copies {
        Copies { stride: 0, packets_max: 1, is_complete: true, ..self }
    }

    /// Whether packets are to wait because the reader is slow: half of the memory is unread. A round of
    /// receiving or a quantum of sending fits into the other half. False again after [`PAUSE_MAX_NS`]:
    /// packets are lost then when the memory is full.
    pub(super) fn is_reader_slow(&mut self, now_ns: u64) -> bool {
        if !self.is_complete || self.memory.unread() <= self.memory.len() / 2 {
            self.slow_since_ns = None;
            return false;
        }
        now_ns.saturating_sub(*self.slow_since_ns.get_or_insert(now_ns)) < PAUSE_MAX_NS
    }

    /// Whether there is room for a packet of `len` bytes, BTH to pad.
    #[inline]
    pub(super) fn have_room(&self, len: usize) -> bool {
        self.run.is_some() || self.memory.has_room(self.record_len(len))
    }

    /// Counts packets for which there is no space.
    pub(super) fn lose(&mut self, packets: u64) {
        self.memory.lose(packets);
    }

    /// Copies a packet, or counts it as lost.
    pub(super) fn take(&mut self, packet: &Passing<'_>) {
        if self.stride == 0 {
            return self.take_single(packet, None);
        }
        let payload_len = packet.body.len() + ICRC_LEN;
        let run = match self.run {
            Some(run) if run.packets < self.packets_max && run.continues_with(packet) => run,
            _ => {
                self.end_record();
                if !self.memory.begin(self.record_len(payload_len)) {
                    return self.lose(1);
                }
                let mut outer = [0; Headers::LEN_MAX];
                let outer = packet.outer(&mut outer);
                self.memory.write(TapHeader::LEN, outer);
                Run::new(packet, outer.len())
            }
        };
        let len = self.snap_len.saturating_sub(run.outer_len).min(payload_len);
        let at = TapHeader::PACKETS_AT + run.packets * self.stride;
        let (body, icrc) = packet.payload(len);
        self.memory.write(at, body);
        self.memory.write(at + body.len(), &icrc[..len - body.len()]);
        self.run = Some(Run {
            next_id: packet.id.wrapping_add(1),
            payload_len: run.payload_len + payload_len,
            packets: run.packets + 1,
            is_complete: payload_len < run.segment,
            ..run
        });
    }

    /// Publishes the open record.
    #[inline]
    pub(super) fn end_record(&mut self) {
        if let Some(run) = self.run.take() {
            self.publish(run);
        }
    }

    fn publish(&mut self, run: Run) {
        let header = TapHeader {
            // The packets of a burst leave at this time.
            time_ns: self.runtime.now_ns(),
            len: (run.outer_len + run.payload_len) as u32,
            outer_len: run.outer_len as u32,
            segment: if run.packets > 1 { run.segment as u32 } else { 0 },
            stride: self.stride as u32,
            outbound: run.point == HookPoint::Egress,
            ..TapHeader::default()
        };
        self.memory.write(0, &header.to_bytes());
        self.memory.end(TapHeader::PACKETS_AT + run.packets * self.stride);
    }

    /// Copies a packet with the verdict of a hook that did not pass it, or counts it as lost.
    pub(super) fn take_judged(&mut self, packet: &Passing<'_>, verdict: u8) {
        self.end_record();
        self.take_single(packet, Some(verdict));
    }

    /// Writes a record of one packet, as long as the packet is.
    fn take_single(&mut self, packet: &Passing<'_>, verdict: Option<u8>) {
        let mut outer = [0; Headers::LEN_MAX];
        let outer = packet.outer(&mut outer);
        let len = outer.len() + packet.body.len() + ICRC_LEN;
        let snap_len = if self.snap_len == 0 { len } else { len.min(self.snap_len.max(outer.len())) };
        // Read the clock and compute an ICRC only if there is room.
        if !self.memory.has_room(TapHeader::LEN + snap_len) {
            return self.lose(1);
        }
        let header = TapHeader {
            time_ns: self.runtime.now_ns(),
            len: len as u32,
            outer_len: outer.len() as u32,
            outbound: packet.point == HookPoint::Egress,
            verdict,
            ..TapHeader::default()
        };
        let (body, icrc) = packet.payload(snap_len - outer.len());
        let icrc = &icrc[..snap_len - outer.len() - body.len()];
        self.memory.push(&[&header.to_bytes(), outer, body, icrc]);
    }

    /// Bytes of the longest record that may begin with a packet of `len` bytes.
    fn record_len(&self, len: usize) -> usize {
        match (self.stride, self.snap_len) {
            (0, 0) => TapHeader::LEN + Headers::LEN_V4 + len + ICRC_LEN,
            (0, snap_len) => TapHeader::LEN + snap_len.min(Headers::LEN_V4 + len + ICRC_LEN),
            (stride, _) => TapHeader::PACKETS_AT + self.packets_max * stride,
        }
    }
}

impl Run {
    fn new(packet: &Passing<'_>, outer_len: usize) -> Run {
        Run {
            point: packet.point,
            outer_len,
            is_v6: packet.outer.headers.key().src.is_ipv6(),
            next_id: packet.id,
            segment: packet.body.len() + ICRC_LEN,
            payload_len: 0,
            packets: 0,
            is_complete: false,
        }
    }

    fn continues_with(&self, packet: &Passing<'_>) -> bool {
        let fits = packet.body.len() + ICRC_LEN <= self.segment && packet.point == self.point;
        fits && !self.is_complete && (self.is_v6 || packet.id == self.next_id)
    }
}

impl Passing<'_> {
    /// Writes the outer headers to `room` and returns them.
    fn outer<'a>(&self, room: &'a mut [u8; Headers::LEN_MAX]) -> &'a [u8] {
        let outer = &mut room[..self.outer.headers.len()];
        self.outer.headers.emit_with_id(outer, self.body.len() + ICRC_LEN, self.id);
        outer
    }

    /// Returns the part of the first `len` bytes of the UDP payload that is before the ICRC, and the ICRC
    /// if `len` exceeds that part.
    fn payload(&self, len: usize) -> (&[u8], [u8; ICRC_LEN]) {
        let body = &self.body[..len.min(self.body.len())];
        let made = || self.outer.icrc.icrc(self.id, self.body).to_le_bytes();
        // Computing the ICRC reads the complete packet.
        (body, if len > body.len() { self.icrc.unwrap_or_else(made) } else { [0; ICRC_LEN] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::{RecordReader, RecordWriter};

    #[test]
    fn packets_wait_for_the_reader_of_a_recording_for_a_limited_time() {
        let (memory, reader) = RecordWriter::new(4096).expect("memory");
        let mut reader = RecordReader::new(reader).expect("a queue");
        let mut copies = Copies::new(memory, 0, Runtime::Kernel).complete();
        assert!(!copies.is_reader_slow(1));
        while copies.memory.push(&[&[7; 500]]) {}
        for (after_ns, is_reader_slow) in [(0, true), (PAUSE_MAX_NS - 1, true), (PAUSE_MAX_NS, false)] {
            assert_eq!(copies.is_reader_slow(5 + after_ns), is_reader_slow, "{after_ns}");
        }
        // The time counts from the moment at which the reader becomes slow again.
        assert!(reader.read(usize::MAX, |_| {}) > 0 && !copies.is_reader_slow(9 * PAUSE_MAX_NS));
        while copies.memory.push(&[&[7; 500]]) {}
        assert!(copies.is_reader_slow(10 * PAUSE_MAX_NS) && copies.is_reader_slow(11 * PAUSE_MAX_NS - 1));
        let mut sampled = Copies::new(RecordWriter::new(4096).expect("memory").0, 0, Runtime::Kernel);
        while sampled.memory.push(&[&[7; 500]]) {}
        assert!(!sampled.is_reader_slow(1), "others lose packets");
    }
}

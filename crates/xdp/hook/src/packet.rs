//! A packet as stages see it, and the buffer in which its frame is built when a stage asks for it.
//!
//! ```text
//!  buffer: | headroom          | headers | UDP payload                      | tailroom |
//!          0                             PAYLOAD_AT                                    len
//! ```
//!
//! The packets of a batch have equal headers, so these stay in the buffer from one packet to the next.
//! Only the first bytes of the payload are copied; the interpreter fetches the rest if a program accesses
//! it.

use std::ops::Range;

use bpf::vm::XdpBuff;

use roxie::port::{Headers, MAX_PACKET, RxBatch, RxQueue, batch_of};
use roxie::runtime::Runtime;

/// Offset of the payload, on a cache line: headroom and headers come before it. The kernel offers 256
/// bytes of headroom.
pub(super) const PAYLOAD_AT: usize = 384;
/// Bytes that programs may append.
const TAILROOM: usize = 512;
/// Bytes of payload that suffice for most programs: every header that a RoCE packet can have.
const HEAD_LEN: usize = 64;

const _: () = assert!(PAYLOAD_AT >= 256 + Headers::LEN_MAX);

/// The buffer, and the headers of the current packets.
#[derive(Debug)]
pub(super) struct Scratch {
    buffer: Box<[u8]>,
    headers: Option<Headers>,
    /// UDP payload length for which the headers are in the buffer.
    emitted_for: Option<usize>,
    ifindex: u32,
    /// The packets were received; those of the egress hook were not.
    is_received: bool,
}

impl Scratch {
    pub(super) fn new(ifindex: u32) -> Scratch {
        let buffer = vec![0; PAYLOAD_AT + MAX_PACKET + TAILROOM].into_boxed_slice();
        Scratch { buffer, headers: None, emitted_for: None, ifindex, is_received: false }
    }

    /// Sets the headers of the next packets, and whether they were received.
    pub(super) fn begin(&mut self, headers: Headers, is_received: bool) {
        self.is_received = is_received;
        self.headers = Some(headers);
        self.emitted_for = None;
    }

    pub(super) fn headers(&self) -> Option<&Headers> {
        self.headers.as_ref()
    }

    pub(super) fn headers_len(&self) -> usize {
        self.headers.as_ref().map_or(0, Headers::len)
    }

    pub(super) fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Returns the packet at `frame` as the stages have changed it, in the form of a received one; `None`
    /// if it is invalid.
    pub(super) fn packet_at(&self, frame: &Range<usize>, queue: RxQueue) -> Option<RxBatch<'_>> {
        let (_, udp_port) = self.headers?.ports();
        let batch = batch_of(self.buffer.get(frame.clone())?, udp_port, queue)?;
        (batch.bytes.len() <= MAX_PACKET).then_some(batch)
    }

    /// Returns a copy of the complete frame: the changed one at `changed`, else that of the packet with
    /// UDP payload `bytes`.
    pub(super) fn copy(&self, changed: Option<&Range<usize>>, bytes: &[u8]) -> Vec<u8> {
        if let Some(frame) = changed.and_then(|frame| self.buffer.get(frame.clone())) {
            return frame.to_vec();
        }
        let mut frame = vec![0; self.headers_len()];
        if let Some(headers) = &self.headers {
            headers.emit(&mut frame, bytes.len());
        }
        frame.extend(bytes);
        frame
    }

    /// Builds the frame of a packet with UDP payload `bytes`.
    #[inline]
    fn frame<'a>(&'a mut self, bytes: &'a [u8]) -> Option<XdpBuff<'a>> {
        let headers = self.headers.as_ref()?;
        if bytes.len() > MAX_PACKET {
            return None;
        }
        if self.emitted_for != Some(bytes.len()) {
            headers.emit(&mut self.buffer[..PAYLOAD_AT], bytes.len());
            self.emitted_for = Some(bytes.len());
        }
        let (head, rest) = bytes.split_at(bytes.len().min(HEAD_LEN));
        self.buffer[PAYLOAD_AT..PAYLOAD_AT + head.len()].copy_from_slice(head);
        let frame = PAYLOAD_AT - headers.len()..PAYLOAD_AT + head.len();
        XdpBuff::new(&mut self.buffer, frame)?.with_rest(rest)
    }
}

/// A packet in a hook.
#[derive(Debug)]
pub struct HookPacket<'a> {
    scratch: &'a mut Scratch,
    pub(super) runtime: &'a Runtime,
    bytes: &'a [u8],
    /// Position of the frame after a stage has changed it.
    pub(super) changed: Option<Range<usize>>,
    pub(super) hold_ns: u64,
    pub(super) is_doubled: bool,
}

impl<'a> HookPacket<'a> {
    #[inline]
    pub(super) fn new(scratch: &'a mut Scratch, runtime: &'a Runtime, bytes: &'a [u8]) -> HookPacket<'a> {
        HookPacket { scratch, runtime, bytes, changed: None, hold_ns: 0, is_doubled: false }
    }

    /// The time of the engine's clock (nanoseconds).
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.runtime.now_ns()
    }

    /// Bytes of the frame, Ethernet header to ICRC.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        match &self.changed {
            Some(frame) => frame.len(),
            None => self.scratch.headers_len() + self.bytes.len(),
        }
    }

    /// Addresses and ports of the original packet.
    #[must_use]
    pub fn headers(&self) -> Option<&Headers> {
        self.scratch.headers()
    }

    /// BTH to ICRC of the original packet.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Gives the frame to `look`, which may change it. `None` if the packet is longer than any valid one.
    #[inline]
    pub fn with_frame<R>(&mut self, look: impl FnOnce(&mut XdpBuff<'_>) -> R) -> Option<R> {
        let (ifindex, is_received) = (self.scratch.ifindex, self.is_received());
        let mut buff = match &self.changed {
            None => self.scratch.frame(self.bytes)?,
            Some(frame) => XdpBuff::new(&mut self.scratch.buffer, frame.clone())?,
        };
        buff.ingress_ifindex = ifindex;
        // For programs of DEVMAP entries.
        buff.egress_ifindex = if is_received { 0 } else { ifindex };
        let answer = look(&mut buff);
        if buff.is_changed() {
            buff.fetch_rest();
            self.changed = Some(buff.range());
            self.scratch.emitted_for = None;
        }
        Some(answer)
    }

    /// Whether the packet was received.
    #[inline]
    pub(super) fn is_received(&self) -> bool {
        self.scratch.is_received
    }

    /// Holds the packet back for this time after the last stage; the longest time of all stages counts.
    pub fn hold_ns(&mut self, hold_ns: u64) {
        self.hold_ns = self.hold_ns.max(hold_ns);
    }

    /// Duplicates the packet.
    pub fn double(&mut self) {
        self.is_doubled = true;
    }
}

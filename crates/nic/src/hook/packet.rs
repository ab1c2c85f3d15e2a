//! A packet as stages see it, and the buffer in which its frame is put together when one asks.
//!
//! ```text
//!  buffer: | headroom          | headers | UDP payload                      | tailroom |
//!          0                             PAYLOAD_AT                                    len
//! ```
//!
//! The headers of a batch's packets are equal, so they stay in the buffer from one packet to the next. Of the payload
//! only the first bytes are copied; the machine fetches the rest if a program asks for it.

use std::ops::Range;

use bpf::vm::XdpBuff;

use crate::port::{Headers, MAX_PACKET, RxBatch, RxQueue, batch_of};

/// Headroom, headers, and then the payload on a cache line. The kernel offers 256 bytes of headroom.
pub(super) const PAYLOAD_AT: usize = 384;
/// What programs may append.
const TAILROOM: usize = 512;
/// Bytes of payload that most programs are content with: every header a RoCE packet can have.
const HEAD_LEN: usize = 64;

const _: () = assert!(PAYLOAD_AT >= 256 + Headers::LEN_MAX);

/// The buffer, and the headers of the packets that are being looked at.
#[derive(Debug)]
pub(super) struct Scratch {
    buffer: Box<[u8]>,
    headers: Option<Headers>,
    /// UDP payload length for which the headers are in the buffer.
    emitted_for: Option<usize>,
    ifindex: u32,
}

impl Scratch {
    pub(super) fn new(ifindex: u32) -> Scratch {
        let buffer = vec![0; PAYLOAD_AT + MAX_PACKET + TAILROOM].into_boxed_slice();
        Scratch { buffer, headers: None, emitted_for: None, ifindex }
    }

    /// The packets that follow have these headers.
    pub(super) fn begin(&mut self, headers: Headers) {
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

    /// The packet that stages have left at `frame`, as if it had arrived like that; `None` if it is none.
    pub(super) fn packet_at(&self, frame: &Range<usize>, queue: RxQueue) -> Option<RxBatch<'_>> {
        let (_, udp_port) = self.headers?.ports();
        let batch = batch_of(self.buffer.get(frame.clone())?, udp_port, queue)?;
        (batch.bytes.len() <= MAX_PACKET).then_some(batch)
    }

    /// A copy of the whole frame: what stages have left at `changed`, else the packet whose UDP payload is `bytes`.
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

    /// The frame of a packet whose UDP payload is `bytes`.
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

/// A packet on its way through a hook.
#[derive(Debug)]
pub struct HookPacket<'a> {
    scratch: &'a mut Scratch,
    bytes: &'a [u8],
    /// Where a stage has left the frame, once one has changed it.
    pub(super) changed: Option<Range<usize>>,
    pub(super) hold_ns: u64,
    pub(super) is_doubled: bool,
}

impl<'a> HookPacket<'a> {
    #[inline]
    pub(super) fn new(scratch: &'a mut Scratch, bytes: &'a [u8]) -> HookPacket<'a> {
        HookPacket { scratch, bytes, changed: None, hold_ns: 0, is_doubled: false }
    }

    /// Bytes of the frame, Ethernet header to ICRC.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        match &self.changed {
            Some(frame) => frame.len(),
            None => self.scratch.headers_len() + self.bytes.len(),
        }
    }

    /// Addresses and ports as the packet came.
    #[must_use]
    pub fn headers(&self) -> Option<&Headers> {
        self.scratch.headers()
    }

    /// BTH to ICRC as the packet came.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Gives the frame to `look`, which may change it. `None` if it is too long to be a packet.
    #[inline]
    pub fn with_frame<R>(&mut self, look: impl FnOnce(&mut XdpBuff<'_>) -> R) -> Option<R> {
        let ifindex = self.scratch.ifindex;
        let mut buff = match &self.changed {
            None => self.scratch.frame(self.bytes)?,
            Some(frame) => XdpBuff::new(&mut self.scratch.buffer, frame.clone())?,
        };
        buff.ingress_ifindex = ifindex;
        let answer = look(&mut buff);
        if buff.is_changed() {
            buff.fetch_rest();
            self.changed = Some(buff.range());
            self.scratch.emitted_for = None;
        }
        Some(answer)
    }

    /// The packet is held back for this long after the last stage; of several stages the longest time counts.
    pub fn hold_ns(&mut self, hold_ns: u64) {
        self.hold_ns = self.hold_ns.max(hold_ns);
    }

    /// The packet passes twice.
    pub fn double(&mut self) {
        self.is_doubled = true;
    }
}

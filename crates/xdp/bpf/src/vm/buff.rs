//! The packet on which a program runs, in the layout of the kernel's `struct xdp_buff`.
//!
//! ```text
//!  buffer: | reserved | headroom | metadata | packet | tailroom |    then further fragments
//!          0          40         meta       data     end      len
//! ```
//!
//! The last bytes of the packet may be elsewhere until a program accesses them, because most programs only
//! read headers.

use std::ops::Range;

/// A packet in its buffer, with the fields of `struct xdp_md`.
#[derive(Debug)]
pub struct XdpBuff<'a> {
    buffer: &'a mut [u8],
    meta: usize,
    data: usize,
    end: usize,
    /// The last bytes of the packet that are not in the buffer yet.
    rest: &'a [u8],
    changed: bool,
    frags: &'a mut [&'a mut [u8]],
    /// Index of the interface that received the packet.
    pub ingress_ifindex: u32,
    /// Receive queue of the packet.
    pub rx_queue_index: u32,
    /// Index of the outgoing interface, for programs in a DEVMAP.
    pub egress_ifindex: u32,
}

/// Negated Linux error numbers that the helpers return.
const EFAULT: i64 = -14;
const EINVAL: i64 = -22;
const EACCES: i64 = -13;
const EOPNOTSUPP: i64 = -95;

impl<'a> XdpBuff<'a> {
    /// Bytes at the start of the buffer that programs cannot use as headroom; the kernel keeps `struct
    /// xdp_frame` there.
    pub const RESERVED: usize = 40;
    /// Maximum length of a buffer in bytes.
    pub const LEN_MAX: usize = 1 << 24;
    /// Shortest packet that a program may leave: an Ethernet header, in bytes.
    const PACKET_MIN: usize = 14;
    /// Maximum length of the metadata in bytes.
    const META_MAX: usize = 255;

    /// Returns the packet at range `packet` of the buffer; the bytes around it are headroom and tailroom.
    /// Returns `None` if the range is not in the buffer or the buffer is longer than [`XdpBuff::LEN_MAX`].
    #[must_use]
    pub fn new(buffer: &'a mut [u8], packet: Range<usize>) -> Option<XdpBuff<'a>> {
        buffer.get(packet.clone())?;
        if buffer.len() > Self::LEN_MAX {
            return None;
        }
        Some(XdpBuff {
            buffer,
            meta: packet.start,
            data: packet.start,
            end: packet.end,
            rest: &[],
            changed: false,
            frags: &mut [],
            ingress_ifindex: 0,
            rx_queue_index: 0,
            egress_ifindex: 0,
        })
    }

    /// Appends `rest` to the packet. Its bytes are copied into the buffer when a program accesses them.
    /// Returns `None` if the buffer has no space for them.
    #[must_use]
    pub fn with_rest(self, rest: &'a [u8]) -> Option<XdpBuff<'a>> {
        let end = self.end + rest.len();
        (end <= self.buffer.len()).then_some(XdpBuff { rest, end, ..self })
    }

    /// Adds further fragments. Programs can only access them through helpers.
    #[must_use]
    pub fn with_frags(self, frags: &'a mut [&'a mut [u8]]) -> XdpBuff<'a> {
        XdpBuff { frags, ..self }
    }

    /// Returns the range of the packet, or of its linear part, in the buffer.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.data..self.end
    }

    /// Returns the bytes of the packet, or of its linear part, that are in the buffer.
    #[must_use]
    pub fn packet(&self) -> &[u8] {
        &self.buffer[self.data..self.end - self.rest.len()]
    }

    /// Returns the same bytes for writing, and marks the packet as changed.
    pub fn packet_mut(&mut self) -> &mut [u8] {
        self.changed = true;
        &mut self.buffer[self.data..self.end - self.rest.len()]
    }

    /// Returns whether a program has written to the packet or moved its start or end.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Returns the metadata in front of the packet.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        &self.buffer[self.meta..self.data]
    }

    /// Returns the length of the packet in bytes, with all fragments.
    #[must_use]
    pub fn total_len(&self) -> usize {
        self.end - self.data + self.frags.iter().map(|frag| frag.len()).sum::<usize>()
    }

    /// Returns whether the packet has further fragments.
    pub(super) fn has_frags(&self) -> bool {
        !self.frags.is_empty()
    }

    /// Returns the range of metadata and packet in the buffer, which programs access directly.
    #[inline(always)]
    pub(super) fn window(&self) -> Range<usize> {
        self.meta..self.end - self.rest.len()
    }

    /// Copies the bytes given to [`with_rest`](Self::with_rest) into the buffer unless that has been done.
    /// Returns whether bytes were missing.
    pub fn fetch_rest(&mut self) -> bool {
        let rest = std::mem::take(&mut self.rest);
        self.buffer[self.end - rest.len()..self.end].copy_from_slice(rest);
        !rest.is_empty()
    }

    #[inline(always)]
    pub(super) fn buffer(&self) -> &[u8] {
        self.buffer
    }

    #[inline(always)]
    pub(super) fn buffer_mut(&mut self) -> &mut [u8] {
        self.buffer
    }

    /// Marks the packet as changed. Every writer to [`buffer_mut`](Self::buffer_mut) must call it.
    #[inline(always)]
    pub(super) fn mark_changed(&mut self) {
        self.changed = true;
    }

    pub(super) fn meta(&self) -> usize {
        self.meta
    }

    /// `bpf_xdp_adjust_head`: moves the start of the packet by `delta` bytes, and the metadata with it.
    pub(super) fn adjust_head(&mut self, delta: i32) -> i64 {
        let meta_len = self.data - self.meta;
        let Some(data) = self.data.checked_add_signed(delta as isize) else { return EINVAL };
        if data < Self::RESERVED + meta_len || data + Self::PACKET_MIN > self.end {
            return EINVAL;
        }
        self.fetch_rest();
        self.changed = true;
        self.buffer.copy_within(self.meta..self.data, data - meta_len);
        (self.meta, self.data) = (data - meta_len, data);
        0
    }

    /// `bpf_xdp_adjust_meta`: moves the start of the metadata by `delta` bytes.
    pub(super) fn adjust_meta(&mut self, delta: i32) -> i64 {
        let Some(meta) = self.meta.checked_add_signed(delta as isize) else { return EINVAL };
        if meta < Self::RESERVED || meta > self.data {
            return EINVAL;
        }
        let len = self.data - meta;
        if !len.is_multiple_of(4) || len > Self::META_MAX {
            return EACCES;
        }
        self.meta = meta;
        0
    }

    /// `bpf_xdp_adjust_tail`: moves the end of the packet by `delta` bytes. New bytes are 0. Fragments can
    /// only shrink.
    pub(super) fn adjust_tail(&mut self, delta: i32) -> i64 {
        if !self.frags.is_empty() {
            return if delta < 0 { self.shrink(delta.unsigned_abs() as usize) } else { EOPNOTSUPP };
        }
        let Some(end) = self.end.checked_add_signed(delta as isize) else { return EINVAL };
        if end > self.buffer.len() || end < self.data + Self::PACKET_MIN {
            return EINVAL;
        }
        self.fetch_rest();
        self.changed = true;
        if end > self.end {
            self.buffer[self.end..end].fill(0);
        }
        self.end = end;
        0
    }

    /// Removes `len` bytes, from the last fragment first. An empty fragment stays with length 0.
    fn shrink(&mut self, mut len: usize) -> i64 {
        if self.total_len() < len + Self::PACKET_MIN {
            return EINVAL;
        }
        self.changed = true;
        for frag in self.frags.iter_mut().rev() {
            let cut = len.min(frag.len());
            let kept = frag.len() - cut;
            *frag = &mut std::mem::take(frag)[..kept];
            len -= cut;
        }
        self.end -= len;
        0
    }

    /// `bpf_xdp_load_bytes`: calls `take` with the pieces of `offset..offset + len`.
    pub(super) fn pieces(&mut self, offset: u32, len: u32, mut take: impl FnMut(&[u8])) -> i64 {
        if let Err(error) = self.check(offset, len) {
            return error;
        }
        self.fetch_rest();
        let (mut skip, mut left) = (offset as usize, len as usize);
        let frags = self.frags.iter().map(|frag| &**frag);
        for part in std::iter::once(&self.buffer[self.data..self.end]).chain(frags) {
            let piece = &part[skip.min(part.len())..];
            let piece = &piece[..left.min(piece.len())];
            take(piece);
            skip -= skip.min(part.len());
            left -= piece.len();
        }
        0
    }

    /// `bpf_xdp_store_bytes`
    pub(super) fn store(&mut self, offset: u32, bytes: &[u8]) -> i64 {
        if let Err(error) = self.check(offset, bytes.len() as u32) {
            return error;
        }
        self.fetch_rest();
        self.changed = true;
        let (mut skip, mut left) = (offset as usize, bytes);
        let linear = &mut self.buffer[self.data..self.end];
        for part in std::iter::once(linear).chain(self.frags.iter_mut().map(|frag| &mut **frag)) {
            let len = part.len();
            let piece = &mut part[skip.min(len)..];
            let (now, later) = left.split_at(left.len().min(piece.len()));
            piece[..now.len()].copy_from_slice(now);
            skip -= skip.min(len);
            left = later;
        }
        0
    }

    fn check(&self, offset: u32, len: u32) -> Result<(), i64> {
        if offset > 0xffff || len > 0xffff {
            return Err(EFAULT);
        }
        if (offset + len) as usize > self.total_len() { Err(EINVAL) } else { Ok(()) }
    }
}

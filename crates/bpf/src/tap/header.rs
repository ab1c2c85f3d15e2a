//! What stands in front of a copy in the ring.

use super::OUTER_ROOM;

/// In front of each copy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TapHeader {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Bytes of the buffer, Ethernet header to ICRC of the last packet.
    pub len: u32,
    /// Bytes in front of the UDP payload.
    pub outer_len: u32,
    /// UDP payload of each packet but the last, if the buffer holds several; else 0.
    pub segment: u32,
    /// Bytes from one packet's copy to the next one's; 0 if the copy is in one piece.
    pub stride: u32,
    /// The tag that the NIC has taken off: VLAN, priority; 0 if there is none.
    pub vlan: u16,
    /// It was leaving the host.
    pub outbound: bool,
    /// For a sample: packets that this CPU had counted before the first of these.
    pub number: u64,
}

impl TapHeader {
    /// Bytes in the ring.
    pub const LEN: usize = 40;
    /// With a stride, the packets' copies begin here, and the headers that they share in front of them.
    pub const PACKETS_AT: usize = Self::LEN + OUTER_ROOM as usize;

    pub(super) const TIME: i16 = 0;
    pub(super) const BUFFER_LEN: i16 = 8;
    pub(super) const OUTER: i16 = 12;
    pub(super) const SEGMENT: i16 = 16;
    pub(super) const STRIDE: i16 = 20;
    pub(super) const VLAN: i16 = 24;
    pub(super) const OUTBOUND: i16 = 28;
    pub(super) const NUMBER: i16 = 32;

    /// Decodes a record; `None` if it is shorter than a header.
    #[must_use]
    pub fn parse(record: &[u8]) -> Option<(TapHeader, &[u8])> {
        let (header, copy) = record.split_first_chunk::<{ Self::LEN }>()?;
        let word = |at: i16| {
            let at = at as usize;
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let long = |at: i16| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let parsed = TapHeader {
            time_ns: long(Self::TIME),
            len: word(Self::BUFFER_LEN),
            outer_len: word(Self::OUTER),
            segment: word(Self::SEGMENT),
            stride: word(Self::STRIDE),
            vlan: word(Self::VLAN) as u16,
            outbound: word(Self::OUTBOUND) != 0,
            number: long(Self::NUMBER),
        };
        Some((parsed, copy))
    }
}

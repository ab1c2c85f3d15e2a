//! Header in front of a copy in the ring. Other sources of copies use the same header.

use super::OUTER_ROOM;

/// Header in front of each copy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TapHeader {
    /// Time of the copy, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// Length of the buffer in bytes, from the Ethernet header to the ICRC of the last packet.
    pub len: u32,
    /// Bytes in front of the UDP payload.
    pub outer_len: u32,
    /// Length of the UDP payload of each packet but the last if the buffer holds several packets, otherwise
    /// 0; in bytes.
    pub segment: u32,
    /// Distance between the copies of two packets in bytes; 0 if the buffer is copied in one piece.
    pub stride: u32,
    /// VLAN tag (priority and VLAN id) that the NIC removed; 0 if there is none.
    pub vlan: u16,
    /// Whether the packet leaves the host.
    pub outbound: bool,
    /// Receive time on the clock of the NIC in nanoseconds; 0 if it is not known.
    pub nic_ns: u64,
    /// Whether `time_ns` is the time at which an XDP program ran in the driver, before the network stack.
    pub is_driver_time: bool,
    /// The verdict of a hook that did not pass the packet (`enum xdp_action`); `None` for other copies.
    pub verdict: Option<u8>,
    /// With sampling: packets that this CPU had counted before the first packet of the buffer.
    pub number: u64,
}

impl TapHeader {
    /// Length in the ring, in bytes.
    pub const LEN: usize = 48;
    /// With a stride: offset of the packets' copies in the record. The shared headers are in front of them.
    pub const PACKETS_AT: usize = Self::LEN + OUTER_ROOM as usize;

    pub(super) const TIME: i16 = 0;
    pub(super) const BUFFER_LEN: i16 = 8;
    pub(super) const OUTER: i16 = 12;
    pub(super) const SEGMENT: i16 = 16;
    pub(super) const STRIDE: i16 = 20;
    pub(super) const VLAN: i16 = 24;
    pub(super) const OUTBOUND: i16 = 28;
    /// A flag of the word at `OUTBOUND`.
    pub(super) const DRIVER_TIME: i32 = 0x100;
    pub(super) const NUMBER: i16 = 32;
    pub(super) const NIC: i16 = 40;

    /// Encodes the header, as the program writes it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut put = |at: i16, value: &[u8]| bytes[at as usize..][..value.len()].copy_from_slice(value);
        put(Self::TIME, &self.time_ns.to_le_bytes());
        put(Self::BUFFER_LEN, &self.len.to_le_bytes());
        put(Self::OUTER, &self.outer_len.to_le_bytes());
        put(Self::SEGMENT, &self.segment.to_le_bytes());
        put(Self::STRIDE, &self.stride.to_le_bytes());
        put(Self::VLAN, &self.vlan.to_le_bytes());
        let verdict = self.verdict.map_or(0, |verdict| verdict.saturating_add(1));
        put(Self::OUTBOUND, &[u8::from(self.outbound), u8::from(self.is_driver_time), verdict]);
        put(Self::NIC, &self.nic_ns.to_le_bytes());
        put(Self::NUMBER, &self.number.to_le_bytes());
        bytes
    }

    /// Decodes a record. Returns `None` if it is shorter than a header.
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
            outbound: word(Self::OUTBOUND) & 0xff != 0,
            is_driver_time: word(Self::OUTBOUND) as i32 & Self::DRIVER_TIME != 0,
            nic_ns: long(Self::NIC),
            verdict: (word(Self::OUTBOUND) >> 16 & 0xff).checked_sub(1).map(|verdict| verdict as u8),
            number: long(Self::NUMBER),
        };
        Some((parsed, copy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_a_round_trip() {
        let header = TapHeader {
            time_ns: 0x0102_0304_0506_0708,
            len: 9,
            outer_len: 10,
            segment: 11,
            stride: 12,
            vlan: 0x0d0e,
            outbound: true,
            is_driver_time: true,
            verdict: Some(4),
            nic_ns: 0x1718_191a_1b1c_1d1e,
            number: 0x0f10_1112_1314_1516,
        };
        let record = [&header.to_bytes()[..], b"copy"].concat();
        assert_eq!(TapHeader::parse(&record), Some((header, &b"copy"[..])));
        assert_eq!(TapHeader::parse(&record[..TapHeader::LEN - 1]), None);
    }
}

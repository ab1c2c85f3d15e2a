//! Splits buffers of the network stack into packets: a GSO burst or GRO batch is one buffer in the kernel and
//! many packets on the wire.

use std::time::{SystemTime, UNIX_EPOCH};

use bpf::TapHeader;
use sys::now_ns;
use wire::{Ipv4, Ipv6, Udp};

use super::PacketSink;
use super::nic_time::{NicClock, ReceiveTimes};
use crate::write::NewPacket;

const ETHERNET_LEN: usize = 14;
const ADDRESSES_LEN: usize = 12;
const VLAN_TYPE: [u8; 2] = [0x81, 0];
/// Offsets of fields in an IPv4 header (first three), an IPv6 header and a UDP header.
const LENGTH: usize = 2;
const ID: usize = 4;
const CHECKSUM: usize = 10;
const V6_LENGTH: usize = 4;
const UDP_LENGTH: usize = 4;
/// Longest buffer in bytes. Linux makes none above 512 KiB (GSO_MAX_SIZE in linux/netdevice.h). Half would
/// refuse those; double would let one wrong record of a process become a packet of twice the length.
const BUFFER_MAX: usize = 1 << 20;
/// Most packets of a buffer: twice those of a GSO burst (UDP_MAX_SEGMENTS in linux/udp.h). Half would leave
/// too little space for a kernel with longer bursts; double would let a wrong record fill twice the file.
const PACKETS_MAX: usize = 256;
/// Longest headers in front of the payload of a burst in bytes: Ethernet with two VLAN tags, IP and UDP take
/// at most 90. Half would refuse IPv4 options, double would let a wrong record fill twice the file.
const BURST_OUTER_MAX: usize = 128;

/// Nanoseconds to add to CLOCK_MONOTONIC for the time of day since 1970.
#[must_use]
pub fn realtime_offset() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    now.saturating_sub(now_ns())
}

/// Splits the records of a tap into packets.
#[derive(Default)]
pub struct Splitter {
    /// Longest captured part of a packet in bytes.
    snap_len: usize,
    /// Takes only the first of every `sample` packets.
    sample: u32,
    /// Result of [`realtime_offset`].
    offset_ns: u64,
    /// The packet being assembled.
    frame: Vec<u8>,
    /// Places times of the NIC's clock on the host's clock.
    nic_clock: NicClock,
    times: ReceiveTimes,
}

impl Splitter {
    /// Takes at most `snap_len` bytes of each packet, and only the first of every `sample` packets.
    #[must_use]
    pub fn new(snap_len: Option<u32>, sample: u32) -> Self {
        let snap_len = snap_len.map_or(usize::MAX, |snap_len| snap_len as usize);
        Self { snap_len, sample, offset_ns: realtime_offset(), ..Self::default() }
    }

    /// To be called from time to time: the time of day may be set, and its rate is adjusted.
    pub fn update_clock(&mut self) {
        self.offset_ns = realtime_offset();
    }

    /// How many receive times came from where.
    #[must_use]
    pub fn times(&self) -> ReceiveTimes {
        self.times
    }

    /// The time of a record on CLOCK_MONOTONIC.
    fn time_ns(&mut self, header: &TapHeader) -> u64 {
        if header.nic_ns != 0 {
            self.times.nic += 1;
            return self.nic_clock.host_ns(header.nic_ns, header.time_ns);
        }
        if header.is_driver_time {
            self.times.driver += 1;
        } else if !header.outbound {
            self.times.stack += 1;
        }
        header.time_ns
    }

    /// Passes the packets of a record to `sink`, in the order of the wire.
    pub fn packets(&mut self, record: &[u8], interface: usize, sink: PacketSink<'_>) {
        let Some((header, copy)) = TapHeader::parse(record) else { return };
        let (outer_len, len) = (header.outer_len as usize, header.len as usize);
        let (Some(outer), Some(payload_len)) = (copy.get(..outer_len), len.checked_sub(outer_len)) else {
            return;
        };
        let segment = if header.segment == 0 { payload_len } else { header.segment as usize };
        let packets = payload_len.div_ceil(segment.max(1)).max(1);
        // The tap of a process is memory that the process can write.
        let is_burst = packets <= PACKETS_MAX && outer_len <= BURST_OUTER_MAX;
        let is_tagged = header.vlan != 0;
        if len > BUFFER_MAX || packets > 1 && !is_burst || is_tagged && outer_len < ADDRESSES_LEN {
            return;
        }
        let time_ns = self.time_ns(&header).saturating_add(self.offset_ns);
        let packets_at = TapHeader::PACKETS_AT - TapHeader::LEN;
        let frame = &mut self.frame;
        frame.clear();
        frame.extend_from_slice(outer);
        if is_tagged {
            let tag = [VLAN_TYPE, header.vlan.to_be_bytes()].concat();
            frame.splice(ADDRESSES_LEN..ADDRESSES_LEN, tag);
        }
        let front_len = frame.len();
        let ip_at = ETHERNET_LEN + front_len - outer_len;
        let burst = frame.get(ip_at..).filter(|_| header.segment != 0).and_then(Burst::of);
        let mut at = 0;
        for number in 0..packets {
            let segment_len = segment.min(payload_len - at);
            if self.sample > 1 && !(header.number + number as u64).is_multiple_of(u64::from(self.sample)) {
                at += segment_len;
                continue;
            }
            let (from, most) = match header.stride as usize {
                0 => (outer_len + at, segment_len),
                stride => (packets_at + number * stride, stride.min(segment_len)),
            };
            let most = most.min(self.snap_len.saturating_sub(outer_len));
            let payload = copy.get(from..).unwrap_or_default();
            let payload = &payload[..most.min(payload.len())];
            frame.truncate(front_len);
            if let Some(burst) = &burst {
                burst.adapt(&mut frame[ip_at..], number, segment_len);
            }
            let original_len = frame.len() + segment_len;
            frame.extend_from_slice(payload);
            sink(&NewPacket {
                interface,
                time_ns,
                original_len,
                data: frame,
                outbound: Some(header.outbound),
                verdict: header.verdict,
            });
            at += segment_len;
        }
    }
}

/// The header values that are the same in all packets of a burst.
enum Burst {
    V4 {
        /// Identification of the first packet.
        id: u16,
        /// Sum of the header's words without length, identification and checksum.
        sum: u32,
    },
    V6,
}

impl Burst {
    /// Values of a burst with these IP and UDP headers; `None` if the headers are cut.
    fn of(headers: &[u8]) -> Option<Self> {
        let (ip_len, is_v4) = match headers.first()? >> 4 {
            4 => (Ipv4::LEN, true),
            _ => (Ipv6::LEN, false),
        };
        let (ip, _udp) = headers.split_at_checked(ip_len).filter(|(_, udp)| udp.len() >= Udp::LEN)?;
        if !is_v4 {
            return Some(Self::V6);
        }
        let words = ip.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let same = words.enumerate().filter(|(at, _)| ![LENGTH, ID, CHECKSUM].contains(&(2 * at)));
        let id = u16::from_be_bytes([ip[ID], ip[ID + 1]]);
        Some(Self::V4 { id, sum: same.map(|(_, word)| word).sum() })
    }

    /// Sets lengths, identification and checksum for packet `number`, like the kernel when it segments the
    /// burst.
    fn adapt(&self, headers: &mut [u8], number: usize, payload_len: usize) {
        let udp_len = (Udp::LEN + payload_len) as u16;
        let mut put = |at: usize, value: u16| headers[at..at + 2].copy_from_slice(&value.to_be_bytes());
        match *self {
            Self::V4 { id, sum } => {
                let (total_len, id) =
                    (udp_len.wrapping_add(Ipv4::LEN as u16), id.wrapping_add(number as u16));
                let sum = sum + u32::from(total_len) + u32::from(id);
                let sum = (sum & 0xffff) + (sum >> 16);
                put(LENGTH, total_len);
                put(ID, id);
                put(CHECKSUM, !((sum & 0xffff) + (sum >> 16)) as u16);
                put(Ipv4::LEN + UDP_LENGTH, udp_len);
            }
            Self::V6 => {
                put(V6_LENGTH, udp_len);
                put(Ipv6::LEN + UDP_LENGTH, udp_len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer with 42 bytes of headers and `lens` bytes of payload for each packet; payload bytes have the
    /// packet's number.
    fn buffer(segment: usize, lens: &[usize]) -> (TapHeader, Vec<u8>) {
        let mut bytes = vec![0; 42];
        bytes[12..14].copy_from_slice(&[8, 0]);
        let ip = Ipv4 { id: 0xffff, ..Ipv4::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 64, 9) };
        ip.with_checksum().emit(bytes[14..].first_chunk_mut().expect("long enough"));
        for (number, len) in lens.iter().enumerate() {
            bytes.resize(bytes.len() + len, number as u8 + 1);
        }
        let segment = if lens.len() > 1 { segment as u32 } else { 0 };
        let header = TapHeader { len: bytes.len() as u32, outer_len: 42, segment, ..TapHeader::default() };
        (header, bytes)
    }

    fn all(header: &TapHeader, copy: &[u8], snap_len: u32) -> Vec<(Vec<u8>, usize)> {
        let mut found = Vec::new();
        let record = [&header.to_bytes()[..], copy].concat();
        let mut take = |packet: &NewPacket<'_>| found.push((packet.data.to_vec(), packet.original_len));
        Splitter::new(Some(snap_len), 1).packets(&record, 0, &mut take);
        found
    }

    #[test]
    fn a_sample_takes_every_nth_packet_across_bursts() {
        let (header, bytes) = buffer(100, &[100; 7]);
        let (mut found, mut splitter) = (Vec::new(), Splitter::new(None, 5));
        for number in [0, 7, 14] {
            let record = [&TapHeader { number, ..header }.to_bytes()[..], &bytes].concat();
            splitter.packets(&record, 0, &mut |packet| found.push(number + u64::from(packet.data[42]) - 1));
        }
        assert_eq!(found, [0, 5, 10, 15, 20]);
    }

    #[test]
    fn the_packets_of_a_burst_get_their_own_headers() {
        let (header, bytes) = buffer(100, &[100, 100, 30]);
        let frames = all(&header, &bytes, u32::MAX);
        assert_eq!(frames.len(), 3);
        for (number, ((data, original), len)) in frames.iter().zip([100, 100, 30]).enumerate() {
            let ip = Ipv4::parse(data[14..].first_chunk().expect("a header"));
            assert_eq!((ip.id, ip.total_len), (0xffff_u16.wrapping_add(number as u16), 28 + len as u16));
            assert!(ip.checksum_ok());
            assert_eq!(Udp::parse(data[34..].first_chunk().expect("a header")).length, 8 + len as u16);
            assert_eq!((&data[42..], *original), (&vec![number as u8 + 1; len][..], 42 + len));
        }
    }

    #[test]
    fn the_packets_of_an_ipv6_burst_get_their_own_lengths() {
        let mut bytes = vec![0; 62];
        bytes[14] = 0x60;
        bytes.extend([7; 130]);
        let header = TapHeader { len: 192, outer_len: 62, segment: 100, ..TapHeader::default() };
        let lengths = |(frame, len): &(Vec<u8>, usize)| {
            (u16::from_be_bytes([frame[18], frame[19]]), u16::from_be_bytes([frame[58], frame[59]]), *len)
        };
        let frames = all(&header, &bytes, u32::MAX);
        assert_eq!(frames.iter().map(lengths).collect::<Vec<_>>(), [(108, 108, 162), (38, 38, 92)]);
        // Headers that are cut are not changed.
        let header = TapHeader { len: 180, outer_len: 50, ..header };
        assert!(all(&header, &bytes[..180], u32::MAX).iter().all(|(frame, _)| frame[18..20] == [0, 0]));
    }

    #[test]
    fn the_headers_of_a_burst_are_found_at_their_stride() {
        let (header, bytes) = buffer(100, &[100, 30]);
        let header = TapHeader { stride: 56, ..header };
        let mut copy = bytes[..42].to_vec();
        copy.resize(TapHeader::PACKETS_AT - TapHeader::LEN, 0);
        copy.extend([1; 56]);
        copy.extend([2; 56]);
        let frames = all(&header, &copy, 96);
        assert_eq!((frames[0].0.len(), frames[0].1), (96, 142));
        assert_eq!((frames[1].0.len(), frames[1].1), (72, 72));
        assert_eq!((frames[0].0[95], frames[1].0[71]), (1, 2));
    }

    #[test]
    fn a_vlan_tag_that_the_nic_removed_is_inserted_again() {
        let (header, bytes) = buffer(0, &[20]);
        let frames = all(&TapHeader { vlan: 5, ..header }, &bytes, u32::MAX);
        assert_eq!(frames[0].0[12..18], [0x81, 0, 0, 5, 8, 0]);
        assert_eq!((frames[0].0.len(), frames[0].1), (66, 66));
    }

    /// What a process can write into the memory of its tap.
    #[test]
    fn a_record_that_no_tap_makes_gives_no_packets() {
        let (header, bytes) = buffer(100, &[100, 100]);
        // Packets by the million, of a few bytes.
        assert!(all(&TapHeader { segment: 1, len: u32::MAX, ..header }, &bytes, 96).is_empty());
        assert!(all(&TapHeader { segment: 1, len: 42 + 257, ..header }, &bytes, 96).is_empty());
        assert_eq!(all(&TapHeader { segment: 1, len: 42 + 256, ..header }, &bytes, 96).len(), 256);
        // One packet with a length that does not fit the file.
        assert!(all(&TapHeader { segment: 0, len: u32::MAX, ..header }, &bytes, 96).is_empty());
        // Headers that take the memory of their copies many times.
        assert!(all(&TapHeader { outer_len: 129, ..header }, &bytes, 96).is_empty());
        // A tag, and no Ethernet header for it.
        assert!(all(&TapHeader { vlan: 5, outer_len: 11, segment: 0, ..header }, &bytes, 96).is_empty());
        // A length that no IP header holds.
        let long = TapHeader { segment: 65_535, len: 42 + 65_536, ..header };
        assert_eq!(all(&long, &bytes, 96).len(), 2);
        // The end of time.
        let last = TapHeader { nic_ns: 1, time_ns: u64::MAX, ..header };
        assert_eq!(all(&last, &bytes, 96).len(), 2);
    }

    #[test]
    fn inconsistent_records_give_no_packets() {
        let (header, bytes) = buffer(100, &[100, 100]);
        assert!(all(&header, &bytes[..41], 96).is_empty());
        assert!(all(&TapHeader { len: 3, ..header }, &bytes, 96).is_empty());
        // A record without payload gives the headers.
        let cut = all(&header, &bytes[..42], 96);
        assert_eq!(cut.iter().map(|frame| frame.0.len()).collect::<Vec<_>>(), [42, 42]);
    }
}

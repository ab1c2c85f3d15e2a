//! Messages between members: one record per SOCK_SEQPACKET message, little-endian.
//!
//! ```text
//! 0   magic "RXI1"
//! 4   u16 type            u16 length of all headers (where a FRAME's packets begin)
//! 8   u32 layout version, 3
//! 12  u32 sender's slot (0xffffffff: none yet)
//! 16  body by type
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::SLOTS;
use crate::port::{Icrc, RxBatch, RxQueue};
use transport::numbering::{ID_SHIFT, QPN_SHIFT};
use wire::Gid;

/// Length of the part that all records have.
const COMMON_LEN: usize = 16;
/// Length of a FRAME before its packets.
pub(super) const FRAME_LEN: usize = COMMON_LEN + 44;
/// Buffer size that holds any record.
pub(super) const RECORD_MAX: usize = FRAME_LEN + 65_536;
/// Largest record without packets.
pub(super) const SHORT_MAX: usize = 64;

const MAGIC: [u8; 4] = *b"RXI1";
const LAYOUT: u32 = 3;
const NO_SLOT: u32 = u32::MAX;

const JOIN: u16 = 1;
const WELCOME: u16 = 2;
const REFUSE: u16 = 3;
const FRAME: u16 = 4;
const PING: u16 = 5;
const PONG: u16 = 6;
/// 7 (rings with ICRCs) and 10 (batches at multiples of 8) were types of earlier layouts and are not reused.
const OFFER: u16 = 11;
const ACCEPT: u16 = 8;
const WAKE: u16 = 9;
const SILENT_HOST: u16 = 12;

/// Transport of a WELCOME: both ends of the socket set are attached.
const UDP_SOCKET_SET: u32 = 1;
/// FRAME flags: read from the GSI queue; read from the queue of a slot that is not the destination.
const FROM_GSI: u8 = 1;
const MISROUTED: u8 = 2;

/// A parsed record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Record<'a> {
    /// Requests membership.
    Join { pid: u32 },
    /// Answers JOIN; both ends of the socket set are attached. `udp_port` must be the one that the new
    /// member expects.
    Welcome { udp_port: u16 },
    /// Refuses JOIN, with an error number.
    Refuse { errno: u32 },
    /// A GRO batch for the receiver.
    Frame(RxBatch<'a>),
    /// Requests a PONG. Sent by a member, it also says that the member watches this connection.
    Ping,
    /// Answers PING.
    Pong,
    /// Offers the attached ring, into which the sender writes packets for the receiver as long as this
    /// connection lasts. A receiver that does not know this record closes the connection.
    Offer,
    /// Accepts an offered ring.
    Accept,
    /// Wakes a reader that sleeps while its ring has packets.
    Wake,
    /// The host `dst` answers no probes from `src`.
    SilentHost { src: Gid, dst: Gid },
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BadRecord {
    /// Not a record of roxie, or truncated.
    Malformed,
    /// Written by another version of roxie.
    Version,
}

impl<'a> Record<'a> {
    /// Parses a record that a member on `udp_port` received.
    pub(super) fn parse(bytes: &'a [u8], udp_port: u16) -> Result<Record<'a>, BadRecord> {
        let (common, _) = bytes.split_first_chunk::<COMMON_LEN>().ok_or(BadRecord::Malformed)?;
        if common[..4] != MAGIC {
            return Err(BadRecord::Malformed);
        }
        if u32_at(common, 8) != Some(LAYOUT) {
            return Err(BadRecord::Version);
        }
        let header_len = usize::from(u16_at(common, 6).ok_or(BadRecord::Malformed)?);
        let body = bytes.get(COMMON_LEN..header_len).ok_or(BadRecord::Malformed)?;
        let rest = bytes.get(header_len..).ok_or(BadRecord::Malformed)?;
        let record = match u16_at(common, 4) {
            Some(JOIN) => u32_at(body, 4).map(|pid| Record::Join { pid }),
            Some(WELCOME) => parse_welcome(body),
            Some(REFUSE) => u32_at(body, 0).map(|errno| Record::Refuse { errno }),
            Some(FRAME) => parse_frame(body, rest, udp_port).map(Record::Frame),
            Some(PING) => Some(Record::Ping),
            Some(PONG) => Some(Record::Pong),
            Some(OFFER) => Some(Record::Offer),
            Some(ACCEPT) => Some(Record::Accept),
            Some(WAKE) => Some(Record::Wake),
            Some(SILENT_HOST) => parse_silent_host(body),
            _ => None,
        };
        record.ok_or(BadRecord::Malformed)
    }

    /// The sender's slot in a record that [`parse`](Self::parse) accepted; `None` if the sender has no slot
    /// yet.
    pub(super) fn sender(bytes: &[u8]) -> Option<u16> {
        u32_at(bytes, 12).and_then(|slot| u16::try_from(slot).ok()).filter(|slot| *slot < SLOTS)
    }

    /// Sends the record with descriptors; it is not a FRAME.
    pub(super) fn send(&self, to: &OwnedFd, slot: Option<u16>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut out = [0; SHORT_MAX];
        let len = self.emit(slot, &mut out);
        sys::send_record(to.as_fd(), &out[..len], &[], fds)
    }

    /// Writes the record without a FRAME's packets, which the caller appends; returns the length.
    pub(super) fn emit(&self, slot: Option<u16>, out: &mut [u8; SHORT_MAX]) -> usize {
        let mut writer = Writer { out, len: COMMON_LEN };
        let kind = match self {
            Record::Join { pid } => {
                writer.put(&0u32.to_le_bytes());
                writer.put(&pid.to_le_bytes());
                JOIN
            }
            Record::Welcome { udp_port } => {
                writer.put(&SLOTS.to_le_bytes());
                writer.put(&0u16.to_le_bytes());
                writer.put(&[QPN_SHIFT as u8, ID_SHIFT as u8]);
                writer.put(&udp_port.to_le_bytes());
                writer.put(&UDP_SOCKET_SET.to_le_bytes());
                WELCOME
            }
            Record::Refuse { errno } => {
                writer.put(&errno.to_le_bytes());
                REFUSE
            }
            Record::Frame(batch) => {
                put_frame(&mut writer, batch);
                FRAME
            }
            Record::Ping => PING,
            Record::Pong => PONG,
            Record::Offer => OFFER,
            Record::Accept => ACCEPT,
            Record::Wake => WAKE,
            Record::SilentHost { src, dst } => {
                writer.put(&src.0);
                writer.put(&dst.0);
                SILENT_HOST
            }
        };
        let len = writer.len;
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&kind.to_le_bytes());
        out[6..8].copy_from_slice(&(len as u16).to_le_bytes());
        out[8..12].copy_from_slice(&LAYOUT.to_le_bytes());
        out[12..16].copy_from_slice(&slot.map_or(NO_SLOT, u32::from).to_le_bytes());
        len
    }
}

/// Fuzz target: a record that was parsed gives the same value after emit and parse.
#[cfg(feature = "fuzz")]
pub fn check(bytes: &[u8]) {
    let udp_port = 4791;
    let Ok(record) = Record::parse(bytes, udp_port) else { return };
    let mut out = [0; SHORT_MAX];
    let len = record.emit(Record::sender(bytes), &mut out);
    let mut again = out[..len].to_vec();
    if let Record::Frame(batch) = record {
        assert!(batch.segment > 0 && batch.segment <= batch.bytes.len());
        again.extend(batch.bytes);
    }
    assert_eq!(Record::sender(&again), Record::sender(bytes));
    let read = Record::parse(&again, udp_port);
    assert_eq!(format!("{read:?}"), format!("{:?}", Ok::<_, BadRecord>(record)));
}

fn parse_welcome<'a>(body: &[u8]) -> Option<Record<'a>> {
    // u16 slots, u16 GSI index, u8 QPN shift, u8 id shift, u16 port, u32 transport.
    let is_known = u16_at(body, 0)? == SLOTS
        && u16_at(body, 2)? == 0
        && body.get(4..6)? == [QPN_SHIFT as u8, ID_SHIFT as u8]
        && u32_at(body, 8)? == UDP_SOCKET_SET;
    let udp_port = u16_at(body, 6)?;
    is_known.then_some(Record::Welcome { udp_port })
}

fn parse_silent_host<'a>(body: &[u8]) -> Option<Record<'a>> {
    Some(Record::SilentHost { src: gid_at(body, 0)?, dst: gid_at(body, 16)? })
}

/// u8 family, u8 TOS, u8 TTL, u8 flags, u32 interface (0: unknown), u16 source port, u16 segment, source,
/// destination. A segment of 0 means one packet, which may be longer than 65535 bytes.
fn put_frame(writer: &mut Writer<'_>, batch: &RxBatch<'_>) {
    let family = if batch.src.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    let flags = match batch.queue {
        RxQueue::Gsi => FROM_GSI,
        RxQueue::Slot => MISROUTED,
        RxQueue::Forwarded => 0,
    };
    writer.put(&[family as u8, batch.tos, batch.ttl, flags]);
    writer.put(&batch.ifindex.to_le_bytes());
    writer.put(&batch.src_port.to_le_bytes());
    writer.put(&u16::try_from(batch.segment).unwrap_or(0).to_le_bytes());
    writer.put(&Gid::from(batch.src).0);
    writer.put(&Gid::from(batch.dst).0);
}

fn parse_frame<'a>(body: &[u8], packets: &'a [u8], udp_port: u16) -> Option<RxBatch<'a>> {
    let body = body.first_chunk::<44>()?;
    if packets.is_empty() {
        return None;
    }
    let segment = match usize::from(u16_at(body, 10)?) {
        0 => packets.len(),
        segment => segment.min(packets.len()),
    };
    Some(RxBatch {
        src: gid_at(body, 12)?.ip(),
        src_port: u16_at(body, 8)?,
        dst: gid_at(body, 28)?.ip(),
        dst_port: udp_port,
        ifindex: u32_at(body, 4)?,
        tos: body[1],
        ttl: body[2],
        segment,
        macs: None,
        ip_id: None,
        bytes: packets,
        queue: RxQueue::Forwarded,
        icrc: Icrc::Present,
    })
}

struct Writer<'a> {
    out: &'a mut [u8; SHORT_MAX],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

fn gid_at(bytes: &[u8], at: usize) -> Option<Gid> {
    Some(Gid(*bytes.get(at..)?.first_chunk()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|v| u16::from_le_bytes(*v))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|v| u32::from_le_bytes(*v))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn emitted(record: &Record<'_>) -> Vec<u8> {
        let mut out = [0; SHORT_MAX];
        let len = record.emit(Some(7), &mut out);
        out[..len].to_vec()
    }

    #[test]
    fn a_welcome_is_encoded_as_documented() {
        let bytes = emitted(&Record::Welcome { udp_port: 4791 });
        let want = [
            &b"RXI1"[..],
            &[2, 0, 28, 0, 3, 0, 0, 0, 7, 0, 0, 0],
            &[0xff, 0x0f, 0, 0, 12, 20, 0xb7, 0x12, 1, 0, 0, 0],
        ];
        assert_eq!(bytes, want.concat());
        assert!(matches!(Record::parse(&bytes, 4791), Ok(Record::Welcome { udp_port: 4791 })));
    }

    #[test]
    fn a_frame_is_parsed_as_it_was_emitted() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fe80::2")] {
            let batch = RxBatch {
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                dst_port: 4791,
                ifindex: 5,
                tos: 0x6a,
                ttl: 63,
                segment: 3,
                ..RxBatch::of_test(b"abcabcab")
            };
            let mut bytes = emitted(&Record::Frame(batch));
            assert_eq!((bytes.len(), bytes[19]), (FRAME_LEN, FROM_GSI));
            assert_eq!(Record::sender(&bytes), Some(7));
            bytes.extend(batch.bytes);
            let Ok(Record::Frame(got)) = Record::parse(&bytes, 4791) else { panic!("no frame") };
            assert_eq!((got.src, got.dst, got.src_port), (batch.src, batch.dst, batch.src_port));
            assert_eq!((got.tos, got.ttl, got.segment, got.bytes), (0x6a, 63, 3, batch.bytes));
            assert_eq!((got.queue, got.dst_port, got.ifindex), (RxQueue::Forwarded, 4791, 5));
        }
    }

    #[test]
    fn a_silent_host_is_parsed_as_it_was_emitted() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fe80::2")] {
            let [src, dst] = [src, dst].map(|ip| Gid::from(ip.parse::<IpAddr>().unwrap()));
            let bytes = emitted(&Record::SilentHost { src, dst });
            let Ok(Record::SilentHost { src: from, dst: to }) = Record::parse(&bytes, 1) else {
                panic!("another record")
            };
            assert_eq!((from, to), (src, dst));
        }
    }

    #[test]
    fn other_versions_and_truncated_records_are_refused() {
        let bytes = emitted(&Record::Join { pid: 1 });
        for len in 0..bytes.len() {
            assert_eq!(Record::parse(&bytes[..len], 1).unwrap_err(), BadRecord::Malformed, "{len}");
        }
        let mut other = bytes.clone();
        other[8] = 1;
        assert_eq!(Record::parse(&other, 1).unwrap_err(), BadRecord::Version);
        let mut bad_length = bytes;
        bad_length[6] = 3;
        assert_eq!(Record::parse(&bad_length, 1).unwrap_err(), BadRecord::Malformed);
    }
}

//! Receiving: descriptors in batches, each frame a train of one packet, or of several in generic mode.

use std::net::IpAddr;

use wire::{Ethernet, Ip, Udp, ip::PROTOCOL_UDP};

use super::super::{RxQueue, RxTrain, icrc_header};
use super::XskPort;
use super::segment::Segments;
use crate::sys::XdpMode;

/// Descriptors taken from one queue in one batch: what is in it should stay in the cache until it is consumed.
const BATCH_MAX: u32 = 128;
/// Longest frame: what an IP header can say, and Ethernet.
const FRAME_MAX: usize = (1 << 16) + 18;

impl XskPort {
    /// One batch from every queue.
    #[inline]
    pub(super) fn receive(&mut self, f: &mut dyn FnMut(&RxTrain<'_>)) -> usize {
        let mut trains = 0;
        let may_be_joined = self.steering.as_ref().is_some_and(|s| s.attached().mode() == XdpMode::Generic);
        let XskPort { sockets, joined, segments, udp_port, counters, extra, .. } = self;
        let mut consume = |frame: &[u8], f: &mut dyn FnMut(&RxTrain<'_>)| {
            let segments = may_be_joined.then_some(&mut *segments);
            let Some(train) = train_of(frame, *udp_port, segments) else {
                counters.rx_malformed += 1;
                return;
            };
            counters.rx_trains += 1;
            counters.rx_packets += train.bytes.len().div_ceil(train.segment) as u64;
            counters.rx_bytes += train.bytes.len() as u64;
            extra.rx_unjoined += u64::from(train.segment < train.bytes.len());
            f(&train);
        };
        let mut descriptors = 0;
        for queue in &mut sockets.queues {
            let mut taken = 0;
            while taken < BATCH_MAX {
                let Some(piece) = queue.rings.rx.pop() else { break };
                taken += 1;
                if !piece.more {
                    consume(piece.bytes(), f);
                    sockets.rx_pool.put(piece.chunk);
                    trains += 1;
                    continue;
                }
                // The kernel shows all pieces of a packet at once.
                joined.clear();
                let mut piece = Some(piece);
                while let Some(part) = piece.take() {
                    if joined.len() + part.bytes().len() <= FRAME_MAX {
                        joined.extend_from_slice(part.bytes());
                    }
                    sockets.rx_pool.put(part.chunk);
                    if part.more {
                        piece = queue.rings.rx.pop();
                        taken += 1;
                    }
                }
                extra.rx_joined += 1;
                consume(joined, f);
                trains += 1;
            }
            queue.release(taken);
            descriptors += taken;
        }
        if descriptors > 0 {
            sockets.fill();
        }
        trains
    }
}

/// The RoCE packets in a frame; `None` if it is not one, which the steering program has prevented, or is cut off.
fn train_of<'a>(frame: &'a [u8], udp_port: u16, segments: Option<&mut Segments>) -> Option<RxTrain<'a>> {
    let (_, _, ether_type, packet) = Ethernet::split(frame)?;
    let (ip, datagram) = Ip::split(ether_type, packet)?;
    if ip.protocol() != PROTOCOL_UDP {
        return None;
    }
    let (udp, payload) = datagram.split_first_chunk()?;
    let udp = Udp::parse(udp);
    let bytes = payload.get(..usize::from(udp.length).checked_sub(Udp::LEN)?).filter(|b| !b.is_empty())?;
    if udp.dst_port != udp_port {
        return None;
    }
    let (src, dst): (IpAddr, IpAddr) = (ip.src(), ip.dst());
    let (tos, ttl, id) = match ip {
        Ip::V4(ip) => (ip.tos, ip.ttl, Some(ip.id)),
        Ip::V6(ip) => (ip.traffic_class, ip.hop_limit, None),
    };
    let segment = match segments {
        Some(segments) => {
            segments.length(&icrc_header(src, dst, udp.src_port, udp_port)?, id.unwrap_or(0), bytes)
        }
        None => bytes.len(),
    };
    let queue = RxQueue::Slot;
    Some(RxTrain {
        src,
        src_port: udp.src_port,
        dst,
        dst_port: udp_port,
        tos,
        ttl,
        segment,
        ip_id: id,
        bytes,
        queue,
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::FlowKey;
    use super::super::headers::Headers;
    use super::*;

    fn frame(src: &str, dst: &str, payload: &[u8]) -> Vec<u8> {
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        let headers = Headers::new(&FlowKey { src, dst, dst_slot: 0, tos: 7, ttl: 9 }, 0xc001, 4791).unwrap();
        let mut frame = vec![0; headers.len()];
        headers.emit(&mut frame, payload.len());
        frame.extend(payload);
        frame
    }

    #[test]
    fn addresses_and_payload_are_taken_from_the_frame() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let mut frame = frame(src, dst, &[0xab; 40]);
            // Short frames are padded on the wire.
            frame.extend([0; 6]);
            let train = train_of(&frame, 4791, None).unwrap();
            assert_eq!((train.src.to_string(), train.dst.to_string()), (src.to_owned(), dst.to_owned()));
            assert_eq!((train.src_port, train.dst_port, train.tos, train.ttl), (0xc001, 4791, 7, 9));
            assert_eq!((train.bytes, train.segment), (&[0xab; 40][..], 40));
            assert_eq!(train.ip_id, dst.parse::<std::net::Ipv4Addr>().is_ok().then_some(0));
            assert!(train_of(&frame, 4790, None).is_none());
        }
    }

    #[test]
    fn cut_and_empty_frames_are_no_trains() {
        let whole = frame("10.0.0.1", "10.0.0.2", &[1; 40]);
        for len in 0..whole.len() {
            assert!(train_of(&whole[..len], 4791, None).is_none(), "{len}");
        }
        assert!(train_of(&frame("10.0.0.1", "10.0.0.2", &[]), 4791, None).is_none());
        let mut overlong = whole.clone();
        overlong[14 + 20 + 4..14 + 20 + 6].copy_from_slice(&100u16.to_be_bytes());
        assert!(train_of(&overlong, 4791, None).is_none(), "UDP says more than IP has");
    }
}

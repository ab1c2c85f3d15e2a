//! Sending: the packet is written into a chunk, headers are put before it, a descriptor goes into the
//! ring.

use std::thread;

use wire::icrc::ICRC_LEN;

use super::super::headers::Headers;
use super::super::{FlowId, MAX_PACKET};
use super::{Place, Port, XskPort};
use sys::now_ns;

/// Offset of a packet in its chunk: after room for the headers, on a cache line.
const HEADROOM: usize = 128;
const ETHERNET_LEN: usize = 14;
/// Time to wait for a chunk or for room in a ring; both depend on receivers that may need this CPU.
const WAIT_NS: u64 = 1_000_000;

const _: () = assert!(HEADROOM >= Headers::LEN_MAX);

impl XskPort {
    /// Returns the space for the next packet.
    #[inline]
    pub(super) fn next_slot(&mut self) -> &mut [u8] {
        if self.staging.prefers_inner {
            self.staging.place = Place::Inner;
            return self.inner.tx_slot();
        }
        if self.staging.chunk.is_none() {
            self.staging.chunk = self.sockets.take();
            if self.staging.chunk.is_none() {
                self.wait_for_chunk();
            }
        }
        match &mut self.staging.chunk {
            Some(chunk) => {
                self.staging.place = Place::Chunk;
                &mut chunk.bytes_mut()[HEADROOM..]
            }
            None => {
                self.staging.place = Place::Scratch;
                &mut self.staging.scratch
            }
        }
    }

    /// Waits while the kernel holds all chunks: in copy mode until the receivers have freed the packets.
    #[cold]
    fn wait_for_chunk(&mut self) {
        self.sockets.kick();
        let start = now_ns();
        loop {
            self.staging.chunk = self.sockets.take();
            if self.staging.chunk.is_some() {
                self.staging.is_dry = false;
                return;
            }
            // The last packet waited without success: do not wait again for each one.
            if self.staging.is_dry || now_ns() - start > WAIT_NS {
                self.staging.is_dry = true;
                return;
            }
            self.counters.tx_waits += 1;
            thread::yield_now();
        }
    }

    #[inline]
    pub(super) fn commit(&mut self, flow: FlowId, len: usize) {
        let takes_ring = self.takes_ring(flow);
        let Some(state) = self.flows.get_mut(flow.0 as usize) else {
            debug_assert!(false, "no such flow");
            return;
        };
        if len == 0 || len + ICRC_LEN > MAX_PACKET {
            debug_assert!(false, "packet of {len} bytes");
            return;
        }
        state.bursts.add();
        self.staging.prefers_inner = !takes_ring;
        if !takes_ring {
            return self.commit_inner(flow, len);
        }
        if self.staging.place != Place::Chunk && !self.move_to_chunk(len) {
            self.extra.tx_no_chunk += 1;
            self.counters.tx_no_buffer += 1;
            return;
        }
        let (Some(state), Some(mut chunk)) = (self.flows.get_mut(flow.0 as usize), self.staging.chunk.take())
        else {
            return;
        };
        let (payload_len, headers_len) = (len + ICRC_LEN, state.headers.len());
        let (room, packet) = chunk.bytes_mut().split_at_mut(HEADROOM);
        let (body, rest) = packet.split_at_mut(len);
        // Identification 0 is allowed in a datagram that is never fragmented (RFC 6864).
        rest[..ICRC_LEN].copy_from_slice(&state.icrc.icrc(0, body).to_le_bytes());
        state.headers.emit(room, payload_len);
        state.is_used = true;
        let (queue, frame_len) = (state.queue, headers_len + payload_len);
        if frame_len > self.paths.link.mtu as usize + ETHERNET_LEN {
            // The driver would drop it silently.
            self.counters.tx_too_long += 1;
            self.staging.chunk = Some(chunk);
            return;
        }
        let offset = HEADROOM - headers_len;
        let mut pushed = self.sockets.push(queue, chunk, offset, frame_len);
        if let Err(chunk) = pushed {
            self.sockets.kick();
            pushed = self.sockets.push(queue, chunk, offset, frame_len);
        }
        match pushed {
            Ok(()) => {
                self.pushed += 1;
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += payload_len as u64;
            }
            Err(chunk) => {
                self.extra.tx_ring_full += 1;
                self.counters.tx_no_buffer += 1;
                self.staging.chunk = Some(chunk);
            }
        }
    }

    /// The packet was written elsewhere because another flow was expected: copies it into a chunk.
    #[cold]
    fn move_to_chunk(&mut self, len: usize) -> bool {
        if self.staging.chunk.is_none() {
            self.staging.chunk = self.sockets.take();
        }
        let Some(chunk) = &mut self.staging.chunk else { return false };
        let written = match self.staging.place {
            Place::Inner => self.inner.tx_slot(),
            Place::Scratch | Place::Chunk => &mut self.staging.scratch,
        };
        chunk.bytes_mut()[HEADROOM..HEADROOM + len].copy_from_slice(&written[..len]);
        true
    }

    /// Sends a packet to another process of this host, another interface, or an unresolved neighbour, or of a
    /// burst.
    fn commit_inner(&mut self, flow: FlowId, len: usize) {
        let Ok(inner) = self.inner_flow(flow) else {
            self.counters.tx_errors += 1;
            return;
        };
        match (self.staging.place, &self.staging.chunk) {
            (Place::Inner, _) => {}
            (Place::Chunk, Some(chunk)) => {
                self.inner.tx_slot()[..len].copy_from_slice(&chunk.bytes()[HEADROOM..HEADROOM + len]);
            }
            _ => self.inner.tx_slot()[..len].copy_from_slice(&self.staging.scratch[..len]),
        }
        match &mut self.flows[flow.0 as usize] {
            state if state.is_direct => {
                state.is_used = true;
                self.extra.tx_bursts += 1;
            }
            _ => self.extra.tx_inner += 1,
        }
        self.inner.tx_commit(inner, len);
    }
}

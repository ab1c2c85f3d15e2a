//! The packet socket that receives frames. The network stack gets the frames as well.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use super::key::VLAN_LEN;
use sys::{FrameBatch, PacketSocket, set_receive_buffer};

/// The receiving packet socket of a netdev.
#[derive(Debug)]
pub(super) struct PacketReceiver {
    socket: PacketSocket,
    batch: FrameBatch,
    frame_max: usize,
    is_promiscuous: bool,
    is_outgoing: bool,
    /// Frames that are longer than the MTU: the kernel had not segmented them yet, or had merged them.
    pub(super) oversize: u64,
}

/// Frames taken at a time.
const BATCH: usize = 64;
/// Bytes that the kernel may hold for this process: some 2000 frames of 1500 bytes, as many as a ring of a
/// NIC has. Half: losses while the application does not run for a millisecond.
const BUFFER_BYTES: i32 = 8 << 20;

impl PacketReceiver {
    pub(super) fn open(ifindex: u32, frame_max: usize) -> io::Result<Self> {
        let socket = PacketSocket::receiver(ifindex)?;
        set_receive_buffer(socket.as_fd(), BUFFER_BYTES)?;
        let batch = FrameBatch::new(BATCH, frame_max);
        Ok(Self { socket, batch, frame_max, is_promiscuous: false, is_outgoing: false, oversize: 0 })
    }

    /// Receives the frames of other Ethernet addresses, and those that this host sends, or not.
    pub(super) fn set(&mut self, promiscuous: bool, outgoing: bool) -> io::Result<()> {
        if promiscuous != self.is_promiscuous {
            self.socket.set_promiscuous(promiscuous)?;
            self.is_promiscuous = promiscuous;
        }
        if outgoing != self.is_outgoing {
            self.socket.set_outgoing(outgoing)?;
            self.is_outgoing = outgoing;
        }
        Ok(())
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }

    pub(super) fn fetch(&mut self) -> usize {
        // EAGAIN; or ENETDOWN, once for each time that the interface goes down.
        self.batch.receive(&self.socket).unwrap_or(0)
    }

    /// Returns frame `i` of the last [`fetch`](Self::fetch) as it was on the wire, and whether this host sent
    /// it; `None` for one that is longer than the MTU permits.
    pub(super) fn frame(&mut self, i: usize) -> Option<(&[u8], bool)> {
        let (bytes, info) = self.batch.frame(i);
        if info.is_oversize || bytes.len() - FrameBatch::HEADROOM > self.frame_max {
            self.oversize += 1;
            return None;
        }
        if let Some((start, offset)) = info.partial_checksum {
            complete_checksum(&mut bytes[FrameBatch::HEADROOM..], start.into(), offset.into());
        }
        let mut from = FrameBatch::HEADROOM;
        if let Some((ty, tag)) = info.vlan
            && bytes.len() >= from + 12
        {
            bytes.copy_within(from..from + 12, from - VLAN_LEN);
            bytes[from + 8..from + 10].copy_from_slice(&ty.to_be_bytes());
            bytes[from + 10..from + 12].copy_from_slice(&tag.to_be_bytes());
            from -= VLAN_LEN;
        }
        Some((&bytes[from..], info.is_outgoing))
    }
}

/// Writes the internet checksum of the bytes from `start` to `offset` bytes behind it. The sender has put the
/// sum of the pseudo header there.
fn complete_checksum(frame: &mut [u8], start: usize, offset: usize) {
    let Some(covered) = frame.get_mut(start..) else { return };
    let mut sum: u32 = 0;
    for pair in covered.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    if let Some(field) = covered.get_mut(offset..offset + 2) {
        let sum = !(sum as u16);
        // 0 means that there is no checksum (RFC 768); a TCP receiver takes 0xffff for the same number.
        field.copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_checksum_is_completed_over_the_rest_of_the_frame() {
        // A UDP header behind 2 bytes; its checksum field has the sum of the pseudo header.
        let mut frame = [9, 9, 0, 1, 0, 2, 0, 9, 0x12, 0x34, 7];
        complete_checksum(&mut frame, 2, 6);
        let sum = 1 + 2 + 9 + 0x1234 + 0x0700_u32;
        assert_eq!(frame[8..10], (!(sum as u16)).to_be_bytes());
        let before = frame;
        complete_checksum(&mut frame, 40, 0);
        complete_checksum(&mut frame, 10, 6);
        assert_eq!(frame, before, "outside the frame");
    }
}

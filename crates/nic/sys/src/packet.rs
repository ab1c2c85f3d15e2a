//! Packet sockets: whole Ethernet frames to and from one interface (packet(7)). They need CAP_NET_RAW.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{call, check, udp};

/// A packet socket of one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    ifindex: u32,
}

/// What the kernel says about a received frame.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FrameInfo {
    /// This host sends the frame.
    pub is_outgoing: bool,
    /// The VLAN tag that the kernel took out of the frame: protocol and TCI.
    pub vlan: Option<(u16, u16)>,
    /// The transport checksum is not complete: offset of the first byte that it covers, and of the checksum
    /// relative to that byte.
    pub partial_checksum: Option<(u16, u16)>,
    /// Several frames that the kernel did not segment, or a frame that is longer than the buffer.
    pub is_oversize: bool,
}

/// Frames of one call of sendmmsg(2).
pub const SEND_FRAMES_MAX: usize = 64;

/// linux/if_packet.h; libc does not have all of them.
const PACKET_ADD_MEMBERSHIP: libc::c_int = 1;
const PACKET_DROP_MEMBERSHIP: libc::c_int = 2;
const PACKET_AUXDATA: libc::c_int = 8;
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_QDISC_BYPASS: libc::c_int = 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const PACKET_MR_PROMISC: u16 = 1;
const PACKET_OUTGOING: u8 = 4;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
const ETH_P_8021Q: u16 = 0x8100;
/// linux/virtio_net.h.
const NEEDS_CSUM: u8 = 1;

impl PacketSocket {
    /// Opens a socket that only sends; its frames pass no queueing discipline.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW; `ENODEV` for an interface that does not exist.
    pub fn sender(ifindex: u32) -> io::Result<Self> {
        let socket = Self::open(ifindex)?;
        socket.bind(0)?;
        // Kernels before 3.14 queue the frames, which does no harm.
        let _old = socket.set(PACKET_QDISC_BYPASS, &1_i32);
        Ok(socket)
    }

    /// Opens a socket that receives every frame of the interface; those that this host sends only after
    /// [`set_outgoing`](Self::set_outgoing).
    ///
    /// # Errors
    /// As [`sender`](Self::sender).
    pub fn receiver(ifindex: u32) -> io::Result<Self> {
        let socket = Self::open(ifindex)?;
        socket.set(PACKET_VNET_HDR, &1_i32)?;
        socket.set(PACKET_AUXDATA, &1_i32)?;
        socket.set_outgoing(false)?;
        socket.bind(libc::ETH_P_ALL as u16)?;
        Ok(socket)
    }

    fn open(ifindex: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes three integers and no pointer.
        let fd = check(unsafe { libc::syscall(libc::SYS_socket, libc::AF_PACKET, kind, 0) } as libc::c_int)?;
        // SAFETY: `fd` is new and has no other owner.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, ifindex })
    }

    fn bind(&self, protocol: u16) -> io::Result<()> {
        // SAFETY: sockaddr_ll is plain data, for which zeros are valid.
        let mut addr: libc::sockaddr_ll = unsafe { mem::zeroed() };
        addr.sll_family = libc::AF_PACKET as u16;
        addr.sll_protocol = protocol.to_be();
        addr.sll_ifindex = self.ifindex as libc::c_int;
        let len = mem::size_of_val(&addr) as libc::socklen_t;
        // SAFETY: the kernel reads `len` bytes of `addr`.
        check(unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const addr).cast(), len) }).map(drop)
    }

    fn set<T>(&self, name: libc::c_int, value: &T) -> io::Result<()> {
        let len = mem::size_of::<T>() as libc::socklen_t;
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the kernel reads `len` bytes of `value`.
        check(unsafe { libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_PACKET, name, value, len) }).map(drop)
    }

    /// Sets whether it receives the frames that this host sends, too.
    ///
    /// # Errors
    /// `ENOPROTOOPT` before Linux 4.20; the socket then receives them.
    pub fn set_outgoing(&self, receives: bool) -> io::Result<()> {
        self.set(PACKET_IGNORE_OUTGOING, &i32::from(!receives))
    }

    /// Sets whether the interface receives frames for other Ethernet addresses, as long as the socket lives.
    ///
    /// # Errors
    /// `ENODEV` after the interface was removed.
    pub fn set_promiscuous(&self, on: bool) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: self.ifindex as libc::c_int,
            mr_type: PACKET_MR_PROMISC,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(if on { PACKET_ADD_MEMBERSHIP } else { PACKET_DROP_MEMBERSHIP }, &request)
    }

    /// Sends up to [`SEND_FRAMES_MAX`] frames without waiting; returns how many the kernel took.
    ///
    /// # Errors
    /// The error of the first frame, if that one could not be sent: `EAGAIN`, `ENOBUFS`, `EMSGSIZE` for a
    /// frame above the MTU, `ENETDOWN`.
    pub fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
        // SAFETY: mmsghdr and iovec are plain data, for which zeros are valid.
        let (mut headers, mut pieces): ([libc::mmsghdr; SEND_FRAMES_MAX], [libc::iovec; SEND_FRAMES_MAX]) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        let mut count = 0;
        for (frame, (header, piece)) in frames.zip(headers.iter_mut().zip(&mut pieces)) {
            piece.iov_base = frame.as_ptr().cast_mut().cast();
            piece.iov_len = frame.len();
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: each of the `count` headers points to a piece on this stack frame, and that to a frame
        // borrowed for the call.
        let sent = unsafe { call::sendmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), count, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Control data with the alignment of cmsghdr; `tpacket_auxdata` takes 40 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlBytes([u8; 64]);

/// Storage for the frames of one call of recvmmsg(2).
pub struct FrameBatch {
    bytes: Vec<u8>,
    stride: usize,
    headers: Vec<libc::mmsghdr>,
    names: Vec<libc::sockaddr_ll>,
    pieces: Vec<libc::iovec>,
    controls: Vec<ControlBytes>,
    /// Frames of the last call.
    count: usize,
}

// SAFETY: the pointers in `headers` and `pieces` lead into vectors that `self` owns, and only `receive` uses
// them, after it has set them.
unsafe impl Send for FrameBatch {}

impl std::fmt::Debug for FrameBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameBatch").field("room", &self.headers.len()).field("count", &self.count).finish()
    }
}

impl FrameBatch {
    /// Bytes before each frame in its buffer: `virtio_net_hdr`. A VLAN tag that was taken out fits there.
    pub const HEADROOM: usize = 10;

    /// Allocates room for `frames` frames of at most `frame_max` bytes. Pages are touched only as frames need
    /// them.
    #[must_use]
    pub fn new(frames: usize, frame_max: usize) -> Self {
        let stride = (Self::HEADROOM + frame_max).next_multiple_of(64);
        // SAFETY: mmsghdr, sockaddr_ll and iovec are plain data, for which zeros are valid.
        let (header, name, piece): (libc::mmsghdr, libc::sockaddr_ll, libc::iovec) =
            unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        Self {
            bytes: vec![0; stride * frames],
            stride,
            headers: vec![header; frames],
            names: vec![name; frames],
            pieces: vec![piece; frames],
            controls: vec![ControlBytes([0; _]); frames],
            count: 0,
        }
    }

    /// Receives frames without waiting; returns how many.
    ///
    /// # Errors
    /// `EAGAIN` if there are none; `ENETDOWN` once after the interface went down.
    pub fn receive(&mut self, socket: &PacketSocket) -> io::Result<usize> {
        self.count = 0;
        let (bytes, names) = (self.bytes.as_mut_ptr(), self.names.as_mut_ptr());
        let (pieces, controls) = (self.pieces.as_mut_ptr(), self.controls.as_mut_ptr());
        for (i, header) in self.headers.iter_mut().enumerate() {
            let header = &mut header.msg_hdr;
            // SAFETY: each vector has an element for each header, and `bytes` a stride.
            unsafe {
                pieces
                    .add(i)
                    .write(libc::iovec { iov_base: bytes.add(i * self.stride).cast(), iov_len: self.stride });
                header.msg_name = names.add(i).cast();
                header.msg_iov = pieces.add(i);
                header.msg_control = controls.add(i).cast();
            }
            header.msg_iovlen = 1;
            header.msg_namelen = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            header.msg_controllen = mem::size_of::<ControlBytes>() as _;
            header.msg_flags = 0;
        }
        let (fd, room) = (socket.fd.as_raw_fd(), self.headers.len() as libc::c_uint);
        let (headers, flags) = (self.headers.as_mut_ptr(), libc::MSG_DONTWAIT);
        // SAFETY: each header points to a name, a buffer and control data of the stated lengths, which `self`
        // owns.
        let got = unsafe { call::recvmmsg(fd, headers, room, flags) };
        self.count = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        Ok(self.count)
    }

    /// Returns frame `i` of the last [`receive`](Self::receive), after [`HEADROOM`](Self::HEADROOM) bytes
    /// that the caller may overwrite.
    ///
    /// # Panics
    /// If the last call received fewer frames.
    pub fn frame(&mut self, i: usize) -> (&mut [u8], FrameInfo) {
        let header = &self.headers[..self.count][i];
        let len = (header.msg_len as usize).clamp(Self::HEADROOM, self.stride);
        let bytes = &mut self.bytes[i * self.stride..][..len];
        let filled = header.msg_hdr.msg_controllen.min(mem::size_of::<ControlBytes>());
        let is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let mut info = FrameInfo {
            is_outgoing: self.names[i].sll_pkttype == PACKET_OUTGOING,
            // A type of GSO: the kernel would have segmented it later.
            is_oversize: is_cut || bytes[1] != 0,
            ..FrameInfo::default()
        };
        if bytes[0] & NEEDS_CSUM != 0 {
            let at = |offset: usize| u16::from_ne_bytes([bytes[offset], bytes[offset + 1]]);
            info.partial_checksum = Some((at(6), at(8)));
        }
        info.vlan = vlan(&self.controls[i].0[..filled]);
        (bytes, info)
    }
}

/// Returns the tag in `tpacket_auxdata`: status, two lengths, two offsets, TCI and TPID.
fn vlan(mut control: &[u8]) -> Option<(u16, u16)> {
    while let Some((level, kind, data, rest)) = udp::next_cmsg(control) {
        control = rest;
        if let (libc::SOL_PACKET, PACKET_AUXDATA, Some(aux)) = (level, kind, data.first_chunk::<20>()) {
            let status = u32::from_ne_bytes([aux[0], aux[1], aux[2], aux[3]]);
            let (tci, tpid) =
                (u16::from_ne_bytes([aux[16], aux[17]]), u16::from_ne_bytes([aux[18], aux[19]]));
            let tpid = if status & TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { ETH_P_8021Q };
            return (status & TP_STATUS_VLAN_VALID != 0).then_some((tpid, tci));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_a_frame_comes_from_its_control_message() {
        let mut control = [0; 40];
        control[..8].copy_from_slice(&36_usize.to_ne_bytes());
        control[8..12].copy_from_slice(&libc::SOL_PACKET.to_ne_bytes());
        control[12..16].copy_from_slice(&PACKET_AUXDATA.to_ne_bytes());
        assert_eq!(vlan(&control), None);
        control[16..20].copy_from_slice(&TP_STATUS_VLAN_VALID.to_ne_bytes());
        control[32..34].copy_from_slice(&5_u16.to_ne_bytes());
        assert_eq!(vlan(&control), Some((ETH_P_8021Q, 5)));
        let both = TP_STATUS_VLAN_VALID | TP_STATUS_VLAN_TPID_VALID;
        control[16..20].copy_from_slice(&both.to_ne_bytes());
        control[34..36].copy_from_slice(&0x88a8_u16.to_ne_bytes());
        assert_eq!(vlan(&control), Some((0x88a8, 5)));
        assert_eq!(vlan(&control[..20]), None, "a message that is cut");
    }

    #[test]
    fn frames_pass_over_a_veth_pair_with_their_tags() {
        if !crate::testing::enter_new_netns() {
            return;
        }
        crate::testing::ip("link add left type veth peer name right");
        crate::testing::ip("link set left up");
        crate::testing::ip("link set right up");
        let links = crate::Netlink::new().unwrap().links().unwrap();
        let index = |name| links.iter().find(|link| link.name == name).unwrap().index;
        let (sender, receiver) =
            (PacketSocket::sender(index("left")).unwrap(), PacketSocket::receiver(index("right")).unwrap());
        let mut tagged = [0xff; 64];
        tagged[12..18].copy_from_slice(&[0x81, 0, 0x20, 7, 0x12, 0x34]);
        let mut plain = [0xff; 64];
        plain[12..14].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(sender.send([&tagged[..], &plain[..]].into_iter()).unwrap(), 2);
        let (mut batch, mut seen) = (FrameBatch::new(8, 2048), Vec::new());
        for _ in 0..1000 {
            for i in 0..batch.receive(&receiver).unwrap_or(0) {
                let (bytes, info) = batch.frame(i);
                let frame = bytes[FrameBatch::HEADROOM..].to_vec();
                if frame[12..14] == [0x12, 0x34] {
                    seen.push((frame.len(), info));
                }
            }
            if seen.len() == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let with_tag = FrameInfo { vlan: Some((ETH_P_8021Q, 0x2007)), ..FrameInfo::default() };
        assert_eq!(seen, [(60, with_tag), (64, FrameInfo::default())]);
    }
}

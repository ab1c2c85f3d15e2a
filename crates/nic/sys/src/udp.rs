//! Batches of UDP datagrams: sendmmsg(2) with UDP_SEGMENT, recvmmsg(2) with UDP_GRO (udp(7)); for a single
//! datagram sendmsg(2) and recvmsg(2).

use std::io;
use std::marker::PhantomData;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Phase, SockAddr, address, call};

/// Bytes of control data for one message: three or four control messages of 24 bytes when sending, pktinfo
/// (40) and a few small ones when receiving.
const CONTROL_LEN: usize = 192;

/// Control data with the alignment of cmsghdr.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlBytes([u8; CONTROL_LEN]);

/// Control messages that go with each datagram of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    bytes: [u8; Control::MAX],
    len: usize,
}

impl Control {
    /// Space for TOS and TTL.
    const MAX: usize = 48;

    /// Sets TOS and TTL, where given, for each datagram.
    #[must_use]
    pub fn new(v6: bool, tos: Option<u8>, ttl: Option<u8>) -> Control {
        let mut control = Control { bytes: [0; _], len: 0 };
        let (level, tos_kind, ttl_kind) = if v6 {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
        } else {
            (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
        };
        for (kind, value) in [(tos_kind, tos), (ttl_kind, ttl)] {
            if let Some(value) = value {
                put_cmsg(&mut control.bytes[control.len..], level, kind, &i32::from(value).to_ne_bytes());
                control.len += CMSG_SPACE;
            }
        }
        control
    }
}

/// Storage for the datagrams of one sendmmsg call.
pub struct SendBatch {
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    controls: Vec<ControlBytes>,
}

// SAFETY: the pointers inside are used only during the life of a `Filling`, which borrows what they point to.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// Allocates space for `messages` datagrams made of `pieces` pieces in total.
    #[must_use]
    pub fn new(messages: usize, pieces: usize) -> SendBatch {
        SendBatch {
            headers: Vec::with_capacity(messages),
            pieces: Vec::with_capacity(pieces),
            controls: Vec::with_capacity(messages),
        }
    }

    /// Empties the batch and starts filling it.
    pub fn fill(&mut self) -> Filling<'_> {
        self.headers.clear();
        self.pieces.clear();
        self.controls.clear();
        Filling { batch: self, borrowed: PhantomData }
    }
}

impl std::fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendBatch").field("messages", &self.headers.len()).finish_non_exhaustive()
    }
}

/// A [`SendBatch`] being filled and sent; borrows everything it will send.
#[derive(Debug)]
pub struct Filling<'a> {
    batch: &'a mut SendBatch,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> Filling<'a> {
    /// Starts a datagram; with `segment`, the kernel segments it into datagrams of that size (GSO).
    ///
    /// # Panics
    /// If there are more messages than the batch has room for.
    pub fn message(&mut self, to: &'a SockAddr, control: &Control, segment: Option<u16>) {
        let batch = &mut *self.batch;
        // No vector may grow, because `headers` points into the other two.
        assert!(batch.headers.len() < batch.headers.capacity());
        assert!(batch.controls.len() < batch.controls.capacity());
        let mut bytes = ControlBytes([0; _]);
        bytes.0[..Control::MAX].copy_from_slice(&control.bytes);
        let mut len = control.len;
        if let Some(segment) = segment {
            put_cmsg(&mut bytes.0[len..], libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
            len += CMSG_SPACE;
        }
        batch.controls.push(bytes);
        let (name, namelen) = to.raw();
        // SAFETY: mmsghdr is plain data, for which zeros are valid.
        let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
        header.msg_hdr.msg_name = name.cast_mut().cast();
        header.msg_hdr.msg_namelen = namelen;
        // SAFETY: one past the end at most; `piece` makes it point to a piece.
        header.msg_hdr.msg_iov = unsafe { batch.pieces.as_mut_ptr().add(batch.pieces.len()) };
        if len > 0
            && let Some(control) = batch.controls.last_mut()
        {
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = len as _;
        }
        batch.headers.push(header);
    }

    /// Adds bytes to the last datagram.
    ///
    /// # Panics
    /// If there is no datagram, or there are more pieces than the batch has room for.
    pub fn piece(&mut self, bytes: &'a [u8]) {
        let batch = &mut *self.batch;
        assert!(batch.pieces.len() < batch.pieces.capacity());
        let Some(header) = batch.headers.last_mut() else { panic!("no message to add to") };
        batch.pieces.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        header.msg_hdr.msg_iovlen += 1;
    }

    /// Sends datagrams from number `from` on, without waiting; returns how many the kernel took.
    ///
    /// # Errors
    /// The error of datagram `from`, if that one could not be sent.
    pub fn send(&mut self, fd: BorrowedFd<'_>, from: usize) -> io::Result<usize> {
        let headers = &mut self.batch.headers[from..];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the headers point to names and pieces borrowed for 'a, which outlives `self`, and to
        // control data and piece lists in vectors that have not grown since.
        let sent = unsafe {
            call::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), headers.len() as libc::c_uint, flags)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// A received datagram, or several of one sender merged by GRO.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The payload.
    pub bytes: &'a [u8],
    /// Sender; an IPv4-mapped address is given as IPv4.
    pub src: Option<SocketAddr>,
    /// The address it was sent to; an IPv4-mapped one is given as IPv4.
    pub dst: Option<IpAddr>,
    /// The interface that it came through; 0 at a socket for IPv4.
    pub ifindex: u32,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Size of all merged datagrams but the last.
    pub segment: Option<usize>,
    /// True if the payload did not fit.
    pub truncated: bool,
}

/// Storage for the datagrams of one recvmmsg call.
pub struct RecvBatch {
    buffers: Vec<u8>,
    /// Offsets of the datagrams of the last call.
    starts: Vec<usize>,
    phase: Phase,
    headers: Vec<libc::mmsghdr>,
    /// What `headers` points to: names, piece descriptors, control data.
    names: Vec<libc::sockaddr_in6>,
    pieces: Vec<libc::iovec>,
    controls: Vec<ControlBytes>,
    /// Headers that the last call has used; [`prepare`](RecvBatch::prepare) comes before the next one.
    used: usize,
}

// SAFETY: the pointers inside all point into vectors that `self` owns and never changes.
unsafe impl Send for RecvBatch {}

impl RecvBatch {
    /// Size of the largest datagram, merged or not.
    pub const BUFFER_LEN: usize = 65_536;
    /// Distance between two buffers.
    const STRIDE: usize = Self::BUFFER_LEN + Phase::SPAN;

    /// Allocates space for `messages` datagrams. Pages are touched only as datagrams need them.
    #[must_use]
    pub fn new(messages: usize) -> RecvBatch {
        // SAFETY: sockaddr_in6, iovec and mmsghdr are plain data, for which zeros are valid.
        let (name, piece, header): (libc::sockaddr_in6, libc::iovec, libc::mmsghdr) =
            unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        let mut batch = RecvBatch {
            buffers: vec![0; messages * Self::STRIDE],
            starts: vec![0; messages],
            phase: Phase::default(),
            headers: vec![header; messages],
            names: vec![name; messages],
            pieces: vec![piece; messages],
            controls: vec![ControlBytes([0; _]); messages],
            used: messages,
        };
        // Pointers are derived once from each vector, which is not touched through references afterwards
        // except as a whole while no call is running.
        for i in 0..messages {
            let header = &mut batch.headers[i].msg_hdr;
            // SAFETY: in bounds, each vector has `messages` elements.
            unsafe {
                header.msg_name = batch.names.as_mut_ptr().add(i).cast();
                header.msg_iov = batch.pieces.as_mut_ptr().add(i);
                header.msg_control = batch.controls.as_mut_ptr().add(i).cast();
            }
            header.msg_iovlen = 1;
        }
        batch
    }

    /// Receives at most `want` datagrams without waiting; returns how many. 0 also if a signal arrives.
    ///
    /// # Errors
    /// What recvmmsg(2) says.
    #[inline]
    pub fn receive(&mut self, fd: BorrowedFd<'_>, want: usize) -> io::Result<usize> {
        if self.used > 0 {
            self.prepare();
        }
        let want = want.min(self.headers.len());
        let (fd, headers, flags) = (fd.as_raw_fd(), self.headers.as_mut_ptr(), libc::MSG_DONTWAIT);
        // SAFETY: each header points to a name, a buffer and control data of the stated lengths, owned by
        // `self`; `want` does not exceed the number of headers.
        let got = unsafe { call::recvmmsg(fd, headers, want as libc::c_uint, flags) };
        match usize::try_from(got) {
            Ok(got) => {
                self.used = got;
                Ok(got)
            }
            Err(_) => match io::Error::last_os_error() {
                none if matches!(none.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(0),
                error => {
                    // The kernel may have begun to write the first header before it found the error.
                    self.used = 1;
                    Err(error)
                }
            },
        }
    }

    /// Prepares the headers and buffers that the last call has used for the next one.
    fn prepare(&mut self) {
        let buffers = self.buffers.as_mut_ptr();
        for (i, header) in self.headers[..self.used].iter_mut().enumerate() {
            header.msg_hdr.msg_namelen = mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = CONTROL_LEN as _;
            header.msg_hdr.msg_flags = 0;
            self.starts[i] = self.phase.next_from(i * Self::STRIDE);
            // SAFETY: in bounds, the start is less than `SPAN` bytes into its stride.
            let base = unsafe { buffers.add(self.starts[i]) };
            self.pieces[i] = libc::iovec { iov_base: base.cast(), iov_len: Self::BUFFER_LEN };
        }
        self.used = 0;
    }

    /// Datagram `i` of the last [`receive`](RecvBatch::receive).
    #[must_use]
    pub fn datagram(&self, i: usize) -> Datagram<'_> {
        let header = &self.headers[..self.used][i];
        let start = self.starts[i];
        let len = (header.msg_len as usize).min(Self::BUFFER_LEN);
        let mut datagram = Datagram {
            bytes: &self.buffers[start..start + len],
            src: address::parse(&self.names[i], header.msg_hdr.msg_namelen),
            dst: None,
            ifindex: 0,
            tos: 0,
            ttl: 0,
            segment: None,
            truncated: header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        };
        let filled = header.msg_hdr.msg_controllen.min(CONTROL_LEN);
        let mut rest = &self.controls[i].0[..filled];
        while let Some((level, kind, data, next)) = next_cmsg(rest) {
            rest = next;
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    datagram.segment = data.first_chunk().map(|v| i32::from_ne_bytes(*v) as usize);
                }
                // in6_pktinfo: address, then interface index.
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    if let Some((ip, ifindex)) = data.split_first_chunk::<16>() {
                        datagram.dst = Some(IpAddr::V6((*ip).into()).to_canonical());
                        datagram.ifindex =
                            ifindex.first_chunk().map_or(0, |index| u32::from_ne_bytes(*index));
                    }
                }
                // in_pktinfo: interface index, local address, destination address of the header.
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if datagram.dst.is_none() => {
                    datagram.dst = data.get(8..).and_then(<[u8]>::first_chunk::<4>).map(|ip| (*ip).into());
                }
                // One byte for IPv4, an int for IPv6 and for the hop counts.
                (libc::IPPROTO_IP, libc::IP_TOS) => datagram.tos = data.first().copied().unwrap_or(0),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => datagram.tos = int_as_u8(data),
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    datagram.ttl = int_as_u8(data);
                }
                _ => {}
            }
        }
        datagram
    }
}

impl std::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvBatch").field("room", &self.headers.len()).field("used", &self.used).finish()
    }
}

/// Space of a control message with up to 8 bytes of data: cmsghdr is 16 bytes on 64-bit systems.
const CMSG_SPACE: usize = 24;

const _: () = assert!(mem::size_of::<libc::cmsghdr>() == 16);

/// Writes one control message (at most 8 bytes of data) to the start of `space`.
fn put_cmsg(space: &mut [u8], level: libc::c_int, kind: libc::c_int, data: &[u8]) {
    space[..8].copy_from_slice(&(16 + data.len()).to_ne_bytes());
    space[8..12].copy_from_slice(&level.to_ne_bytes());
    space[12..16].copy_from_slice(&kind.to_ne_bytes());
    space[16..16 + data.len()].copy_from_slice(data);
}

/// Splits off the first control message: level, type, data, rest.
pub(super) fn next_cmsg(bytes: &[u8]) -> Option<(libc::c_int, libc::c_int, &[u8], &[u8])> {
    let (header, _) = bytes.split_first_chunk::<16>()?;
    let [l0, l1, l2, l3, l4, l5, l6, l7, v0, v1, v2, v3, k0, k1, k2, k3] = *header;
    let len = usize::from_ne_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
    let data = bytes.get(16..len)?;
    let rest = bytes.get(len.next_multiple_of(8)..).unwrap_or_default();
    Some((i32::from_ne_bytes([v0, v1, v2, v3]), i32::from_ne_bytes([k0, k1, k2, k3]), data, rest))
}

fn int_as_u8(data: &[u8]) -> u8 {
    data.first_chunk().map_or(0, |v| i32::from_ne_bytes(*v) as u8)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;
    use crate::{Opt, bind, set_opt, udp_socket};

    /// The datagrams of two senders alternate, and one has no bytes. Each is reported with the address and
    /// the TTL of its sender, by calls for one datagram and by calls for several.
    #[test]
    fn datagrams_of_several_senders_are_told_apart() {
        let fd = udp_socket(false).expect("IPv4");
        for opt in [Opt::RECV_PKTINFO, Opt::RECV_TTL] {
            set_opt(fd.as_fd(), opt, 1).expect("an option of UDP sockets");
        }
        let any = SockAddr::ip(Ipv4Addr::UNSPECIFIED.into(), 0, 0);
        bind(fd.as_fd(), &any).expect("any port");
        let receiver = UdpSocket::from(fd);
        let port = receiver.local_addr().expect("bound").port();
        let senders = [7, 9].map(|ttl| {
            let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
            sender.set_ttl(ttl).expect("a TTL");
            sender.connect((Ipv4Addr::LOCALHOST, port)).expect("loopback");
            sender
        });
        let sent = [(0, "a"), (1, "bb"), (0, ""), (0, "c"), (1, "d")];
        for want in [1, sent.len()] {
            for (sender, bytes) in sent {
                senders[sender].send(bytes.as_bytes()).expect("loopback");
            }
            let mut batch = RecvBatch::new(sent.len());
            let mut received = Vec::new();
            while received.len() < sent.len() {
                let got = batch.receive(receiver.as_fd(), want).expect("they have arrived");
                for i in 0..got {
                    let Datagram { bytes, src, dst, ttl, truncated, .. } = batch.datagram(i);
                    assert_eq!((dst, truncated), (Some(Ipv4Addr::LOCALHOST.into()), false));
                    received.push((src, ttl, bytes.to_vec()));
                }
            }
            let expected = sent.map(|(sender, bytes)| {
                (senders[sender].local_addr().ok(), [7, 9][sender], bytes.as_bytes().to_vec())
            });
            assert_eq!(received, expected, "calls for {want}");
            assert_eq!(batch.receive(receiver.as_fd(), want).expect("no error"), 0, "no more");
        }
    }
}

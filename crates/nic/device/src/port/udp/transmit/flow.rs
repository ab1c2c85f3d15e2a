//! Flows and the sockets that serve them: everything about a destination that can be computed once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{Flow, NONE, Transmitter, TxSocket};
use crate::port::{FlowId, FlowKey, GSI_FLOW_SLOT, Headers, icrc_header};
use sys::{Control, Opt, SockAddr};

/// 65535 less IPv4 and UDP headers.
const BURST_BYTES_MAX_V4: u32 = 65_507;
/// 65535 less IPv6 and UDP headers.
const BURST_BYTES_MAX_V6: u32 = 65_487;
/// Sockets that share the destination slots of one local address; one more serves QP1. All are opened
/// with the first flow, so a process holds the same number of descriptors whatever the number of its
/// peers.
const SOCKET_CLASSES: u8 = 8;
/// The class of QP1.
pub(super) const GSI_CLASS: u8 = u8::MAX;

/// Returns the class of a destination slot, which selects its socket. Packets for two slots of one class
/// may share a GRO batch; the receiving process then hands the foreign packets over.
fn socket_class(slot: u16) -> u8 {
    if slot == GSI_FLOW_SLOT { GSI_CLASS } else { (slot % u16::from(SOCKET_CLASSES)) as u8 }
}

/// Sockets one process can have: those of 450 local addresses.
const SOCKETS_MAX: usize = 4096;
/// Send buffer: what a 100 Gbit/s NIC sends in a third of a millisecond.
const SEND_BUFFER: i32 = 4 << 20;
/// Hop limit of flows that do not specify one (also the default of rdma_cm).
const DEFAULT_TTL: u8 = 64;

impl Transmitter {
    pub(in crate::port::udp) fn open_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        let id = self.datagram_flow(key)?;
        self.table.hold(id.0);
        Ok(id)
    }

    pub(in crate::port::udp) fn close_flow(&mut self, flow: FlowId) {
        self.table.release(flow.0);
    }

    #[inline]
    pub(in crate::port::udp) fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        match self.table.find(key) {
            Some(index) => Ok(FlowId(index)),
            None => self.add_flow(key),
        }
    }

    /// Whether the kernel holds no packet of the socket that the flow shares with others. False if it does
    /// not say so.
    pub(in crate::port::udp) fn has_sent_all(&mut self, key: &FlowKey) -> bool {
        let Ok(flow) = self.datagram_flow(key) else { return true };
        let Some(flow) = self.flows.get(flow.0 as usize) else { return true };
        let socket = self.sockets.get(flow.socket as usize);
        socket.is_none_or(|socket| {
            !socket.is_dirty && sys::unsent_bytes(socket.fd.as_fd()).is_ok_and(|bytes| bytes == 0)
        })
    }

    pub(in crate::port::udp) fn headers(&self, flow: FlowId) -> Option<Headers> {
        let socket = self.flows.get(flow.0 as usize)?.socket;
        Headers::new(self.table.key(flow.0)?, self.sockets.get(socket as usize)?.port, self.udp_port)
    }

    #[cold]
    fn add_flow(&mut self, asked: &FlowKey) -> io::Result<FlowId> {
        let key = FlowKey { ttl: if asked.ttl == 0 { DEFAULT_TTL } else { asked.ttl }, ..*asked };
        let index = self.socket_for(&key)?;
        let socket = &self.sockets[index];
        let udp_port = self.udp_port;
        let icrc = icrc_header(key.src, key.dst, socket.port, udp_port)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?
            .with_flush(key.flush_icrc);
        let v6 = key.dst.is_ipv6();
        let tos = (key.tos != socket.tos).then_some(key.tos);
        // The socket's TTL does not apply to multicast.
        let ttl = (key.ttl != socket.ttl || key.dst.is_multicast()).then_some(key.ttl);
        let flow = Flow {
            to: SockAddr::ip(key.dst, udp_port, self.scope(&key)),
            control: Control::new(v6, tos, ttl),
            icrc,
            socket: index as u32,
            open: NONE,
            burst_bytes_max: if v6 { BURST_BYTES_MAX_V6 } else { BURST_BYTES_MAX_V4 },
            segments_max: self.segments_max,
        };
        let bursts = &self.bursts;
        let index = self
            .table
            .add(*asked, |flow| bursts.iter().any(|burst| burst.flow == flow))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS))?;
        match self.flows.get_mut(index as usize) {
            Some(place) => *place = flow,
            None => self.flows.push(flow),
        }
        Ok(FlowId(index))
    }

    /// Returns the socket for a flow. Its TOS and TTL are those of the first flow of its address; other
    /// flows set their own per datagram.
    fn socket_for(&mut self, key: &FlowKey) -> io::Result<usize> {
        let class = socket_class(key.dst_slot);
        let wanted = (key.src, key.above, class);
        let find = |sockets: &[TxSocket]| sockets.iter().position(|s| (s.src, s.above, s.class) == wanted);
        if let Some(index) = find(&self.sockets) {
            return Ok(index);
        }
        for class in (0..SOCKET_CLASSES).chain([GSI_CLASS]) {
            self.open_socket(key, class)?;
        }
        find(&self.sockets).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS))
    }

    fn open_socket(&mut self, key: &FlowKey, class: u8) -> io::Result<()> {
        if self.sockets.len() >= SOCKETS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        let v6 = key.src.is_ipv6();
        let fd = sys::udp_socket(v6)?;
        let (tos, ttl) = (i32::from(key.tos), i32::from(key.ttl));
        let (discover, tos_opt, ttl_opt) = if v6 {
            sys::set_opt(fd.as_fd(), Opt::V6_ONLY, 1)?;
            sys::set_opt(fd.as_fd(), Opt::MULTICAST_IF6, self.scope(key) as i32)?;
            (Opt::MTU_DISCOVER6, Opt::TCLASS, Opt::HOP_LIMIT)
        } else {
            (Opt::MTU_DISCOVER, Opt::TOS, Opt::TTL)
        };
        for (opt, value) in [(discover, Opt::PMTU_PROBE), (tos_opt, tos), (ttl_opt, ttl)] {
            sys::set_opt(fd.as_fd(), opt, value)?;
        }
        sys::keep_errors(fd.as_fd(), v6)?;
        sys::set_send_buffer(fd.as_fd(), SEND_BUFFER)?;
        let port = self.bind_source(&fd, key)?;
        self.sockets.push(TxSocket {
            fd,
            src: key.src,
            above: key.above,
            class,
            tos: key.tos,
            ttl: key.ttl,
            port,
            is_dirty: false,
            unchecked: 0,
        });
        // `dirty` must not grow on the data path.
        self.dirty.reserve(self.sockets.len());
        Ok(())
    }

    /// The interface of link-local addresses and of IPv6 groups.
    fn scope(&self, key: &FlowKey) -> u32 {
        if key.above == 0 { self.ifindex } else { key.above }
    }

    /// Binds to a random port of the range that RoCEv2 uses for sources, or to any port if those tried
    /// are taken.
    fn bind_source(&self, fd: &OwnedFd, key: &FlowKey) -> io::Result<u16> {
        for attempt in 0..=32 {
            let port = if attempt < 32 { 0xc000 | sys::random_u64() as u16 } else { 0 };
            match sys::bind(fd.as_fd(), &SockAddr::ip(key.src, port, self.scope(key))) {
                Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) && port != 0 => {}
                Err(e) => return Err(e),
                Ok(()) => break,
            }
        }
        sys::local_port(fd.as_fd())
    }
}

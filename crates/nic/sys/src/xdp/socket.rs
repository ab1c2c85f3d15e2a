//! AF_XDP sockets: set-up, binding, wake-ups, statistics.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::ring::{Consumer, Producer, RingMemory};
use super::rings::{CompletionRing, FillRing, RxRing, TxRing};
use super::umem::{Umem, User};
use crate::{call, check, set_send_buffer};

/// A socket on one queue of an interface.
#[derive(Debug)]
pub struct XskSocket {
    // The socket is closed before `user` tells the memory: fields are dropped in order.
    fd: OwnedFd,
    user: User,
    /// Whether it shares the memory that another socket registered.
    shares: bool,
}

/// The rings of a socket.
#[derive(Debug)]
pub struct Rings {
    /// Empty chunks to the kernel.
    pub fill: FillRing,
    /// Packets from the kernel.
    pub rx: RxRing,
    /// Packets to the kernel.
    pub tx: TxRing,
    /// Sent chunks from the kernel.
    pub completion: CompletionRing,
}

/// Parameters of a bind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bind {
    /// Interface.
    pub ifindex: u32,
    /// Its queue.
    pub queue: u32,
    /// Whether to bind in zero-copy mode, which then must be possible; else in copy mode.
    pub zero_copy: bool,
    /// Packets may take several chunks (XDP_USE_SG, since 6.6).
    pub fragments: bool,
}

/// Counts of one socket (XDP_STATISTICS).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct XskStatistics {
    /// Packets dropped for other reasons than a full receive ring.
    pub rx_dropped: u64,
    /// Invalid descriptors in the fill ring.
    pub rx_invalid_descs: u64,
    /// Invalid descriptors in the transmit ring; their chunks do not come back.
    pub tx_invalid_descs: u64,
    /// Packets dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Times the fill ring was empty.
    pub rx_fill_ring_empty_descs: u64,
    /// Times the transmit ring was empty.
    pub tx_ring_empty_descs: u64,
}

/// linux/if_xdp.h, since 6.18; other constants come from libc.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// The kernel copies each packet it sends into a buffer that counts against this until the receiver has
/// freed it.
const SEND_BUFFER: i32 = 64 << 20;

impl XskSocket {
    /// Creates a socket on `umem` with rings of these sizes (powers of two): `[fill, completion, rx,
    /// tx]`. The first socket of a memory registers it; further ones share it, each with rings of its
    /// own, on other queues.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW; `EAFNOSUPPORT` without AF_XDP; `ENOBUFS` beyond RLIMIT_MEMLOCK
    /// without CAP_IPC_LOCK; `EINVAL` for an impossible geometry.
    pub fn new(
        umem: &Arc<Umem>,
        sizes: [u32; 4],
        first: Option<&XskSocket>,
    ) -> io::Result<(XskSocket, Rings)> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes no pointer.
        let fd = check(unsafe { libc::socket(libc::AF_XDP, kind, 0) })?;
        // SAFETY: `fd` is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let shares = match first {
            Some(first) if !Arc::ptr_eq(&first.user.0, umem) => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            first => first.is_some(),
        };
        let socket = XskSocket { fd, user: User::new(umem), shares };
        if !shares {
            socket.register()?;
        }
        let rings = socket.rings(sizes)?;
        // A send buffer of the system's default size holds some ninety packets.
        set_send_buffer(socket.as_fd(), SEND_BUFFER)?;
        Ok((socket, rings))
    }

    fn register(&self) -> io::Result<()> {
        let config = self.user.0.config;
        let mut flags = 0;
        if config.unaligned {
            flags |= libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG;
        }
        let registration = libc::xdp_umem_reg {
            addr: self.user.0.memory.start().as_ptr() as u64,
            len: self.user.0.len,
            chunk_size: config.chunk_len,
            headroom: config.headroom,
            flags,
            tx_metadata_len: 0,
        };
        self.set(libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
    }

    fn rings(&self, sizes: [u32; 4]) -> io::Result<Rings> {
        let [fill, completion, rx, tx] = sizes;
        for (option, size) in [
            (libc::XDP_UMEM_FILL_RING, fill),
            (libc::XDP_UMEM_COMPLETION_RING, completion),
            (libc::XDP_RX_RING, rx),
            (libc::XDP_TX_RING, tx),
        ] {
            if !size.is_power_of_two() {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            self.set(libc::SOL_XDP, option, &size)?;
        }
        // SAFETY: plain integers.
        let offsets = unsafe { self.get::<libc::xdp_mmap_offsets>(libc::XDP_MMAP_OFFSETS)? };
        let map = |page, offsets: &libc::xdp_ring_offset, size, entry_len| {
            RingMemory::map(self.as_fd(), page, offsets, size, entry_len)
        };
        let (address_len, desc_len) = (mem::size_of::<u64>(), mem::size_of::<libc::xdp_desc>());
        let umem = || Arc::clone(&self.user.0);
        let fill = map(libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, fill, address_len)?;
        let completion = map(libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, completion, address_len)?;
        let rx = map(libc::XDP_PGOFF_RX_RING as u64, &offsets.rx, rx, desc_len)?;
        let tx = map(libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, tx, desc_len)?;
        Ok(Rings {
            fill: FillRing::new(Producer::new(fill), umem()),
            rx: RxRing::new(Consumer::new(rx), umem()),
            tx: TxRing::new(Producer::new(tx), umem()),
            completion: CompletionRing::new(Consumer::new(completion), umem()),
        })
    }

    /// Binds to a queue. `first` is the socket that registered the memory, bound already, if this one
    /// shares it; this one then has the same copy mode and fragment setting.
    ///
    /// # Errors
    /// `EBUSY` if another socket has the queue, also for some 50 ms after that was closed; `EINVAL` if
    /// there is no such queue; `EOPNOTSUPP` if the driver has no zero-copy mode; `ENODEV`;
    /// `EPROTONOSUPPORT` for `fragments` on kernels before 6.6.
    pub fn bind(&self, bind: &Bind, first: Option<&XskSocket>) -> io::Result<()> {
        let flags = match first {
            Some(_) if self.shares => libc::XDP_SHARED_UMEM,
            None if !self.shares => {
                libc::XDP_USE_NEED_WAKEUP
                    | if bind.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY }
                    | if bind.fragments { libc::XDP_USE_SG } else { 0 }
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: bind.ifindex,
            sxdp_queue_id: bind.queue,
            sxdp_shared_umem_fd: first.map_or(0, |first| first.fd.as_raw_fd() as u32),
        };
        let len = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is valid for its length.
        check(unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
    }

    /// Sets how many packets one [`wake_tx`](XskSocket::wake_tx) sends in copy mode, 32 by default. To be
    /// called before binding.
    ///
    /// # Errors
    /// `ENOPROTOOPT` on kernels before 6.18.
    pub fn set_tx_budget(&self, packets: u32) -> io::Result<()> {
        self.set(libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &packets)
    }

    /// Makes system calls on the socket run the driver's receive loop instead of waiting for its
    /// interrupts: SO_PREFER_BUSY_POLL, SO_BUSY_POLL, SO_BUSY_POLL_BUDGET.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN; `ENOPROTOOPT` on kernels before 5.11.
    pub fn set_busy_poll(&self, usecs: i32, budget: i32) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1i32)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, &usecs)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &budget)
    }

    /// Returns to the driver's interrupts.
    ///
    /// # Errors
    /// `ENOPROTOOPT` on kernels before 5.11.
    pub fn unset_busy_poll(&self) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &0i32)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, &0i32)
    }

    /// Makes the kernel send what is in the transmit ring.
    ///
    /// # Errors
    /// `EAGAIN`, `EBUSY`, `ENOBUFS`: not everything was sent, call again. `ENETDOWN`: the interface is
    /// down; the packets stay queued. `ENXIO`: the socket is not bound (any more).
    pub fn wake_tx(&self) -> io::Result<()> {
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: no bytes and no address.
        let ret = unsafe { call::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes the driver read the fill ring and receive.
    ///
    /// # Errors
    /// As [`wake_tx`](XskSocket::wake_tx).
    pub fn wake_rx(&self) -> io::Result<()> {
        let (fd, flags, none) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT, std::ptr::null_mut());
        // SAFETY: no bytes and no address.
        let ret = unsafe { call::recvfrom(fd, none, 0, flags, std::ptr::null_mut(), std::ptr::null_mut()) };
        if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the socket's counters.
    ///
    /// # Errors
    /// None at present.
    pub fn statistics(&self) -> io::Result<XskStatistics> {
        // SAFETY: plain integers.
        let raw = unsafe { self.get::<libc::xdp_statistics>(libc::XDP_STATISTICS)? };
        Ok(XskStatistics {
            rx_dropped: raw.rx_dropped,
            rx_invalid_descs: raw.rx_invalid_descs,
            tx_invalid_descs: raw.tx_invalid_descs,
            rx_ring_full: raw.rx_ring_full,
            rx_fill_ring_empty_descs: raw.rx_fill_ring_empty_descs,
            tx_ring_empty_descs: raw.tx_ring_empty_descs,
        })
    }

    /// Whether the socket is in zero-copy mode (XDP_OPTIONS).
    ///
    /// # Errors
    /// None at present.
    pub fn is_zero_copy(&self) -> io::Result<bool> {
        // SAFETY: plain integers.
        let options = unsafe { self.get::<libc::xdp_options>(libc::XDP_OPTIONS)? };
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        let len = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel reads `len` bytes of `value`; memory it registers stays mapped as long as
        // the socket is open (`self` holds both).
        let ret = unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len)
        };
        check(ret).map(drop)
    }

    /// # Safety
    /// Any bytes are a valid `T`, zeros too.
    unsafe fn get<T>(&self, option: libc::c_int) -> io::Result<T> {
        // SAFETY: upheld by the caller.
        let mut value: T = unsafe { mem::zeroed() };
        let mut len = mem::size_of::<T>() as libc::socklen_t;
        let (fd, level) = (self.fd.as_raw_fd(), libc::SOL_XDP);
        // SAFETY: the kernel writes at most `len` bytes to `value`.
        check(unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut len) })?;
        if (len as usize) < mem::size_of::<T>() {
            // A kernel before 5.4, without need_wakeup and with shorter structures.
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(value)
    }
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

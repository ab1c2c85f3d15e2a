//! Options (rsetsockopt, rgetsockopt, rfcntl). Those without effect here are stored, and returned to
//! applications that read them.

use std::ffi::{c_int, c_long, c_void};
use std::io;

use libc::socklen_t;
use roxie_rsocket::{Sizes, Socket as Rsocket, Stream};

use super::socket::{call, no_buffer};
use super::table::Socket;
use crate::abi::cm::{RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS};
use crate::errno::minus1;
use crate::handle::{Out, OutBytes, typed};
use roxie::transport::refuse;

/// The option level of rdma/rsocket.h, and its options.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;
/// Size of struct ibv_path_data.
const PATH_DATA_LEN: usize = 72;
/// tcpi_state of tcp(7) (linux/tcp.h).
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;
/// Linux's default of net.ipv4.tcp_keepalive_time.
const KEEP_IDLE: c_int = 7200;
/// The maximum segment size that rdma-core reports before it knows the path.
const SEGMENT_BEFORE: u32 = 2048;

/// Options that applications set without an effect here, and the flags of rfcntl.
pub(crate) struct Options {
    cloexec: bool,
    /// File status flags beside O_NONBLOCK.
    status: c_int,
    reuse: c_int,
    keepalive: c_int,
    oob_inline: c_int,
    no_delay: c_int,
    keep_idle: c_int,
    v6_only: c_int,
    tos: c_int,
    linger: libc::linger,
}

impl Options {
    /// Returns the options of a new socket, made with or without SOCK_CLOEXEC.
    pub(super) fn new(cloexec: bool) -> Self {
        Self { cloexec, ..Self::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cloexec: false,
            status: 0,
            reuse: 0,
            keepalive: 0,
            oob_inline: 0,
            no_delay: 0,
            keep_idle: KEEP_IDLE,
            v6_only: 0,
            tos: 0,
            // Closing a socket waits until the sent data have arrived.
            linger: libc::linger { l_onoff: 1, l_linger: 0 },
        }
    }
}

/// The refusal of an option that the sockets do not have.
#[cold]
fn no_option(level: c_int, name: c_int) -> io::Error {
    refuse!(EOPNOTSUPP, "rsocket", "optname"; name as i32, level as i32;
        "rsockets have no option {name} of level {level}")
    .into()
}

/// The refusal of a value that an option does not take.
#[cold]
fn wrong_value(name: c_int, len: usize) -> io::Error {
    refuse!(EINVAL, "rsocket", "optval"; len, name as i32;
        "the {len} bytes of the option {name} are too few, or out of its range")
    .into()
}

pub(crate) unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if value.is_null() {
        return minus1(no_buffer("optval"));
    }
    // SAFETY: rsocket(7), setsockopt(2).
    let value: &[u8] = unsafe { typed((value, len as usize)) };
    call(socket, |socket| set(socket, level, name, value))
}

fn set(socket: &Socket, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let wrong = || wrong_value(name, value.len());
    let int = || value.first_chunk().map(|int| c_int::from_ne_bytes(*int)).ok_or_else(wrong);
    let rsocket = &socket.rsocket;
    let sizes = |change: fn(&mut Sizes, u32)| {
        let value = u32::try_from(int()?).map_err(|_| wrong())?;
        rsocket.set_sizes(|sizes| change(sizes, value))
    };
    // Twice the requested size, as for the kernel's sockets, which do not fail either when it is too late.
    let buffer = |change: fn(&mut Sizes, u32)| -> io::Result<()> {
        let value = u32::try_from(int()?).map_err(|_| wrong())?;
        rsocket.set_sizes(|sizes| change(sizes, value.saturating_mul(2))).ok();
        Ok(())
    };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
            // Fails, without consequence, once the socket is bound.
            let value = int()?.to_ne_bytes();
            socket
                .stream()
                .and_then(|stream| stream.set_id_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &value))
                .ok();
            socket.options().reuse = int()?;
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => buffer(Sizes::set_receive_buffer)?,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => buffer(Sizes::set_send_buffer)?,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let (on, time) = value.split_first_chunk().ok_or_else(wrong)?;
            let time = time.first_chunk().ok_or_else(wrong)?;
            let (l_onoff, l_linger) = (c_int::from_ne_bytes(*on), c_int::from_ne_bytes(*time));
            socket.options().linger = libc::linger { l_onoff, l_linger };
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => socket.options().keepalive = int()?,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => socket.options().oob_inline = int()?,
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            socket.stream()?.set_id_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[int()? as u8])?;
            socket.options().tos = int()?;
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            match rsocket {
                Rsocket::Stream(stream) => {
                    stream.set_id_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &int()?.to_ne_bytes())?
                }
                Rsocket::Datagram(datagram) => datagram.set_v6_only(int()? != 0)?,
            }
            socket.options().v6_only = int()?;
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => socket.options().no_delay = int()?,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => match int()? {
            ..=0 => return Err(wrong()),
            seconds => socket.options().keep_idle = seconds,
        },
        (
            libc::IPPROTO_TCP,
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION,
        ) => {}
        (SOL_RDMA, RDMA_SQSIZE) => sizes(Sizes::set_send_queue)?,
        (SOL_RDMA, RDMA_RQSIZE) => sizes(Sizes::set_receive_queue)?,
        (SOL_RDMA, RDMA_INLINE) => {
            sizes(|sizes, bytes| sizes.inline = bytes.min(u32::from(u16::MAX)) as u16)?
        }
        (SOL_RDMA, RDMA_IOMAPSIZE) => sizes(Sizes::set_iomaps)?,
        // There is one path to a peer, so routes are ignored.
        (SOL_RDMA, RDMA_ROUTE) if !value.is_empty() && value.len().is_multiple_of(PATH_DATA_LEN) => {}
        (SOL_RDMA, RDMA_ROUTE) => return Err(wrong()),
        _ => return Err(no_option(level, name)),
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: rsocket(7), getsockopt(2): the length says how much room there is.
    let (room, len): (Option<OutBytes>, Option<Out<socklen_t>>) = unsafe {
        let size: Option<&socklen_t> = typed(len.cast_const());
        typed(((value, size.map_or(0, |size| *size as usize)), len))
    };
    let Some((room, len)) = room.zip(len) else { return minus1(no_buffer("optval")) };
    call(socket, |socket| {
        let bytes = get(socket, level, name)?;
        len.write(room.copy_at(0, &bytes) as socklen_t);
        Ok(())
    })
}

/// Returns the bytes of an option.
fn get(socket: &Socket, level: c_int, name: c_int) -> io::Result<Vec<u8>> {
    let sizes = socket.rsocket.sizes();
    let size = |size: u32| c_int::try_from(size).unwrap_or(c_int::MAX);
    let options = socket.options();
    let int = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_TYPE) if socket.stream().is_ok() => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_DGRAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => socket.family,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) if socket.stream().is_ok() => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_UDP,
        (libc::SOL_SOCKET, libc::SO_ERROR) => socket.stream().ok().and_then(Stream::take_error).unwrap_or(0),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => c_int::from(options.reuse != 0),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => c_int::from(options.keepalive != 0),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => c_int::from(options.oob_inline != 0),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => size(sizes.receive_buffer),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => size(sizes.send_buffer),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let libc::linger { l_onoff, l_linger } = options.linger;
            return Ok([l_onoff.to_ne_bytes(), l_linger.to_ne_bytes()].concat());
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => options.tos,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => c_int::from(options.v6_only != 0),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => c_int::from(options.no_delay != 0),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keep_idle,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => 1,
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => return Ok(b"rdma\0".to_vec()),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => size(socket.stream()?.path_mtu().unwrap_or(SEGMENT_BEFORE)),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            // The first byte is the state. The other members of TCP's information have no meaning here.
            let mut info = vec![0; size_of::<libc::tcp_info>()];
            info[0] = if socket.stream()?.is_connected() { TCP_ESTABLISHED } else { TCP_CLOSE };
            return Ok(info);
        }
        (SOL_RDMA, RDMA_SQSIZE) => c_int::from(sizes.send_queue),
        (SOL_RDMA, RDMA_RQSIZE) => c_int::from(sizes.receive_queue),
        (SOL_RDMA, RDMA_INLINE) => c_int::from(sizes.inline),
        (SOL_RDMA, RDMA_IOMAPSIZE) => c_int::from(sizes.iomaps),
        _ => return Err(no_option(level, name)),
    };
    Ok(int.to_ne_bytes().to_vec())
}

/// As fcntl(2). In C the third argument is variadic; the supported machines pass it as an ordinary one.
pub(crate) unsafe extern "C" fn rfcntl(socket: c_int, cmd: c_int, argument: c_long) -> c_int {
    let argument = argument as c_int;
    let mut result = 0;
    let status = call(socket, |socket| {
        let mut options = socket.options();
        match cmd {
            libc::F_GETFL => {
                let nonblocking = if socket.rsocket.is_nonblocking() { libc::O_NONBLOCK } else { 0 };
                result = options.status | nonblocking | libc::O_RDWR;
            }
            libc::F_SETFL => {
                options.status = argument & !(libc::O_NONBLOCK | libc::O_ACCMODE);
                socket.rsocket.set_nonblocking(argument & libc::O_NONBLOCK != 0);
            }
            libc::F_GETFD => result = if options.cloexec { libc::FD_CLOEXEC } else { 0 },
            libc::F_SETFD => options.cloexec = argument & libc::FD_CLOEXEC != 0,
            _ => {
                return Err(refuse!(EOPNOTSUPP, "rsocket", "cmd"; cmd as i32;
                    is "{cmd}; rfcntl knows F_GETFL, F_SETFL, F_GETFD and F_SETFD")
                .into());
            }
        }
        Ok(())
    });
    if status < 0 { status } else { result }
}

//! Memory that the peer writes to directly (riomap, riounmap, riowrite).

use std::ffi::{c_int, c_void};
use std::io;

use libc::{off_t, size_t};
use roxie::transport::{Access, refuse};
use roxie_rsocket::Flags;

use super::socket::{call, count, refused};
use super::table;
use crate::errno::minus1;
use crate::handle::typed;

pub(crate) unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let map = || {
        let socket = table::find(socket)?;
        // The length of a mapping has 32 bits.
        if u32::try_from(len).is_err() || prot & !libc::PROT_WRITE != 0 {
            return Err(refuse!(EINVAL, "mapping", "len"; len, prot as i32;
                "{len} bytes with the rights {prot:#x}; the length has 32 bits, the only right is PROT_WRITE")
            .into());
        }
        let writable = prot & libc::PROT_WRITE != 0;
        let remote = if writable { Access::REMOTE_WRITE } else { Access::empty() };
        let pd = socket.stream()?.pd()?;
        // SAFETY: the application keeps its memory mapped until riounmap (rsocket(7)), as ibv_reg_mr(3)
        // demands.
        let mr = unsafe { pd.reg_mr(buf.cast(), len, buf.addr() as u64, Access::LOCAL_WRITE | remote) };
        let mr = mr?;
        let offset = if offset == -1 { buf.addr() as off_t } else { offset };
        socket.stream()?.map(mr, offset as u64, writable)?;
        Ok(offset)
    };
    map().unwrap_or_else(|error: io::Error| off_t::from(minus1(refused(&error))))
}

pub(crate) unsafe extern "C" fn riounmap(socket: c_int, buf: *mut c_void, len: size_t) -> c_int {
    call(socket, |socket| socket.stream()?.unmap(buf.addr() as u64, len as u64))
}

pub(crate) unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    // SAFETY: rsocket(7).
    let data: &[u8] = unsafe { typed((buf, len)) };
    let flags = Flags { nonblocking: flags & libc::MSG_DONTWAIT != 0, ..Flags::default() };
    let socket = table::find(socket).map_err(io::Error::from);
    let written = socket.and_then(|socket| socket.stream()?.write_mapped(data, offset as u64, flags));
    // The manual page gives the result an unsigned type, and -1 for failure.
    count(written) as size_t
}

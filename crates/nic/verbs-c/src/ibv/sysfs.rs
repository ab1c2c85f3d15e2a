//! The sysfs readers that libibverbs exports. For this device they read from memory, so no sysfs tree has to
//! exist.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use libc::size_t;

use crate::errno::{failed, given, minus1};
use crate::handle::{OutBytes, typed};
use roxie::transport::refuse;

use super::device::devices;

/// The root of sysfs; the environment variable `SYSFS_PATH` moves it, as for rdma-core.
static ROOT: LazyLock<CString> = LazyLock::new(|| {
    let path = std::env::var("SYSFS_PATH").unwrap_or_else(|_| "/sys".to_owned());
    CString::new(path.trim_end_matches('/')).unwrap_or_else(|_| c"/sys".to_owned())
});

pub(crate) unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    ROOT.as_ptr()
}

pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: size_t,
) -> c_int {
    // SAFETY: the contract of libibverbs' providers: two strings, and room for `size` bytes.
    let (dir, file, buf): (Option<&CStr>, Option<&CStr>, Option<OutBytes>) =
        unsafe { typed((dir, file, (buf, size))) };
    given!(minus1; dir, file, buf);
    let size = buf.size();
    let (Ok(dir), Ok(file), 1..) = (dir.to_str(), file.to_str(), size) else {
        return minus1(refuse!(EINVAL, "argument", "size"; size;
            is "{size}, or the path has other characters than UTF-8"));
    };
    let content = match device_file(dir, file) {
        Some(content) => content.into_bytes(),
        None => match fs::read(Path::new(dir).join(file)) {
            Ok(content) => content,
            Err(error) => return minus1(failed!(error, "sysfs", "file"; "the file cannot be read")),
        },
    };
    // Without the final newline, cut to fit, zero-terminated if there is room.
    let content = content.strip_suffix(b"\n").unwrap_or(&content);
    let length = buf.copy_at(0, content);
    buf.copy_at(length, &[0]);
    length as c_int
}

/// Returns the content of a sysfs file of this device; `None` for other files.
fn device_file(dir: &str, file: &str) -> Option<String> {
    let path = format!("{dir}/{file}");
    let (name, path) = path.strip_prefix("/sys/class/infiniband/")?.split_once('/')?;
    let devices = devices(false).ok()?;
    devices.iter().find(|object| object.tail.device.name() == name)?.tail.device.sysfs_file(path)
}

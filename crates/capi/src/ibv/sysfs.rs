//! The sysfs readers that libibverbs exports, answered from memory for our device so that no tree has to exist.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use libc::size_t;

use crate::errno::minus1;

use super::device::device;

/// The root of sysfs; `SYSFS_PATH` moves it, as for rdma-core.
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
    if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
        return minus1(libc::EINVAL);
    }
    // SAFETY: the caller passes two strings.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let (Ok(dir), Ok(file)) = (dir.to_str(), file.to_str()) else { return minus1(libc::EINVAL) };
    let content = match answer(dir, file) {
        Some(content) => content.into_bytes(),
        None => match fs::read(Path::new(dir).join(file)) {
            Ok(content) => content,
            Err(_) => return -1,
        },
    };
    // Without the final newline, cut to fit, zero-terminated if there is room.
    let content = content.strip_suffix(b"\n").unwrap_or(&content);
    let length = content.len().min(size);
    // SAFETY: the caller passes room for `size` bytes.
    unsafe {
        buf.cast::<u8>().copy_from_nonoverlapping(content.as_ptr(), length);
        if length < size {
            buf.add(length).write(0);
        }
    }
    length as c_int
}

/// What the file would say, if it is one of our device's.
fn answer(dir: &str, file: &str) -> Option<String> {
    let device = &device().ok()?.tail.device;
    let path = format!("{dir}/{file}");
    let path = path.strip_prefix("/sys/class/infiniband/")?.strip_prefix(device.name())?.strip_prefix('/')?;
    device.sysfs_file(path)
}

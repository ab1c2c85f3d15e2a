//! The sysfs readers that libibverbs exports, answered from memory for our device so that no tree has to exist.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use libc::size_t;
use roxie::verbs::Device;

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
    if let Some(path) = path.strip_prefix("ports/1/") {
        return port_file(device, path);
    }
    let guid = || {
        let [a, b, c, d, e, f, g, h] = device.node_guid().to_be_bytes();
        format!("{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{f:02x}:{g:02x}{h:02x}")
    };
    Some(match path {
        "board_id" => "roxie".to_owned(),
        "hca_type" => "roxie".to_owned(),
        "fw_ver" => env!("CARGO_PKG_VERSION").to_owned(),
        "node_type" => "1: CA".to_owned(),
        "node_guid" | "sys_image_guid" => guid(),
        "node_desc" => device.name().to_owned(),
        _ => return None,
    })
}

fn port_file(device: &Device, path: &str) -> Option<String> {
    if let Some(index) = path.strip_prefix("gids/") {
        let index: u8 = index.parse().ok()?;
        let rows = device.context().ok()?.gids();
        let gid = rows.iter().find(|row| row.index == index)?.gid;
        let words: Vec<String> =
            gid.0.chunks_exact(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        return Some(words.join(":"));
    }
    if path.starts_with("gid_attrs/types/") {
        return Some("RoCE v2".to_owned());
    }
    Some(match path {
        "link_layer" => "Ethernet".to_owned(),
        "pkeys/0" => "0xffff".to_owned(),
        "lid" => "0x0".to_owned(),
        _ => return None,
    })
}

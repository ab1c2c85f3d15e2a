//! Sizes of an rsocket, and the files with their defaults: one integer in each of `/etc/rdma/rsocket/*`
//! (rsocket(7)).

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;

use transport::MAX_QP_WR;
use wire::rsocket::iomaps_as_told;

/// Directory of the administrator's defaults.
const DIRECTORY: &str = "/etc/rdma/rsocket";
/// Smallest queue (rdma-core's RS_QP_MIN_SIZE).
const QUEUE_MIN: u16 = 16;
/// Receives beyond the credits: for control messages of both sides, which rdma-core limits to 4 each.
pub(super) const CONTROL_RECEIVES: u32 = 8;
/// Smallest send buffer (twice rdma-core's RS_SNDLOWAT).
const SEND_BUFFER_MIN: u32 = 4096;
/// Largest buffer; the options would permit 4 GiB.
const BUFFER_MAX: u32 = 1 << 30;

/// Sizes of one socket; fixed once it is connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sizes {
    /// Bytes of the staging ring, which are kept until they are acknowledged.
    pub send_buffer: u32,
    /// Unread bytes that the peer may have sent; even.
    pub receive_buffer: u32,
    /// Entries of the send queue.
    pub send_queue: u16,
    /// Entries of the receive queue: unread messages that the peer may have sent.
    pub receive_queue: u16,
    /// Longest message sent as inline data. Only reported to programs; data is staged in any case.
    pub inline: u16,
    /// Entries for the peer's iomaps.
    pub iomaps: u16,
}

impl Sizes {
    /// Sets the send buffer (SO_SNDBUF, wmem_default).
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send_buffer = bytes.clamp(SEND_BUFFER_MIN, BUFFER_MAX);
    }

    /// Sets the receive buffer (SO_RCVBUF, mem_default).
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        self.receive_buffer = bytes.clamp(2, BUFFER_MAX).next_multiple_of(2);
    }

    /// Sets the send queue (RDMA_SQSIZE, sqsize_default).
    pub fn set_send_queue(&mut self, entries: u32) {
        self.send_queue = queue(entries);
    }

    /// Sets the receive queue (RDMA_RQSIZE, rqsize_default).
    pub fn set_receive_queue(&mut self, entries: u32) {
        self.receive_queue = queue(entries);
    }

    /// Sets the number of iomap entries (RDMA_IOMAPSIZE, iomap_size).
    pub fn set_iomaps(&mut self, entries: u32) {
        self.iomaps = iomaps_as_told(u16::try_from(entries).unwrap_or(u16::MAX));
    }
}

/// Clamps to the limits of the device.
fn queue(entries: u32) -> u16 {
    entries.clamp(u32::from(QUEUE_MIN), MAX_QP_WR - CONTROL_RECEIVES) as u16
}

/// The defaults of this machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Settings {
    pub(super) sizes: Sizes,
    /// How long a waiting call polls before it sleeps.
    pub(super) polling_ns: u64,
}

impl Settings {
    /// Returns the settings, read once per process.
    pub(super) fn get() -> &'static Self {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Self::read(Path::new(DIRECTORY)))
    }

    /// Reads the settings; a missing or invalid file leaves rdma-core's default.
    fn read(directory: &Path) -> Self {
        let number = |name: &str, default: u32| first_number(&directory.join(name)).unwrap_or(default);
        let mut sizes = Sizes {
            send_buffer: 0,
            receive_buffer: 0,
            send_queue: 0,
            receive_queue: 0,
            inline: number("inline_default", 64).min(u32::from(u16::MAX)) as u16,
            iomaps: 0,
        };
        sizes.set_receive_buffer(number("mem_default", 1 << 17));
        sizes.set_send_buffer(number("wmem_default", 1 << 17));
        sizes.set_send_queue(number("sqsize_default", 384));
        sizes.set_receive_queue(number("rqsize_default", 384));
        sizes.set_iomaps(number("iomap_size", 0));
        Self { sizes, polling_ns: u64::from(number("polling_time", 10)) * 1000 }
    }
}

fn first_number<T: FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_from_files_and_clamped() {
        let directory = std::env::temp_dir().join(format!("roxie-rsocket-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let files = [("mem_default", "1000001\n"), ("wmem_default", "1"), ("sqsize_default", "1000000")];
        for (name, text) in [&files[..], &[("iomap_size", "129"), ("rqsize_default", "many")]].concat() {
            fs::write(directory.join(name), text).unwrap();
        }
        let read = Settings::read(&directory);
        fs::remove_dir_all(&directory).unwrap();
        let want = Sizes {
            send_buffer: 4096,
            receive_buffer: 1_000_002,
            send_queue: 32760,
            receive_queue: 384,
            inline: 64,
            iomaps: 128,
        };
        assert_eq!(read, Settings { sizes: want, polling_ns: 10_000 });
    }
}

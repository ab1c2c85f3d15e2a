//! Sizes of an rsocket, and the files that set the defaults: one integer in each of `/etc/rdma/rsocket/*` (rsocket(7)).

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;

use transport::MAX_QP_WR;
use wire::rsocket::iomaps_as_told;

/// Where administrators leave defaults.
const DIRECTORY: &str = "/etc/rdma/rsocket";
/// Fewest entries of a queue (rdma-core's RS_QP_MIN_SIZE).
const QUEUE_MIN: u16 = 16;
/// Messages that cost no credit: control messages of either side, which rdma-core limits to 4 each.
pub(super) const BESIDE_CREDITS: u32 = 8;
/// Smallest send buffer (twice rdma-core's RS_SNDLOWAT).
const SEND_BUFFER_MIN: u32 = 4096;
/// Most bytes of a buffer; the options would let programs ask for 4 GiB.
const BUFFER_MAX: u32 = 1 << 30;

/// Sizes of one socket; fixed once it is connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sizes {
    /// Bytes kept until they are acknowledged.
    pub send_buffer: u32,
    /// Bytes a peer may send before they are read; even.
    pub receive_buffer: u32,
    /// Entries of the send queue.
    pub send_queue: u16,
    /// Entries of the receive queue: messages a peer may send before they are read.
    pub receive_queue: u16,
    /// Longest message sent as inline data. It is remembered for programs that ask; data is staged in any case.
    pub inline: u16,
    /// Entries for the peer's iomaps.
    pub iomaps: u16,
}

impl Sizes {
    /// SO_SNDBUF and wmem_default.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send_buffer = bytes.clamp(SEND_BUFFER_MIN, BUFFER_MAX);
    }

    /// SO_RCVBUF and mem_default.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        self.receive_buffer = bytes.clamp(2, BUFFER_MAX).next_multiple_of(2);
    }

    /// RDMA_SQSIZE and sqsize_default.
    pub fn set_send_queue(&mut self, entries: u32) {
        self.send_queue = queue(entries);
    }

    /// RDMA_RQSIZE and rqsize_default.
    pub fn set_receive_queue(&mut self, entries: u32) {
        self.receive_queue = queue(entries);
    }

    /// RDMA_IOMAPSIZE and iomap_size.
    pub fn set_iomaps(&mut self, entries: u32) {
        self.iomaps = iomaps_as_told(u16::try_from(entries).unwrap_or(u16::MAX));
    }
}

/// What the device has room for.
fn queue(entries: u32) -> u16 {
    entries.clamp(u32::from(QUEUE_MIN), MAX_QP_WR - BESIDE_CREDITS) as u16
}

/// Defaults of the machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Settings {
    pub(super) sizes: Sizes,
    /// Time that a waiting call polls before it sleeps.
    pub(super) polling_ns: u64,
}

impl Settings {
    /// Read once in the life of the process.
    pub(super) fn get() -> &'static Self {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Self::read(Path::new(DIRECTORY)))
    }

    /// Files that are missing or say nothing leave rdma-core's defaults.
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
    fn files_set_defaults_and_bounds_hold() {
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

//! Every system call that roxie makes, with safe types: each function is one call or one netlink request.
//!
//! This crate knows nothing of RDMA. Outside the C ABI and `mr.rs`, it is the only one that contains
//! `unsafe` code.

mod address;
pub mod bpf;
pub mod byte_ring;
mod call;
mod capability;
mod clock;
mod dir;
mod epoll;
mod ethtool;
mod eventfd;
mod fork;
pub mod guarded;
mod icmp;
mod memory;
mod mmap;
mod netlink;
mod packet;
mod perf_event;
mod phase;
mod poll;
mod prefetch;
mod process;
mod random;
mod record_queue;
mod socket;
#[cfg(any(test, feature = "testing"))]
#[path = "tests/testing.rs"]
pub mod testing;
mod thread;
pub mod trace;
mod udp;
mod unix;
mod usage;
mod user_namespace;
mod waiting;
mod watchpoint;
pub mod xdp;

pub use address::SockAddr;
pub use capability::{Capabilities, Capability};
pub use clock::{day_offset_ns, now_ns};
#[cfg(any(test, feature = "testing"))]
pub use dir::between_calls;
pub use dir::{Dir, NamedFile, Untrusted, Walk};
pub use epoll::Epoll;
pub use ethtool::{driver_counters, transmit_checksums};
pub use eventfd::EventFd;
pub use fork::{
    ForkHandlers, KeptLock, ProcessMutex, disconnect, end_fork_deadline, fork_deadline, generation,
    lock_until, next_generation, process_token, read_once,
};
pub use icmp::{SendError, keep_errors, receive_error};
pub use memory::memory_file;
pub use mmap::{Mmap, is_dma_buf, memory_for};
pub use netlink::{
    Address, AttachedXdp, BoundXsk, Classifier, Impairment, Link, LinkCounters, Neighbour, NetEvent,
    NetEvents, NetdevFamily, Netlink, Route, TcpUsers, VethConfig, XdpFeatures, XdpMode, bound_xsks,
    xdp_features,
};
pub use packet::{FrameBatch, FrameInfo, PacketSocket, SEND_FRAMES_MAX};
pub use phase::Phase;
pub use poll::{PollFd, poll, poll_interruptible};
pub use process::{
    DescriptorLimit, LimitLock, descriptor_limit, descriptor_limits, effective_uid, file_size_limit,
    is_runnable, is_stopped, lower_priority, stat_fields, survive_file_size_limit, unblock_signals,
};
pub use random::random_u64;
pub use record_queue::{RecordReader, RecordWriter};
pub use socket::{
    FilterInsn, Opt, attach_reuseport_filter, bind, discard_waiting, hear_all_groups, is_ipv6, join_group,
    local_port, receive_buffer_drops, refuse_datagrams, set_opt, set_receive_buffer, set_send_buffer,
    socket_owner, udp_socket, unsent_bytes,
};
pub use thread::{Cancellation, Slice, WriteSignals, spawn_without_signals, thread_id, without_signals};
pub use udp::{Control, Datagram, RecvBatch, SendBatch};
pub use unix::{
    Credentials, Received, abstract_names, accept, bind_seqpacket, bind_seqpacket_file, connect_seqpacket,
    connect_seqpacket_file, listen, peer_credentials, queued_bytes, recv_record, send_record, seqpacket_pair,
    set_peek_offset,
};
pub use usage::Usage;
pub use user_namespace::{IdView, PeerNamespace, id_view, peer_namespace};
pub use waiting::{NoWaiting, may_wait, pause};
pub use watchpoint::{Counted, Use, UseLog, Watchpoint};

use std::io;

/// Turns the C convention `-1 and errno` into a `Result`.
pub(crate) fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Bytes of a memory page.
pub fn page_size() -> usize {
    // SAFETY: no pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

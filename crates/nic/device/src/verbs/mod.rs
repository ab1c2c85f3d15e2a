//! The verbs in safe Rust: devices, protection domains, memory regions, queues.
//!
//! Handles are cheap to clone, and any thread may use them. Semantics, limits and errors are those of the
//! libibverbs manual pages; [`transport`] defines the work requests and completions.
//!
//! # Example
//! Two queue pairs of one process, connected to each other without a connection manager: one SEND, one WRITE.
//!
//! ```
//! use roxie::registry::DomainConfig;
//! use roxie::transport::{
//!     Access, AddressVector, PathMtu, QpAttr, QpAttrMask as M, QpCap, QpState, QpType, RecvWr, SendFlags,
//!     SendWr, VerbsError, Wc, WcStatus, WrOp,
//! };
//! use roxie::verbs::{Cq, Device, DeviceConfig, Qp, QpInitAttr};
//! use roxie::wire::{Gid, Qpn};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The device on `lo`, in a domain of its own: other processes use UDP port 4791.
//! let config = DeviceConfig {
//!     netdev: Some("lo".to_owned()),
//!     domain: DomainConfig::parse("verbs-example:14791"),
//!     ..DeviceConfig::default()
//! };
//! let context = Device::open(&config)?.context()?;
//! let pd = context.alloc_pd()?;
//!
//! // Memory of the device, which peers may write.
//! let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//! let (source, target) = (pd.alloc_buffer(4096, access)?, pd.alloc_buffer(4096, access)?);
//!
//! // One completion queue and two queue pairs, connected to each other.
//! let cq = context.create_cq(16, None, 0)?;
//! let init = QpInitAttr {
//!     ty: QpType::Rc,
//!     send_cq: cq.clone(),
//!     recv_cq: cq.clone(),
//!     srq: None,
//!     cap: QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
//!     sq_sig_all: true,
//!     cookie: 0,
//! };
//! let (a, b) = (pd.create_qp(&init)?, pd.create_qp(&init)?);
//! let gid = context.gids().first().ok_or("lo has no address")?.gid;
//! connect(&a, b.qpn(), gid, context.query_port().active_mtu)?;
//! connect(&b, a.qpn(), gid, context.query_port().active_mtu)?;
//!
//! // SEND: the requester completes, and so does the receive of the responder.
//! let hello = b"hello, RDMA";
//! source.write(0, hello);
//! b.post_recv(&RecvWr { wr_id: 1, sg_list: &[target.sge(0, 4096)] })?;
//! let flags = SendFlags::default();
//! let sg_list = &[source.sge(0, hello.len())];
//! a.post_send(&SendWr { wr_id: 2, op: WrOp::Send, sg_list, flags, dest: None })?;
//! let mut done = [wait(&cq)?.wr_id, wait(&cq)?.wr_id];
//! done.sort_unstable();
//! assert_eq!(done, [1, 2]);
//!
//! // WRITE: only the requester completes.
//! let op = WrOp::Write { remote_addr: target.addr() + 1024, r_key: target.rkey() };
//! a.post_send(&SendWr { wr_id: 3, op, sg_list, flags, dest: None })?;
//! assert_eq!(wait(&cq)?.wr_id, 3);
//!
//! for offset in [0, 1024] {
//!     let mut bytes = [0; 11];
//!     target.read(offset, &mut bytes);
//!     assert_eq!(&bytes, hello);
//! }
//! # Ok(())
//! # }
//!
//! /// Polls until there is a completion.
//! fn wait(cq: &Cq) -> Result<Wc, String> {
//!     loop {
//!         match cq.poll_one() {
//!             Some(wc) if wc.status == WcStatus::Success => return Ok(wc),
//!             Some(wc) => return Err(format!("{:?}", wc.status)),
//!             None => std::hint::spin_loop(),
//!         }
//!     }
//! }
//!
//! /// RESET to INIT to RTR to RTS, as three calls of `ibv_modify_qp`.
//! fn connect(qp: &Qp, dest_qp: Qpn, dgid: Gid, path_mtu: PathMtu) -> Result<(), VerbsError> {
//!     let attr = QpAttr {
//!         port_num: 1,
//!         access: Access::REMOTE_WRITE,
//!         path_mtu,
//!         dest_qp,
//!         min_rnr_timer: 12,
//!         timeout: 14,
//!         retry_cnt: 7,
//!         rnr_retry: 7,
//!         av: AddressVector { dgid, hop_limit: 64, ..AddressVector::default() },
//!         ..QpAttr::default()
//!     };
//!     let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
//!     let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
//!     for (state, mask) in [
//!         (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
//!         (QpState::Rtr, rtr),
//!         (QpState::Rts, rts),
//!     ] {
//!         qp.modify(&QpAttr { state, ..attr.clone() }, M::STATE | mask)?;
//!     }
//!     Ok(())
//! }
//! ```

mod attr;
mod buffer;
mod choice;
mod comp_counter;
mod cq;
mod device;
mod dm;
mod dmabuf;
mod engines;
mod fast_mr;
mod hooks;
mod list;
mod mw;
mod neighbour;
mod observe;
mod one_device;
mod pd;
mod qp;
mod quota;
mod simulated;
mod srq;
mod sysfs;
mod xrc;

pub use crate::engine::Due;
pub use crate::engine::group::Engines;
pub use crate::events::{AsyncElement, AsyncEvent};
pub use crate::fork::watch_forks;
pub use crate::refusal::{Refusal, cause, remedy};
pub use crate::setting::{BadSetting, DEVICES_MAX, DeviceSetting};
pub use crate::stages::HookConfig;
pub use crate::traffic::Traffic;
pub use attr::{DeviceAttr, GidEntry, PortAttr};
pub use buffer::Buffer;
pub use choice::{DeviceConfig, DeviceSettings};
pub use comp_counter::{CompCounter, CompCounterType};
pub use cq::{CompChannel, Cq};
pub use device::{Context, Device};
pub use dm::Dm;
pub use fast_mr::FastMr;
pub use list::DeviceList;
pub use mw::{Mw, MwType};
pub use one_device::{DeviceName, REMEDY as TWO_DEVICES, is_of_two_devices};
pub use pd::{Ah, Mr, MrChange, Pd, Td};
pub(crate) use qp::check_sizes;
pub use qp::{PostGuard, Qp, QpInitAttr};
pub use simulated::Simulated;
pub use srq::{Srq, SrqAttr, SrqInitAttr};
pub use xrc::{Xrcd, XrcdInit};

//! The verbs in safe Rust: devices, protection domains, regions, queues.
//!
//! Handles are cheap to clone and may be used from any thread. Semantics, limits and errors are those of
//! libibverbs' manual pages; [`transport`] defines the work requests and completions.

mod attr;
mod buffer;
mod cq;
mod device;
mod fast_mr;
mod hooks;
mod mw;
mod pd;
mod qp;
mod refusal;
mod simulated;
mod srq;
mod sysfs;
mod traffic;
mod xrc;

pub use crate::engine::group::Engines;
pub use attr::{DeviceAttr, GidEntry, PortAttr};
pub use buffer::Buffer;
pub use cq::{CompChannel, Cq};
pub use device::{AsyncElement, AsyncEvent, Context, Device, DeviceConfig};
pub use fast_mr::FastMr;
pub use hooks::HookConfig;
pub use mw::{Mw, MwType};
pub use pd::{Ah, Mr, MrChange, Pd, Td};
pub use qp::{PostGuard, Qp, QpInitAttr};
pub use refusal::{Refusal, remedy};
pub use simulated::{Due, Simulated};
pub use srq::{Srq, SrqAttr, SrqInitAttr};
pub use traffic::Traffic;
pub(crate) use xrc::{Domain as XrcDomain, FileId};
pub use xrc::{Xrcd, XrcdInit};

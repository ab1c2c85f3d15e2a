//! XRC domains and their objects (ibv_open_xrcd(3), ibv_open_qp(3), IBA Annex A14).
//!
//! Each message names a shared receive queue, so one receiving queue pair serves all queues of its domain. A
//! file can stand for a domain within a process. A queue belongs to one process.

use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use transport::refusal::Os;
use transport::{PdId, VerbsError, refuse};
use wire::Qpn;

use super::qp::WeakQp;
use super::{Context, Cq, Device, Pd, Qp};
use crate::engine::FileId;

/// Which XRC domain to open.
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcdInit<'a> {
    /// The file that stands for the domain: opening the same file again gives the same domain in this
    /// process. `None` creates a new one.
    pub file: Option<BorrowedFd<'a>>,
    /// Create the domain if the file has none yet in this process.
    pub create: bool,
    /// Fail if the file has a domain in this process.
    pub exclusive: bool,
}

/// An open XRC domain.
#[derive(Clone)]
pub struct Xrcd(Arc<Opened>);

/// One handle returned by [`Context::open_xrcd`].
struct Opened(Arc<Domain>);

pub(crate) struct Domain {
    /// Used only by the receiving queue pairs; the keys of messages belong to the protection domains of the
    /// SRQs.
    pd: Pd,
    /// CQ of the receiving queue pairs, which never produce completions.
    unused_cq: Cq,
    targets: Mutex<HashMap<Qpn, WeakQp>>,
}

impl Context {
    /// Opens an XRC domain.
    ///
    /// # Errors
    /// `EAGAIN` if the file has no domain and `create` is false; `EINVAL` if it has one and `exclusive` is
    /// true, or if fstat(2) fails; `ENODEV` if the engine does not start.
    pub fn open_xrcd(&self, init: &XrcdInit<'_>) -> Result<Xrcd, VerbsError> {
        let Some(file) = init.file else {
            return Ok(Xrcd(Arc::new(Opened(Arc::new(Domain::new(self)?)))));
        };
        let id = identify(file).map_err(|error| {
            let os = Os::from(&error);
            refuse!(EINVAL, "XRC domain", "fd"; os as Os; "the file of the XRC domain cannot be used: {os}")
        })?;
        let engine = self.device().engine_or_refusal()?;
        let mut files = engine.xrc_files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|_, domain| domain.strong_count() > 0);
        let domain =
            match files.get(&id).and_then(Weak::upgrade).and_then(|any| any.downcast::<Domain>().ok()) {
                Some(_) if init.exclusive => {
                    let oflags = libc::O_EXCL;
                    return Err(refuse!(EINVAL, "XRC domain", "oflags"; oflags;
                    "the file has an XRC domain, and oflags has O_EXCL"));
                }
                Some(domain) => domain,
                None if init.create => {
                    let domain = Arc::new(Domain::new(self)?);
                    let any: Arc<dyn Any + Send + Sync> = Arc::clone(&domain) as _;
                    files.insert(id, Arc::downgrade(&any));
                    domain
                }
                None => {
                    let oflags = 0;
                    return Err(refuse!(EAGAIN, "XRC domain", "oflags"; oflags;
                    "the file has no XRC domain, and oflags lacks O_CREAT"));
                }
            };
        Ok(Xrcd(Arc::new(Opened(domain))))
    }
}

impl Xrcd {
    fn domain(&self) -> &Domain {
        &self.0.0
    }

    pub(super) fn id(&self) -> PdId {
        self.domain().id()
    }

    /// Returns the device of the domain.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.domain().pd.device()
    }

    /// True if SRQs or queue pairs made through this handle still use it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Creates a receiving queue pair in state RESET; its events carry `cookie`. It has neither queues nor
    /// completions of its own.
    ///
    /// # Errors
    /// `ENOMEM` beyond the device's limit.
    pub fn create_qp(&self, cookie: u64) -> Result<Qp, VerbsError> {
        let Domain { pd, unused_cq, targets, .. } = self.domain();
        let qp = Qp::new_target(pd, unused_cq, self, cookie)?;
        let mut targets = targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.retain(|_, qp| qp.lives());
        targets.insert(qp.qpn(), qp.downgrade());
        Ok(qp)
    }

    /// Opens another handle of a receiving queue pair of this domain; its events go to its creator.
    ///
    /// # Errors
    /// `EINVAL` if there is none with this number.
    pub fn open_qp(&self, qpn: Qpn) -> Result<Qp, VerbsError> {
        let targets = self.domain().targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.get(&qpn).and_then(WeakQp::upgrade).ok_or_else(|| {
            refuse!(EINVAL, "XRC domain", "qp_num"; qpn as Qpn;
                "the XRC domain has no receiving queue pair {qpn}")
        })
    }
}

impl Domain {
    fn new(context: &Context) -> Result<Self, VerbsError> {
        let pd = Pd::new(context.clone(), context.device().engine_or_refusal()?)?;
        let unused_cq = context.create_cq(1, None, 0)?;
        Ok(Self { pd, unused_cq, targets: Mutex::default() })
    }

    /// The protection domain that stands for the XRC domain.
    fn id(&self) -> PdId {
        self.pd.id()
    }
}

fn identify(file: BorrowedFd<'_>) -> io::Result<FileId> {
    let metadata = File::from(file.try_clone_to_owned()?).metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

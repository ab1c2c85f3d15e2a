//! XRC domains and what belongs to them (ibv_open_xrcd(3), ibv_open_qp(3), IBA Annex A14).
//!
//! Senders name the shared receive queue that each message is for, so one receiving queue pair serves all queues of its
//! domain. Memory of another process cannot be written from here: of a domain that a file stands for each process has its
//! own part, and a message to a queue of another part is refused as one to a queue that is not there.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use transport::{PdId, VerbsError};
use wire::Qpn;

use super::qp::WeakQp;
use super::{Context, Cq, Pd, Qp};

/// A file as the kernel tells it from others: device and inode.
pub(crate) type FileId = (u64, u64);

/// Which domain to open.
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcdInit<'a> {
    /// The file that stands for it: whoever in this process opens the same file gets the same domain. `None` is a new one.
    pub file: Option<BorrowedFd<'a>>,
    /// Make the domain if the file does not stand for one yet.
    pub create: bool,
    /// Refuse it if the file does.
    pub exclusive: bool,
}

/// An open XRC domain.
#[derive(Clone)]
pub struct Xrcd(Arc<Opened>);

/// One call that opened it.
struct Opened(Arc<Domain>);

pub(crate) struct Domain {
    /// Of nothing but its receiving queue pairs: the keys that reach them are of the domains of the queues.
    pd: Pd,
    /// Where receiving queue pairs complete what they never do.
    nowhere: Cq,
    targets: Mutex<HashMap<Qpn, WeakQp>>,
}

impl Xrcd {
    pub(super) fn open(context: &Context, init: &XrcdInit<'_>) -> Result<Self, VerbsError> {
        let Some(file) = init.file else {
            return Ok(Self(Arc::new(Opened(Arc::new(Domain::new(context)?)))));
        };
        let id = identify(file).map_err(|_| VerbsError::Invalid)?;
        let engine = context.device().engine().map_err(|_| VerbsError::NoDev)?;
        let mut files = engine.xrc_files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|_, domain| domain.strong_count() > 0);
        let domain = match files.get(&id).and_then(Weak::upgrade) {
            Some(_) if init.exclusive => return Err(VerbsError::Invalid),
            Some(domain) => domain,
            None if init.create => {
                let domain = Arc::new(Domain::new(context)?);
                files.insert(id, Arc::downgrade(&domain));
                domain
            }
            None => return Err(VerbsError::Again),
        };
        Ok(Self(Arc::new(Opened(domain))))
    }

    fn domain(&self) -> &Domain {
        &self.0.0
    }

    pub(super) fn id(&self) -> PdId {
        self.domain().pd.id()
    }

    /// Whether queues or queue pairs made through this handle still use it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// A receiving queue pair in state RESET whose events carry `cookie`. It has neither queues nor completions of its own.
    ///
    /// # Errors
    /// `NoMem` beyond the device's limit.
    pub fn create_qp(&self, cookie: u64) -> Result<Qp, VerbsError> {
        let Domain { pd, nowhere, targets, .. } = self.domain();
        let qp = Qp::new_target(pd, nowhere, self, cookie)?;
        let mut targets = targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.retain(|_, qp| qp.lives());
        targets.insert(qp.qpn(), qp.downgrade());
        Ok(qp)
    }

    /// Another handle of a receiving queue pair of this domain; its events go to whoever created it.
    ///
    /// # Errors
    /// `Invalid` if there is none with this number.
    pub fn open_qp(&self, qpn: Qpn) -> Result<Qp, VerbsError> {
        let targets = self.domain().targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.get(&qpn).and_then(WeakQp::upgrade).ok_or(VerbsError::Invalid)
    }
}

impl Domain {
    fn new(context: &Context) -> Result<Self, VerbsError> {
        let pd = context.alloc_pd().map_err(|_| VerbsError::NoDev)?;
        let nowhere = context.create_cq(1, None, 0)?;
        Ok(Self { pd, nowhere, targets: Mutex::default() })
    }
}

fn identify(file: BorrowedFd<'_>) -> io::Result<FileId> {
    let metadata = File::from(file.try_clone_to_owned()?).metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

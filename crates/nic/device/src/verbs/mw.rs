//! Memory windows (ibv_alloc_mw(3), ibv_bind_mw(3)): keys for a part of a region, with separate access
//! rights.

use std::sync::{Mutex, PoisonError};

use transport::{Dest, MwBind, QpType, SendFlags, SendWr, VerbsError, WrOp, refuse};
use wire::Rkey;

use super::quota::Share;
use super::{Pd, Qp};
pub use crate::keys::MwType;
use crate::same_device;

/// A memory window. Dropping it unbinds it.
pub struct Mw {
    pd: Pd,
    ty: MwType,
    /// The key as allocated, or as the latest [`Qp::bind_mw`] set it.
    key: Mutex<Rkey>,
    _share: Share,
}

impl Drop for Mw {
    fn drop(&mut self) {
        let key = self.rkey();
        self.pd.engine().with_keys(|keys| keys.remove(key.0));
    }
}

impl Pd {
    /// Allocates a memory window that is not bound.
    ///
    /// # Errors
    /// `ENOMEM` at the limit of the device.
    pub fn alloc_mw(&self, ty: MwType) -> Result<Mw, VerbsError> {
        let _share = self.context().quotas().mws.take()?;
        let key = self.engine().with_keys(|keys| keys.alloc_window(self.id(), ty))?;
        Ok(Mw { pd: self.clone(), ty, key: Mutex::new(Rkey(key)), _share })
    }
}

impl Mw {
    /// Returns its type.
    #[must_use]
    pub fn ty(&self) -> MwType {
        self.ty
    }

    /// Returns the protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the key to give to peers once the window is bound. For a type 2 window this is always the key
    /// as allocated; the work request that binds the window chooses the low byte.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        *self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the next key of the same object: increments the low byte (`ibv_inc_rkey`).
fn inc_rkey(key: Rkey) -> Rkey {
    Rkey((key.0 & !0xff) | (key.0.wrapping_add(1) & 0xff))
}

impl Qp {
    /// Posts the bind of a type 1 window and returns its new key, the next after `bind.r_key`: its low byte
    /// is one more.
    ///
    /// # Errors
    /// As [`Qp::post_send`]; `EINVAL` for a type 2 window, for a key of another window, and for a window of
    /// another device. The completion reports errors of the bind itself.
    pub fn bind_mw(&self, mw: &Mw, wr_id: u64, flags: SendFlags, bind: &MwBind) -> Result<Rkey, VerbsError> {
        same_device!("memory window", "qp"; mw.pd.device(), self.pd().device())?;
        let mut key = mw.key.lock().unwrap_or_else(PoisonError::into_inner);
        if mw.ty != MwType::Type1 || (key.0 ^ bind.r_key.0) & !0xff != 0 {
            let (own, r_key) = (key.0, bind.r_key.0);
            return Err(refuse!(EINVAL, "memory window", "rkey"; r_key, own;
                "the window {own:#010x} is of type 2 (IBV_WR_BIND_MW binds it), or {r_key:#010x} is a key \
                 of another"));
        }
        let r_key = inc_rkey(bind.r_key);
        let op = WrOp::BindMw(MwBind { r_key, ..*bind });
        // Work requests of XRC name a queue, which a bind does not use.
        let dest = (self.ty() == QpType::XrcIni).then_some(Dest::Srq(0));
        self.post_send(&SendWr { wr_id, op, sg_list: &[], flags, dest })?;
        *key = r_key;
        Ok(r_key)
    }
}

//! The QP of an identifier: its attributes, and when its state changes (rdma_create_qp(3); Linux cma.c
//! rdma_init_qp_attr, cm.c ib_cm_init_qp_attr).

use std::sync::Arc;

use transport::cm::{QpStep, UDP_QKEY};
use transport::refusal::{ip_halves, ip_of};
use transport::{QpAttr, QpAttrMask, QpState, QpType, VerbsError, refuse};
use wire::Qpn;

use super::id::{Id, IdInner};
use super::state::Phase;
use super::{no_connection, out_of_phase};
use crate::same_device;
use crate::verbs::Qp;

impl Id {
    /// Gives the QP to the identifier and moves it to INIT, a datagram QP to RTS (the second half of
    /// rdma_create_qp(3)).
    ///
    /// # Errors
    /// `EINVAL` if the identifier has a QP or another device, if the port space has another service, or if
    /// the QP cannot change its state.
    pub fn attach_qp(&self, qp: &Qp) -> Result<(), VerbsError> {
        if let Some(own) = &self.0.lock().qp {
            let qpn = own.qpn();
            return Err(refuse!(EINVAL, "identifier", "qp"; qpn as Qpn;
                "the identifier has a queue pair, {qpn}"));
        }
        if let Some(context) = self.context() {
            same_device!("identifier", "qp"; context.device(), qp.pd().device())?;
        }
        let ty = qp.ty();
        if ty.is_datagram() != self.0.port_space.is_datagram() {
            return Err(refuse!(EINVAL, "identifier", "qp_type"; ty as QpType;
                is "{ty}; RDMA_PS_UDP takes UD queue pairs, the other port spaces take connected ones"));
        }
        let states: &[QpState] = if qp.ty().is_datagram() {
            &[QpState::Init, QpState::Rtr, QpState::Rts]
        } else {
            &[QpState::Init]
        };
        for state in states {
            self.0.move_qp(qp, *state)?;
        }
        self.0.lock().qp = Some(qp.clone());
        self.0.notify_handled();
        Ok(())
    }

    /// Makes `qp` the QP of the identifier, or takes its QP away, and leaves states and groups as they are:
    /// the program has assigned the member `qp` of `struct rdma_cm_id`.
    pub fn set_qp(&self, qp: Option<&Qp>) {
        let before = std::mem::replace(&mut self.0.lock().qp, qp.cloned());
        drop(before);
    }

    /// Takes the QP away from the identifier (rdma_destroy_qp(3)), and detaches it from the groups that the
    /// identifier has joined: an attached QP cannot be destroyed.
    pub fn detach_qp(&self) {
        self.0.detach_from_groups();
        let qp = self.0.lock().qp.take();
        drop(qp);
    }

    /// Returns the attributes for modify_qp to reach `state` (rdma_init_qp_attr(3)), for programs that own
    /// their QP.
    ///
    /// # Errors
    /// `EINVAL` if the state of the connection does not permit it yet.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        self.0.qp_attr(state)
    }
}

impl IdInner {
    /// Moves the QP to RTS; returns false if the identifier has no QP.
    pub(super) fn ready_qp(&self) -> Result<bool, VerbsError> {
        let Some(qp) = self.lock().qp.clone() else { return Ok(false) };
        if qp.ty().is_datagram() {
            return Ok(true);
        }
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.move_qp(&qp, state)?;
        }
        Ok(true)
    }

    /// Completes the handshake after the peer has accepted, and returns true. Returns false if the identifier
    /// has no QP: then the application completes it.
    pub(super) fn complete(self: &Arc<Self>) -> Result<bool, VerbsError> {
        let completed = match self.ready_qp() {
            Ok(false) => return Ok(false),
            Ok(true) => self.send_rtu(&[]),
            Err(error) => Err(error),
        };
        if let Err(error) = completed {
            self.lock().failed = true;
            self.fail_qp();
            return Err(error);
        }
        Ok(true)
    }

    pub(super) fn send_rtu(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let cm_id = self.lock().cm_id.ok_or_else(no_connection)?;
        self.host()?.driver().with(|state| state.cm.rtu(cm_id, private_data))?;
        self.flush();
        Ok(())
    }

    /// Moves a connected QP to ERR, which flushes its work requests.
    pub(super) fn fail_qp(&self) {
        let qp = self.lock().qp.clone();
        if let Some(qp) = qp.filter(|qp| !qp.ty().is_datagram()) {
            let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
            // Every state but RESET permits ERR. A QP in RESET, and one that is being destroyed, have nothing
            // to flush.
            let _moved = qp.modify(&attr, QpAttrMask::STATE);
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.lock().failed
    }

    fn move_qp(&self, qp: &Qp, state: QpState) -> Result<(), VerbsError> {
        let (attr, mask) = self.qp_attr(state)?;
        qp.modify(&attr, mask)
    }

    fn qp_attr(&self, wanted: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        let state = self.lock();
        let step = match state.cm_id {
            _ if self.qp_type == QpType::Ud => QpStep::ud(wanted, UDP_QKEY)?,
            Some(cm_id) if state.phase == Phase::Connect => {
                self.host()?.driver().with(|driver| driver.cm.qp_attr(cm_id, wanted))?
            }
            None if wanted == QpState::Init => QpStep::early_init(),
            _ => {
                return Err(out_of_phase!(state.phase, "the attributes are known when the peer is"));
            }
        };
        let QpStep { mut attr, mask, sgid } = step;
        if mask.contains(QpAttrMask::AV) {
            attr.av.sgid_index = self.host()?.gids().index_of(&sgid).ok_or_else(|| {
                let [low, high] = ip_halves(sgid.ip());
                refuse!(EINVAL, "identifier", "src_addr"; low, high; let ip = ip_of(low, high);
                    "the address {ip} of the identifier is not in the device's GID table any more")
            })?;
        }
        if mask.contains(QpAttrMask::RQ_PSN) {
            attr.rq_psn = state.starting_psn;
        }
        if mask.contains(QpAttrMask::TIMEOUT)
            && let Some(timeout) = state.ack_timeout
        {
            attr.timeout = timeout;
        }
        if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC) {
            attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(transport::MAX_RD_ATOMIC);
        }
        if mask.contains(QpAttrMask::MAX_QP_RD_ATOMIC) {
            attr.max_rd_atomic = attr.max_rd_atomic.min(transport::MAX_RD_ATOMIC);
        }
        Ok((attr, mask))
    }
}

//! `ibv_modify_qp`: checks a call against the table of transitions, then sets attributes and enters the new
//! state.

use wire::QKey;

use super::Qp;
use super::transition::transition;
use crate::attr::{MAX_RD_ATOMIC, QpAttr, QpAttrMask, QpState, QpType};
use crate::error::VerbsError;
use crate::time::Instant;
use crate::trust::Trust;

/// The only port.
const PORT: u8 = 1;

impl Qp {
    /// Changes state and attributes: all of them, or on an error none.
    ///
    /// # Errors
    /// `Invalid` when the transition does not exist, an attribute is missing or extra, or a value is out of
    /// range.
    pub fn modify(&mut self, now: Instant, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let mask = mask.heeded(self.ep.ty);
        let from = self.ep.attr.state;
        let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
        let row = transition(self.ep.ty, from, to).ok_or(VerbsError::Invalid)?;
        // RESET and ERR, too, take no extra attribute.
        if !row.accepts(mask) {
            return Err(VerbsError::Invalid);
        }
        self.check_values(attr, mask)?;
        self.set(attr, mask);
        self.enter(now, from, to);
        Ok(())
    }

    fn check_values(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let set = |bit| mask.contains(bit);
        let cur_states = [QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe];
        let bad_cur_state = attr.cur_state != self.ep.attr.state || !cur_states.contains(&attr.cur_state);
        let bad = (set(QpAttrMask::CUR_STATE) && bad_cur_state)
            || (set(QpAttrMask::PKEY_INDEX) && attr.pkey_index != 0)
            || (set(QpAttrMask::PORT) && attr.port_num != PORT)
            || (set(QpAttrMask::AV) && attr.av.dgid.is_zero())
            || (set(QpAttrMask::PATH_MTU) && attr.path_mtu > self.max_path_mtu)
            || (set(QpAttrMask::TIMEOUT) && attr.timeout > 31)
            || (set(QpAttrMask::RETRY_CNT) && attr.retry_cnt > 7)
            || (set(QpAttrMask::RNR_RETRY) && attr.rnr_retry > 7)
            || (set(QpAttrMask::MIN_RNR_TIMER) && attr.min_rnr_timer > 31)
            || (set(QpAttrMask::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > MAX_RD_ATOMIC)
            || (set(QpAttrMask::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > MAX_RD_ATOMIC)
            // The send queue still uses the old limit.
            || (set(QpAttrMask::MAX_QP_RD_ATOMIC) && self.ep.attr.sq_draining);
        if bad { Err(VerbsError::Invalid) } else { Ok(()) }
    }

    fn set(&mut self, new: &QpAttr, mask: QpAttrMask) {
        let attr = &mut self.ep.attr;
        for bit in mask.iter() {
            match bit {
                QpAttrMask::EN_SQD_ASYNC_NOTIFY => attr.en_sqd_async_notify = new.en_sqd_async_notify,
                QpAttrMask::ACCESS_FLAGS => attr.access = new.access,
                QpAttrMask::PKEY_INDEX => attr.pkey_index = new.pkey_index,
                QpAttrMask::PORT => attr.port_num = new.port_num,
                QpAttrMask::QKEY => attr.q_key = new.q_key,
                QpAttrMask::AV => attr.av = new.av,
                QpAttrMask::PATH_MTU => attr.path_mtu = new.path_mtu,
                QpAttrMask::TIMEOUT => attr.timeout = new.timeout,
                QpAttrMask::RETRY_CNT => attr.retry_cnt = new.retry_cnt,
                QpAttrMask::RNR_RETRY => attr.rnr_retry = new.rnr_retry,
                QpAttrMask::RQ_PSN => attr.rq_psn = new.rq_psn,
                QpAttrMask::SQ_PSN => attr.sq_psn = new.sq_psn,
                QpAttrMask::MAX_QP_RD_ATOMIC => attr.max_rd_atomic = new.max_rd_atomic,
                QpAttrMask::MAX_DEST_RD_ATOMIC => attr.max_dest_rd_atomic = new.max_dest_rd_atomic,
                QpAttrMask::MIN_RNR_TIMER => attr.min_rnr_timer = new.min_rnr_timer,
                QpAttrMask::DEST_QPN => attr.dest_qp = new.dest_qp,
                QpAttrMask::RATE_LIMIT => attr.rate_limit = new.rate_limit,
                // The state is entered, not set; there are no alternate paths.
                _ => {}
            }
        }
        if mask.contains(QpAttrMask::MAX_QP_RD_ATOMIC) && attr.state == QpState::Sqd {
            self.requester.set_fetch_limit(attr.max_rd_atomic);
        }
        if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC) && attr.state == QpState::Sqd {
            self.responder.set_fetch_limit(attr.max_dest_rd_atomic);
        }
        if mask.contains(QpAttrMask::RATE_LIMIT) {
            self.ep.set_rate_limit(new.rate_limit);
        }
        if mask.intersects(QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY) {
            self.requester.reload_retries(&self.ep);
        }
    }

    fn enter(&mut self, now: Instant, from: QpState, to: QpState) {
        self.ep.attr.state = to;
        match (from, to) {
            (_, QpState::Reset) => self.enter_reset(),
            (_, QpState::Err) => {
                self.responder.silence();
                if from != QpState::Err {
                    self.enter_err();
                }
            }
            (QpState::Reset, QpState::Init) if self.ep.ty == QpType::Gsi => self.ep.attr.q_key = QKey::GSI,
            (QpState::Init, QpState::Rtr) => {
                self.ep.mtu =
                    if self.ep.ty.is_datagram() { self.max_path_mtu } else { self.ep.attr.path_mtu }.bytes();
                self.responder.start(&self.ep);
                self.ep.trust = Trust::default();
                self.established = false;
            }
            (QpState::Rtr, QpState::Rts) => self.requester.start(&self.ep),
            (QpState::Rts, QpState::Sqd) => {
                self.ep.attr.sq_draining = true;
                self.check_drained();
            }
            (QpState::Sqd, QpState::Rts) => {
                self.ep.attr.sq_draining = false;
                self.requester.resume(now);
            }
            _ => {}
        }
    }

    /// Clears queues and packet numbers without completions; completions that were not polled are dropped.
    fn enter_reset(&mut self) {
        self.requester.reset();
        self.responder.reset();
        self.rq.clear();
        self.ep.events.clear();
        self.established = false;
        let cap = self.ep.attr.cap;
        self.ep.attr = QpAttr { cap, path_mtu: self.max_path_mtu, ..QpAttr::default() };
        self.ep.attr.rate_limit = self.ep.congestion.reset();
    }
}

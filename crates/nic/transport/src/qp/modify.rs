//! `ibv_modify_qp`: checks a call against the table of transitions, then sets attributes and enters the new
//! state.

use core::fmt;

use wire::{QKey, Qpn};

use super::Qp;
use super::transition::{Transition, reached_from, transition};
use crate::attr::{MAX_RD_ATOMIC, QpAttr, QpAttrMask, QpState, QpType};
use crate::cause::Cause;
use crate::refusal::{Value, VerbsError};
use crate::refuse;
use crate::time::Instant;
use crate::trust::Trust;

/// The only port.
const PORT: u8 = 1;

/// Attributes by the names that a program uses.
struct Names(QpAttrMask);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, _)) in self.0.iter_names().enumerate() {
            let separator = if number > 0 { " | " } else { "" };
            write!(f, "{separator}IBV_QP_{name}")?;
        }
        Ok(())
    }
}

impl Value for Names {
    fn pack(self) -> u64 {
        self.0.bits().into()
    }
    fn unpack(number: u64) -> Self {
        Self(QpAttrMask::from_bits_truncate(number as u32))
    }
}

/// A transition of a queue pair.
struct Step {
    qpn: Qpn,
    ty: QpType,
    from: QpState,
    to: QpState,
}

impl Value for Step {
    fn pack(self) -> u64 {
        self.qpn.pack() << 24 | self.ty.pack() << 16 | self.from.pack() << 8 | self.to.pack()
    }
    fn unpack(number: u64) -> Self {
        let byte = |at: u32| number >> at & 0xff;
        let (from, to) = (QpState::unpack(byte(8)), QpState::unpack(byte(0)));
        Self { qpn: Qpn::unpack(number >> 24), ty: QpType::unpack(byte(16)), from, to }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, ty, from, to } = self;
        write!(f, "{from} to {to} of the {ty} queue pair {qpn}")
    }
}

impl Qp {
    /// Changes state and attributes: all of them, or on an error none.
    ///
    /// # Errors
    /// `EINVAL` when the transition does not exist, an attribute is missing or extra, or a value is out of
    /// range.
    pub fn modify(&mut self, now: Instant, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let mask = mask.heeded(self.ep.ty);
        let from = self.ep.attr.state;
        let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
        let row = transition(self.ep.ty, from, to).ok_or_else(|| self.refuse_transition(to))?;
        // RESET and ERR, too, take no extra attribute.
        if !row.accepts(mask) {
            return Err(self.refuse_mask(row, to, mask));
        }
        self.check_values(attr, mask)?;
        self.set(attr, mask);
        self.enter(now, from, to);
        Ok(())
    }

    #[cold]
    fn refuse_transition(&self, to: QpState) -> VerbsError {
        let (qpn, ty, from) = (self.ep.qpn, self.ep.ty, self.ep.attr.state);
        let step = Step { qpn, ty, from, to };
        refuse!(EINVAL, "queue pair", "qp_state"; to as QpState, step as Step;
            let sources = reached_from(step.ty, to);
            let qpn = step.qpn; let ty = step.ty; let from = step.from;
            "the queue pair {qpn} ({ty}) is in {from}; {to} is reached from {sources}")
    }

    #[cold]
    fn refuse_mask(&self, row: Transition, to: QpState, mask: QpAttrMask) -> VerbsError {
        let (qpn, ty, from) = (self.ep.qpn, self.ep.ty, self.ep.attr.state);
        let step = Step { qpn, ty, from, to };
        let missing = Names(row.required - mask);
        let extra = Names(mask - row.required - row.optional - QpAttrMask::STATE);
        if missing.0.is_empty() {
            refuse!(EINVAL, "queue pair", "attr_mask"; extra as Names, step as Step;
                "{step} does not take {extra}")
        } else if extra.0.is_empty() {
            refuse!(EINVAL, "queue pair", "attr_mask"; missing as Names, step as Step;
                "{step} needs {missing}, too")
        } else {
            refuse!(EINVAL, "queue pair", "attr_mask"; missing as Names, extra as Names, step as Step;
                "{step} needs {missing}, too, and does not take {extra}")
        }
    }

    fn check_values(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let check = |bit, is_good: bool, refused: VerbsError| {
            if is_good || !mask.contains(bit) { Ok(()) } else { Err(refused) }
        };
        macro_rules! at_most {
            ($bit:ident, $field:ident, $max:expr) => {{
                let (bit, value, max) = (QpAttrMask::$bit, attr.$field, $max);
                let name = Names(bit);
                check(bit, value <= max, refuse!(EINVAL, "queue pair", stringify!($field);
                    value, max, name as Names; "{name} is {value}, the largest value is {max}"))
            }};
        }
        let live = [QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe];
        let (state, asked, mtu) = (self.ep.attr.state, attr.cur_state, self.max_path_mtu.bytes());
        let is_cur_state = asked == state && live.contains(&asked);
        let (index, port, asked_mtu) = (attr.pkey_index, attr.port_num, attr.path_mtu.bytes());
        check(
            QpAttrMask::CUR_STATE,
            is_cur_state,
            refuse!(EINVAL, "queue pair", "cur_qp_state"; asked as QpState, state as QpState;
                "cur_state is {asked}, the queue pair is in {state}"),
        )?;
        check(
            QpAttrMask::PKEY_INDEX,
            index == 0,
            refuse!(EINVAL, "queue pair", "pkey_index"; index;
                is "{index}, the device has one P_Key, of index 0"),
        )?;
        check(
            QpAttrMask::PORT,
            port == PORT,
            refuse!(EINVAL, "queue pair", "port_num"; port; is "{port}, the only port is {PORT}"),
        )?;
        let zero = 0;
        check(
            QpAttrMask::AV,
            !attr.av.dgid.is_zero(),
            refuse!(EINVAL, "address handle", "dgid"; zero;
                "the destination GID is zero: RoCE needs ah_attr.is_global and ah_attr.grh.dgid"),
        )?;
        check(
            QpAttrMask::PATH_MTU,
            attr.path_mtu <= self.max_path_mtu,
            refuse!(EINVAL, "queue pair", "path_mtu"; asked_mtu, mtu;
                is "{asked_mtu} bytes, the MTU of the netdev admits {mtu} (active_mtu of \
                 ibv_query_port)"),
        )?;
        at_most!(TIMEOUT, timeout, 31)?;
        at_most!(RETRY_CNT, retry_cnt, 7)?;
        at_most!(RNR_RETRY, rnr_retry, 7)?;
        at_most!(MIN_RNR_TIMER, min_rnr_timer, 31)?;
        at_most!(MAX_QP_RD_ATOMIC, max_rd_atomic, MAX_RD_ATOMIC)?;
        at_most!(MAX_DEST_RD_ATOMIC, max_dest_rd_atomic, MAX_RD_ATOMIC)?;
        let asked = attr.max_rd_atomic;
        check(
            QpAttrMask::MAX_QP_RD_ATOMIC,
            !self.ep.attr.sq_draining,
            refuse!(EINVAL, "queue pair", "max_rd_atomic"; asked;
                "max_rd_atomic changes only when the send queue is drained (IBV_EVENT_SQ_DRAINED)"),
        )
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
                    self.enter_err(Cause::FlushedByApplication);
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

//! The table of queue pair state transitions: which attributes each needs and which it may carry (IBA 10.3.1,
//! `ibv_modify_qp(3)`).

use core::fmt;

use crate::attr::{QpAttrMask, QpState, QpType};

/// The attributes that one transition needs and permits, besides `STATE`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Transition {
    pub(crate) required: QpAttrMask,
    pub(crate) optional: QpAttrMask,
}

const fn bits(list: &[QpAttrMask]) -> QpAttrMask {
    let mut all = QpAttrMask::empty();
    let mut i = 0;
    while i < list.len() {
        all = all.union(list[i]);
        i += 1;
    }
    all
}

const NONE: QpAttrMask = QpAttrMask::empty();
const CUR: QpAttrMask = QpAttrMask::CUR_STATE;
const KEYED_PORT: QpAttrMask = bits(&[QpAttrMask::PKEY_INDEX, QpAttrMask::PORT, QpAttrMask::QKEY]);
const GSI_INIT: QpAttrMask = bits(&[QpAttrMask::PKEY_INDEX, QpAttrMask::QKEY]);
const ACCESS_PORT: QpAttrMask = bits(&[QpAttrMask::PKEY_INDEX, QpAttrMask::PORT, QpAttrMask::ACCESS_FLAGS]);
const UC_RTR: QpAttrMask =
    bits(&[QpAttrMask::AV, QpAttrMask::PATH_MTU, QpAttrMask::DEST_QPN, QpAttrMask::RQ_PSN]);
const RC_RTR: QpAttrMask = bits(&[UC_RTR, QpAttrMask::MAX_DEST_RD_ATOMIC, QpAttrMask::MIN_RNR_TIMER]);
const RTR_OPTIONAL: QpAttrMask =
    bits(&[QpAttrMask::ALT_PATH, QpAttrMask::ACCESS_FLAGS, QpAttrMask::PKEY_INDEX]);
const RC_RTS: QpAttrMask = bits(&[
    QpAttrMask::SQ_PSN,
    QpAttrMask::TIMEOUT,
    QpAttrMask::RETRY_CNT,
    QpAttrMask::RNR_RETRY,
    QpAttrMask::MAX_QP_RD_ATOMIC,
]);
const UD_LIVE: QpAttrMask = bits(&[CUR, QpAttrMask::QKEY]);
const UC_LIVE: QpAttrMask = bits(&[
    CUR,
    QpAttrMask::ALT_PATH,
    QpAttrMask::ACCESS_FLAGS,
    QpAttrMask::PATH_MIG_STATE,
    QpAttrMask::RATE_LIMIT,
]);
const RC_LIVE: QpAttrMask = bits(&[UC_LIVE, QpAttrMask::MIN_RNR_TIMER]);
const UC_SQD: QpAttrMask = bits(&[
    QpAttrMask::AV,
    QpAttrMask::ALT_PATH,
    QpAttrMask::ACCESS_FLAGS,
    QpAttrMask::PKEY_INDEX,
    QpAttrMask::PATH_MIG_STATE,
]);
const RC_SQD: QpAttrMask = bits(&[
    UC_SQD,
    QpAttrMask::PORT,
    QpAttrMask::TIMEOUT,
    QpAttrMask::RETRY_CNT,
    QpAttrMask::RNR_RETRY,
    QpAttrMask::MAX_QP_RD_ATOMIC,
    QpAttrMask::MAX_DEST_RD_ATOMIC,
    QpAttrMask::MIN_RNR_TIMER,
]);
/// XRC: the rows of RC without the attributes of the other half.
const TGT_RTS: QpAttrMask = bits(&[QpAttrMask::SQ_PSN, QpAttrMask::TIMEOUT]);
const INI_LACKS: QpAttrMask = bits(&[QpAttrMask::MAX_DEST_RD_ATOMIC, QpAttrMask::MIN_RNR_TIMER]);
const TGT_LACKS: QpAttrMask =
    bits(&[QpAttrMask::RETRY_CNT, QpAttrMask::RNR_RETRY, QpAttrMask::MAX_QP_RD_ATOMIC]);
const INI_SQD: QpAttrMask = RC_SQD.difference(INI_LACKS);
const TGT_SQD: QpAttrMask = RC_SQD.difference(TGT_LACKS);
const UD_SQD: QpAttrMask = bits(&[QpAttrMask::PKEY_INDEX, QpAttrMask::QKEY]);
const UC_SQE: QpAttrMask = bits(&[CUR, QpAttrMask::ACCESS_FLAGS]);

/// The attributes of this transition; `None` when there is no such transition.
pub(crate) fn transition(ty: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Gsi, Rc, Uc, Ud, XrcIni, XrcTgt};
    #[rustfmt::skip]
    let (required, optional) = match (ty, from, to) {
        (_,        _,     Reset) => (NONE, NONE),
        (_,        Reset, Err)   => return None,
        (_,        _,     Err)   => (NONE, NONE),
        (Ud,       Reset, Init)  => (KEYED_PORT, NONE),
        (Gsi,      Reset, Init)  => (GSI_INIT, QpAttrMask::PORT),
        (_,        Reset, Init)  => (ACCESS_PORT, NONE),
        (Ud | Gsi, Init,  Init)  => (NONE, KEYED_PORT),
        (_,        Init,  Init)  => (NONE, ACCESS_PORT),
        (Rc | XrcTgt, Init, Rtr) => (RC_RTR, RTR_OPTIONAL),
        (Uc | XrcIni, Init, Rtr) => (UC_RTR, RTR_OPTIONAL),
        (Ud | Gsi, Init,  Rtr)   => (NONE, UD_SQD),
        (Rc,       Rtr,   Rts)   => (RC_RTS, RC_LIVE),
        (XrcIni,   Rtr,   Rts)   => (RC_RTS, UC_LIVE),
        (XrcTgt,   Rtr,   Rts)   => (TGT_RTS, RC_LIVE),
        (Uc,       Rtr,   Rts)   => (QpAttrMask::SQ_PSN, UC_LIVE),
        (Ud | Gsi, Rtr,   Rts)   => (QpAttrMask::SQ_PSN, UD_LIVE),
        (Rc | XrcTgt, Rts | Sqd, Rts) => (NONE, RC_LIVE),
        (Uc | XrcIni, Rts | Sqd, Rts) => (NONE, UC_LIVE),
        (Ud | Gsi, Rts | Sqd, Rts) => (NONE, UD_LIVE),
        (_,        Rts,   Sqd)   => (NONE, QpAttrMask::EN_SQD_ASYNC_NOTIFY),
        (Rc,       Sqd,   Sqd)   => (NONE, RC_SQD),
        (XrcIni,   Sqd,   Sqd)   => (NONE, INI_SQD),
        (XrcTgt,   Sqd,   Sqd)   => (NONE, TGT_SQD),
        (Uc,       Sqd,   Sqd)   => (NONE, UC_SQD),
        (Ud | Gsi, Sqd,   Sqd)   => (NONE, UD_SQD),
        (Uc,       Sqe,   Rts)   => (NONE, UC_SQE),
        (Ud | Gsi, Sqe,   Rts)   => (NONE, UD_LIVE),
        _ => return None,
    };
    Some(Transition { required, optional })
}

/// The states that have a transition to `to`.
pub(crate) fn reached_from(ty: QpType, to: QpState) -> States {
    States(ALL_STATES.map(|from| (from != to && transition(ty, from, to).is_some()).then_some(from)))
}

const ALL_STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

/// States for people: `RTR or SQD`.
pub(crate) struct States([Option<QpState>; 7]);

impl fmt::Display for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for state in self.0.iter().flatten() {
            write!(f, "{separator}{state}")?;
            separator = " or ";
        }
        if separator.is_empty() { f.write_str("no other state") } else { Ok(()) }
    }
}

impl QpAttrMask {
    /// Without what is ignored: programs set the attributes of both halves of RC on XRC, and the kernel lets
    /// them.
    pub(crate) fn heeded(self, ty: QpType) -> Self {
        match ty {
            QpType::XrcIni => self - INI_LACKS,
            QpType::XrcTgt => self - TGT_LACKS,
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::Gsi => self,
        }
    }

    /// What a call must set that takes a queue pair of this service to INIT, RTR or RTS from the state
    /// before; for other states only `STATE`.
    #[must_use]
    pub fn required(ty: QpType, to: QpState) -> Self {
        let from = match to {
            QpState::Rtr => QpState::Init,
            QpState::Rts => QpState::Rtr,
            QpState::Reset | QpState::Init | QpState::Sqd | QpState::Sqe | QpState::Err => QpState::Reset,
        };
        transition(ty, from, to).map_or(NONE, |row| row.required) | Self::STATE
    }
}

impl Transition {
    /// Whether a call with this mask is complete and has nothing extra.
    pub(crate) fn accepts(self, mask: QpAttrMask) -> bool {
        let mask = mask.difference(QpAttrMask::STATE);
        mask.contains(self.required) && self.required.union(self.optional).contains(mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

    #[test]
    fn rc_needs_each_attribute_and_takes_no_extra_one() {
        use QpState::{Init, Reset, Rtr, Rts};
        for (from, to) in [(Reset, Init), (Init, Rtr), (Rtr, Rts)] {
            let row = transition(QpType::Rc, from, to).unwrap();
            assert!(row.accepts(row.required | QpAttrMask::STATE));
            for bit in row.required.iter() {
                assert!(!row.accepts(row.required - bit), "{from:?} to {to:?} without {bit:?}");
            }
            for bit in (QpAttrMask::all() - row.required - row.optional - QpAttrMask::STATE).iter() {
                assert!(!row.accepts(row.required | bit), "{from:?} to {to:?} with {bit:?}");
            }
        }
    }

    /// An XRC queue pair has the attributes of its half of RC.
    #[test]
    fn each_half_of_xrc_needs_what_its_half_of_rc_needs() {
        let needs = QpAttrMask::required;
        let responder = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
        let requester = QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC;
        let (rtr, rts) = (needs(QpType::Rc, QpState::Rtr), needs(QpType::Rc, QpState::Rts));
        assert_eq!(needs(QpType::XrcTgt, QpState::Rtr), rtr);
        assert_eq!(needs(QpType::XrcIni, QpState::Rtr), rtr - responder);
        assert_eq!(needs(QpType::XrcTgt, QpState::Rts), rts - requester);
        assert_eq!(needs(QpType::XrcIni, QpState::Rts), rts);
        assert_eq!(rtr.heeded(QpType::XrcIni), rtr - responder);
        assert_eq!(rts.heeded(QpType::XrcTgt), rts - requester);
    }

    #[test]
    fn masks_have_the_values_that_programs_use() {
        // ibv_rc_pingpong: INIT, RTR, RTS.
        let rc = |from, to| transition(QpType::Rc, from, to).unwrap().required.bits();
        assert_eq!(rc(QpState::Reset, QpState::Init), 0x38);
        assert_eq!(rc(QpState::Init, QpState::Rtr), 0x12_9180);
        assert_eq!(rc(QpState::Rtr, QpState::Rts), 0x1_2e00);
    }

    /// The whole table: what a transition needs, and what it takes in addition. `ROXIE_BLESS=1` writes it
    /// anew.
    #[test]
    fn every_transition_matches_the_snapshot() {
        use std::fmt::Write;
        let mut picture = String::new();
        for ty in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi, QpType::XrcIni, QpType::XrcTgt] {
            for (from, to) in ALL.iter().flat_map(|from| ALL.map(|to| (*from, to))) {
                let Some(row) = transition(ty, from, to) else { continue };
                let names = |mask: QpAttrMask| {
                    let names: Vec<_> = mask.iter_names().map(|(name, _)| name.to_lowercase()).collect();
                    if names.is_empty() { "nothing".to_owned() } else { names.join(" ") }
                };
                writeln!(
                    picture,
                    "{ty:?} {from:?} -> {to:?}: {}; {}",
                    names(row.required),
                    names(row.optional)
                )
                .unwrap();
            }
        }
        if std::env::var_os("ROXIE_BLESS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/transitions.txt");
            std::fs::write(path, &picture).unwrap();
        }
        assert_eq!(picture, include_str!("transitions.txt"));
    }

    #[test]
    fn every_state_goes_to_reset_and_only_neighbours_are_reachable() {
        for from in ALL {
            assert!(transition(QpType::Rc, from, QpState::Reset).is_some());
            assert_eq!(transition(QpType::Rc, from, QpState::Err).is_some(), from != QpState::Reset);
            // No call enters SQE, and RC has none.
            assert!(transition(QpType::Ud, from, QpState::Sqe).is_none());
        }
        assert!(transition(QpType::Rc, QpState::Reset, QpState::Rtr).is_none());
        assert!(transition(QpType::Rc, QpState::Init, QpState::Rts).is_none());
        assert!(transition(QpType::Rc, QpState::Sqe, QpState::Rts).is_none());
        assert!(transition(QpType::Uc, QpState::Sqe, QpState::Rts).is_some());
        assert!(transition(QpType::Rc, QpState::Err, QpState::Rts).is_none());
    }
}

//! A row of a table, and how it is shown.

use std::fmt::Debug;

use transport::{AsyncEventKind, QpAttr, QpAttrMask, QpState, QpType, WcStatus, WrOp};

use super::end::Sight;
use super::pair::{HERE, Pair, Setup, THERE};

/// What one end is told.
#[derive(Clone, Copy)]
pub(super) struct Told {
    pub(super) sends: &'static [WcStatus],
    pub(super) recvs: &'static [WcStatus],
    pub(super) events: &'static [AsyncEventKind],
    pub(super) state: QpState,
    pub(super) counted: &'static [&'static str],
}

/// Nothing happened.
pub(super) const NOTHING: Told =
    Told { sends: &[], recvs: &[], events: &[], state: QpState::Rts, counted: &[] };

/// The end is in the error state: its one receive is flushed.
pub(super) const DEAD: Told = Told { state: QpState::Err, recvs: &[WcStatus::WrFlushErr], ..NOTHING };

/// The first work request fails, the one behind it is flushed.
pub(super) const fn fails(statuses: &'static [WcStatus]) -> Told {
    Told { sends: statuses, ..DEAD }
}

#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Statement of the specification or line of its tables.
    pub(super) of: &'static str,
    pub(super) setup: Setup,
    /// Bytes of the receive that is posted there beforehand.
    pub(super) room: Option<usize>,
    /// What the applications do; what is posted leaves together.
    pub(super) act: fn(&mut Pair),
    /// A work request behind it, without data: a WRITE, on UD a SEND.
    pub(super) follower: bool,
    /// Requests, in the order in which they were seen first.
    pub(super) asks: &'static [&'static str],
    /// All answers.
    pub(super) answers: &'static [&'static str],
    pub(super) here: Told,
    pub(super) there: Told,
}

impl Row {
    /// Nothing goes wrong: a start for all others.
    pub(super) const fn new(ty: QpType) -> Self {
        Self {
            name: "",
            of: "",
            setup: Setup::new(ty),
            room: Some(64),
            act: |_| (),
            follower: true,
            asks: &[],
            answers: &[],
            here: NOTHING,
            there: NOTHING,
        }
    }
}

/// Shows every row; all that fail are named.
pub(super) fn show(rows: &[Row]) {
    let mut failed = Vec::new();
    for row in rows {
        failed.extend(differences(row).into_iter().map(|what| format!("{} ({}): {what}", row.name, row.of)));
    }
    assert!(failed.is_empty(), "{} differences\n{}", failed.len(), failed.join("\n"));
}

fn differences(row: &Row) -> Vec<String> {
    let mut pair = Pair::new(&row.setup);
    // To see whether it is flushed.
    if row.setup.ty != QpType::XrcIni {
        let spare = pair.here.sge(64);
        pair.here.post_recv(&[spare]);
    }
    if let Some(len) = row.room {
        pair.receive(len);
    }
    (row.act)(&mut pair);
    if row.follower {
        let open = pair.there.open;
        pair.post(if row.setup.ty == QpType::Ud { WrOp::Send } else { open.write(0) }, 0);
    }
    pair.run();
    let mut found = Vec::new();
    let mut asks = Vec::new();
    for line in pair.cable.said_by(HERE) {
        if !asks.contains(&line) {
            asks.push(line);
        }
    }
    compare(&mut found, "asks", &row.asks, &asks);
    compare(&mut found, "answers", &row.answers, &pair.cable.said_by(THERE));
    let (here, there) = (pair.here.look(), pair.there.look());
    compare_end(&mut found, "here", &row.here, &here);
    compare_end(&mut found, "there", &row.there, &there);
    if found.is_empty() {
        found.extend(afterlife(row, &mut pair));
    }
    found
}

fn compare<E: Debug + PartialEq<F> + ?Sized, F: Debug + ?Sized>(
    found: &mut Vec<String>,
    what: &str,
    expected: &E,
    seen: &F,
) {
    if expected != seen {
        found.push(format!("{what}: {seen:?}, not {expected:?}"));
    }
}

fn compare_end(found: &mut Vec<String>, end: &str, told: &Told, seen: &Sight) {
    compare(found, &format!("{end}, sends"), told.sends, &seen.sends[..]);
    compare(found, &format!("{end}, receives"), told.recvs, &seen.recvs[..]);
    compare(found, &format!("{end}, events"), told.events, &seen.events[..]);
    compare(found, &format!("{end}, state"), &told.state, &seen.state);
    let is_counted = told.counted.len() == seen.counted.len()
        && told.counted.iter().zip(&seen.counted).all(|(told, seen)| is_count_of(told, seen));
    if !is_counted {
        found.push(format!("{end}, counted: {:?}, not {:?}", seen.counted, told.counted));
    }
}

/// A counter without a number may have any.
fn is_count_of(told: &str, seen: &str) -> bool {
    told == seen || seen.strip_prefix(told).is_some_and(|rest| rest.starts_with(' '))
}

/// Queue pairs that live carry a message, after SQE once they are told to go on; those in error complete
/// what is posted as flushed, and say nothing more.
fn afterlife(row: &Row, pair: &mut Pair) -> Vec<String> {
    let mut found = Vec::new();
    pair.cable.mend();
    let said = pair.cable.said_by(THERE).len();
    let is_there_alive = matches!(row.there.state, QpState::Rts | QpState::Rtr);
    let is_xrc = row.setup.ty == QpType::XrcIni;
    if row.here.state == QpState::Rts && !is_there_alive {
        // Only without acknowledgements a sender outlives its receiver, and learns nothing.
        compare(&mut found, "service with acknowledgements", &false, &row.setup.ty.is_reliable());
        return found;
    }
    if row.here.state != QpState::Rts {
        pair.post(WrOp::Send, 8);
        pair.run();
        compare(&mut found, "then here", &vec![WcStatus::WrFlushErr], &pair.here.look().sends);
    }
    if row.here.state == QpState::Sqe {
        let attr = QpAttr { state: QpState::Rts, cur_state: QpState::Sqe, ..QpAttr::default() };
        let modified = pair.here.modify(pair.now, &attr, QpAttrMask::STATE | QpAttrMask::CUR_STATE);
        compare(&mut found, "then SQE to RTS", &Ok(()), &modified);
    }
    if !is_xrc || is_there_alive {
        pair.receive(256);
    }
    let sends = matches!(row.here.state, QpState::Rts | QpState::Sqe);
    if sends {
        pair.post(WrOp::Send, 8);
    }
    pair.run();
    let (here, there) = (pair.here.look(), pair.there.look());
    if sends {
        compare(&mut found, "at last here", &vec![WcStatus::Success], &here.sends);
        compare(&mut found, "at last there", &Some(WcStatus::Success), &there.recvs.last().copied());
    } else {
        compare(&mut found, "then answers", &said, &pair.cable.said_by(THERE).len());
        if !is_there_alive && !row.setup.shared && !is_xrc {
            compare(&mut found, "then there", &vec![WcStatus::WrFlushErr], &there.recvs);
        }
    }
    found
}

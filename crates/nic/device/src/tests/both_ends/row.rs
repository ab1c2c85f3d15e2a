//! A row of a fault table, and the check that both ends behave as it says.

use std::fmt::Debug;

use transport::{AsyncEventKind, QpAttr, QpAttrMask, QpState, QpType, WcStatus, WrOp};

use super::end::Observed;
use super::pair::{HERE, Pair, Setup, THERE};

/// What the application of one end must observe.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    pub(super) sends: &'static [WcStatus],
    pub(super) recvs: &'static [WcStatus],
    pub(super) events: &'static [AsyncEventKind],
    pub(super) state: QpState,
    pub(super) counted: &'static [&'static str],
}

/// No completion, no event, no error.
pub(super) const NOTHING: Expected =
    Expected { sends: &[], recvs: &[], events: &[], state: QpState::Rts, counted: &[] };

/// The queue pair is in ERR, and its one receive is flushed.
pub(super) const IN_ERR: Expected =
    Expected { state: QpState::Err, recvs: &[WcStatus::WrFlushErr], ..NOTHING };

/// The queue pair is in ERR, and the work requests have these statuses.
pub(super) const fn fails(statuses: &'static [WcStatus]) -> Expected {
    Expected { sends: statuses, ..IN_ERR }
}

#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The statement of the specification, or the line of its tables.
    pub(super) rule: &'static str,
    pub(super) setup: Setup,
    /// Bytes of the receive that the responder posts first.
    pub(super) receive_len: Option<usize>,
    /// What the applications do. Work requests posted here leave in one batch.
    pub(super) act: fn(&mut Pair),
    /// Whether an empty work request follows: a WRITE, on UD a SEND.
    pub(super) follower: bool,
    /// The requests, without retransmissions.
    pub(super) requests: &'static [&'static str],
    /// The responses, with retransmissions.
    pub(super) responses: &'static [&'static str],
    pub(super) here: Expected,
    pub(super) there: Expected,
}

impl Row {
    /// A row without a fault, from which the others are made.
    pub(super) const fn new(ty: QpType) -> Self {
        Self {
            name: "",
            rule: "",
            setup: Setup::new(ty),
            receive_len: Some(64),
            act: |_| (),
            follower: true,
            requests: &[],
            responses: &[],
            here: NOTHING,
            there: NOTHING,
        }
    }
}

/// Checks every row; the panic message names all rows that fail.
pub(super) fn check(rows: &[Row]) {
    let mut failed = Vec::new();
    for row in rows {
        failed
            .extend(differences(row).into_iter().map(|what| format!("{} ({}): {what}", row.name, row.rule)));
    }
    assert!(failed.is_empty(), "{} differences\n{}", failed.len(), failed.join("\n"));
}

fn differences(row: &Row) -> Vec<String> {
    let mut pair = Pair::new(&row.setup);
    // Shows whether the requester flushes its receives.
    if row.setup.ty != QpType::XrcIni {
        let spare = pair.here.sge(64);
        pair.here.post_recv(&[spare]);
    }
    if let Some(len) = row.receive_len {
        pair.receive(len);
    }
    (row.act)(&mut pair);
    if row.follower {
        let open = pair.there.open;
        pair.post(if row.setup.ty == QpType::Ud { WrOp::Send } else { open.write(0) }, 0);
    }
    pair.run();
    let mut found = Vec::new();
    let mut requests = Vec::new();
    for line in pair.cable.described_by(HERE) {
        if !requests.contains(&line) {
            requests.push(line);
        }
    }
    compare(&mut found, "requests", &row.requests, &requests);
    compare(&mut found, "responses", &row.responses, &pair.cable.described_by(THERE));
    let (here, there) = (pair.here.observe(), pair.there.observe());
    compare_end(&mut found, "here", &row.here, &here);
    compare_end(&mut found, "there", &row.there, &there);
    if found.is_empty() {
        found.extend(check_afterwards(row, &mut pair));
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

fn compare_end(found: &mut Vec<String>, end: &str, expected: &Expected, seen: &Observed) {
    compare(found, &format!("{end}, sends"), expected.sends, &seen.sends[..]);
    compare(found, &format!("{end}, receives"), expected.recvs, &seen.recvs[..]);
    compare(found, &format!("{end}, events"), expected.events, &seen.events[..]);
    compare(found, &format!("{end}, state"), &expected.state, &seen.state);
    let is_counted = expected.counted.len() == seen.counted.len()
        && expected.counted.iter().zip(&seen.counted).all(|(expected, seen)| is_count_of(expected, seen));
    if !is_counted {
        found.push(format!("{end}, counted: {:?}, not {:?}", seen.counted, expected.counted));
    }
}

/// An expected counter without a number matches any number.
fn is_count_of(expected: &str, seen: &str) -> bool {
    expected == seen || seen.strip_prefix(expected).is_some_and(|rest| rest.starts_with(' '))
}

/// Checks the queue pairs afterwards. Those in RTS carry a message, and those in SQE do so after
/// `ibv_modify_qp`. Those in ERR flush what is posted, and send no packet.
fn check_afterwards(row: &Row, pair: &mut Pair) -> Vec<String> {
    let mut found = Vec::new();
    pair.cable.deliver_all();
    let described = pair.cable.described_by(THERE).len();
    let is_there_alive = matches!(row.there.state, QpState::Rts | QpState::Rtr);
    let is_xrc = row.setup.ty == QpType::XrcIni;
    if row.here.state == QpState::Rts && !is_there_alive {
        // Only a sender without acknowledgements stays in RTS while its receiver is in ERR.
        compare(&mut found, "reliable service", &false, &row.setup.ty.is_reliable());
        return found;
    }
    if row.here.state != QpState::Rts {
        pair.post(WrOp::Send, 8);
        pair.run();
        compare(&mut found, "afterwards here", &vec![WcStatus::WrFlushErr], &pair.here.observe().sends);
    }
    if row.here.state == QpState::Sqe {
        let attr = QpAttr { state: QpState::Rts, cur_state: QpState::Sqe, ..QpAttr::default() };
        let modified = pair.here.modify(pair.now, &attr, QpAttrMask::STATE | QpAttrMask::CUR_STATE);
        compare(&mut found, "SQE to RTS", &Ok(()), &modified);
    }
    if !is_xrc || is_there_alive {
        pair.receive(256);
    }
    let sends = matches!(row.here.state, QpState::Rts | QpState::Sqe);
    if sends {
        pair.post(WrOp::Send, 8);
    }
    pair.run();
    let (here, there) = (pair.here.observe(), pair.there.observe());
    if sends {
        compare(&mut found, "afterwards here", &vec![WcStatus::Success], &here.sends);
        compare(&mut found, "afterwards there", &Some(WcStatus::Success), &there.recvs.last().copied());
    } else {
        compare(&mut found, "afterwards responses", &described, &pair.cable.described_by(THERE).len());
        if !is_there_alive && !row.setup.shared && !is_xrc {
            compare(&mut found, "afterwards there", &vec![WcStatus::WrFlushErr], &there.recvs);
        }
    }
    found
}

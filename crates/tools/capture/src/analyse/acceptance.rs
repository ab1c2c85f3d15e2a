//! The visible answer of the receiver outweighs a rule: what it acknowledges it has accepted.

use wire::capture::{IcrcCheck, Seen};
use wire::{DropReason, Opcode, Psn, Service};

use super::direction::Inside;
use super::finding::{At, Confidence, Finding, Kind, subject};
use super::window::{Order, Slot};
use super::{Analysis, damaged};

/// Findings of a direction that wait for the answer of the receiver; further ones have the confidence low.
const DOUBTS_MAX: usize = 64;
/// Opcodes that the IBA leaves to manufacturers (IBA 9.2.1).
const MANUFACTURER: u8 = 0xc0;

impl Analysis {
    /// As `report_on`, for a rule that the packet `shown` with the number `psn` violates.
    pub(super) fn report_doubted(
        &mut self,
        index: usize,
        kind: Kind,
        at: At,
        psn: Psn,
        shown: At,
        text: String,
    ) {
        let finding = self.report_on(index, kind, at, shown.number, text);
        self.doubt(index, psn, shown, finding);
    }

    /// Lets a finding wait for the answer to the packet `shown`.
    fn doubt(&mut self, index: usize, psn: Psn, shown: At, finding: Option<usize>) {
        let doubts = &mut self.directions[index].doubts;
        match finding {
            Some(finding) if doubts.len() < DOUBTS_MAX => doubts.push((psn, shown, finding)),
            _ => {
                if let Some(finding) = self.findings.at(finding) {
                    finding.confidence = Confidence::Low;
                }
            }
        }
    }

    /// Reports a packet that cannot be decoded, unless its opcode is one of a manufacturer.
    pub(super) fn malformed(&mut self, at: At, seen: &Seen<'_>, reason: DropReason, icrc: IcrcCheck) {
        let opcode = seen.bth.map_or(Opcode::default(), |bth| bth.opcode);
        let is_known = reason != DropReason::UnknownOpcode || opcode.0 < MANUFACTURER;
        let mut finding = None;
        if is_known {
            let why = match reason {
                DropReason::TooShort => "it is too short for its headers",
                DropReason::UnknownOpcode => "its opcode is unknown",
                DropReason::BadTver => "its transport header has an unknown version",
                other => other.name(),
            };
            let text = format!("A packet is malformed: {why}. A receiver should drop it silently.");
            finding = self.report(Kind::Malformed, at, at.number, subject(seen), text);
        } else if let IcrcCheck::Bad { want } = icrc {
            finding = self.report(Kind::BadIcrc, at, at.number, subject(seen), damaged(want));
        } else {
            self.totals.foreign += 1;
        }
        self.opaque(at, seen, finding);
    }

    /// Follows the number of a request of a connection that cannot be decoded: the receiver may accept it. An
    /// unknown opcode counts as a request.
    fn opaque(&mut self, at: At, seen: &Seen<'_>, finding: Option<usize>) {
        let Some(bth) = seen.bth else { return };
        // The top three bits are the service.
        let service = match (bth.opcode.row(), bth.opcode.0 >> 5) {
            (Some(row), _) if row.is_response() => return,
            (_, 0 | 6..) => Service::Rc,
            (_, 1) => Service::Uc,
            (_, 5) => Service::Xrc,
            _ => return,
        };
        let Some(index) = self.direction(at, seen, service) else { return };
        let direction = &mut self.directions[index];
        let slot = Slot { sent: at, again: at, opcode: bth.opcode, ..Slot::default() };
        match direction.window.order(bth.psn) {
            Order::Next => direction.window.push(slot, 1),
            Order::FillsGap => {
                let Some(place) = direction.window.get_mut(bth.psn) else { return };
                direction.holes -= u64::from(place.missing);
                *place = slot;
            }
            _ => return,
        }
        direction.inside = Inside::Unknown;
        direction.last_request = at;
        if bth.ack_req {
            direction.request_ack(bth.psn);
        }
        self.doubt(index, bth.psn, at, finding);
    }

    /// The receiver acknowledged all numbers before `una`, in packet `ack`.
    pub(super) fn accepted(&mut self, index: usize, ack: At) {
        let direction = &mut self.directions[index];
        if direction.doubts.is_empty() {
            return;
        }
        let (una, window) = (direction.una, &direction.window);
        let findings = &mut self.findings;
        direction.doubts.retain(|(psn, at, finding)| {
            if !psn.is_before(una) {
                return true;
            }
            // A retransmission may have been accepted in its place.
            let is_last = window.get(*psn).is_none_or(|slot| slot.again.number == at.number);
            if let Some(finding) = findings.at(Some(*finding)).filter(|_| is_last) {
                finding.accept(ack);
            }
            false
        });
    }
}

impl Finding {
    /// The receiver acknowledged the packet in packet `ack`.
    fn accept(&mut self, ack: At) {
        if matches!(self.kind, Kind::Malformed | Kind::WrongMtu) {
            self.count = 0;
            return;
        }
        self.confidence = Confidence::Low;
        self.text.push_str(&format!(" This receiver acknowledged it in packet {}.", ack.number));
    }
}

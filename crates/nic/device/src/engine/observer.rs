//! What watches the engine's packets and work, or disturbs them: the recording of `roxie run --capture`, and
//! the faults of `--chaos`.
//!
//! The engine calls it when a packet comes in ([`Observer::hides_receives`]), before packets go out
//! ([`Observer::limit`]), when a queue pair is created, connected and removed, and when work is done
//! ([`Observer::look`]). Without recording and faults, each call costs one comparison.

use std::sync::{Arc, OnceLock};

use transport::chaos::Chaos;
use transport::{Backlog, Instant, Qp, QpEvent, QpType};
use wire::{Packet, Qpn};

use super::entry::QpEntry;
use crate::chaos::EngineChaos;
use crate::chaos::late_writes::LateWrites;
use crate::gid::GidTable;
use crate::keys::KeyTable;
use crate::qp_numbers::QpIndex;
use crate::recording::Recording;
use crate::status::{QpStatus, Row};

/// The faults of `--chaos`, for those that do not hold the engine's lock.
pub(super) type Faults = OnceLock<Arc<Chaos>>;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Observer {
    recording: Option<Recording>,
    chaos: Option<Box<EngineChaos>>,
}

impl Observer {
    /// From now on the queue pairs of the engine have the faults of `chaos`.
    pub(crate) fn disturb(&mut self, chaos: &Arc<Chaos>, mrs: &mut KeyTable) {
        self.chaos = Some(EngineChaos::new(chaos));
        mrs.late = Some(LateWrites::new(chaos));
    }

    /// From now on the reader of a capture learns what happens.
    pub(crate) fn record(&mut self, recording: Option<Recording>) {
        self.recording = recording;
    }

    /// Whether the engine has faults: packets are then held, and bytes are placed late.
    #[inline]
    pub(super) fn disturbs(&self) -> bool {
        self.chaos.is_some()
    }

    pub(super) fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// A queue pair is created.
    pub(super) fn created(&self, qpn: Qpn) {
        if let Some(chaos) = &self.chaos {
            chaos.chaos.created(qpn.value());
        }
    }

    /// Packet in: whether a queue pair finds no receive for it although one is posted.
    #[cold]
    pub(super) fn hides_receives(&mut self, qp: &Qp, packet: &Packet<'_>) -> bool {
        let Some(EngineChaos { chaos, receives, .. }) = self.chaos.as_deref_mut() else { return false };
        receives.refuses(chaos, qp, packet)
    }

    /// Packets out: how many may leave now; `None` if they are held.
    #[inline]
    pub(super) fn limit(
        &mut self,
        now: Instant,
        index: QpIndex,
        qp: &Qp,
        backlog: &Backlog,
    ) -> Option<usize> {
        let Some(EngineChaos { chaos, departures, .. }) = self.chaos.as_deref_mut() else {
            return Some(usize::MAX);
        };
        departures.decide(chaos, now, index, qp, backlog)
    }

    /// When held packets leave or late bytes are placed next.
    #[inline]
    pub(super) fn next(&self, mrs: &KeyTable, ready: impl Iterator<Item = QpIndex>) -> Option<Instant> {
        let chaos = self.chaos.as_ref()?;
        let placed = mrs.late.as_ref().and_then(|late| late.next_due());
        placed.into_iter().chain(chaos.departures.next(ready)).min()
    }

    /// Work done: the bytes that its completions announce are placed first. A completion counter counts
    /// WRITEs of the peer, so all bytes are placed for it.
    #[inline]
    pub(super) fn work_done(&self, entry: &QpEntry, mrs: &KeyTable) {
        if self.chaos.is_some() {
            if entry.counters.is_some() { mrs.place_all() } else { mrs.place_local() }
        }
    }

    /// Work done: one completion or event.
    #[inline]
    pub(super) fn look(&mut self, event: &QpEvent, mrs: &KeyTable) {
        if let Some(recording) = &mut self.recording {
            recording.look(event);
        }
        if self.chaos.is_some() && matches!(event, QpEvent::RecvWc { .. }) {
            mrs.place_all();
        }
    }

    /// Tells the reader of a capture which peer a queue pair has got, before its first packet.
    pub(super) fn tell_peer(&mut self, now: Instant, entry: &mut QpEntry, gids: &GidTable) {
        if let Some(recording) = &mut self.recording {
            recording.tell_peer(&QpStatus::of(entry, gids, now));
        }
    }

    /// Tells the reader of a capture about a queue pair that was used.
    pub(super) fn tell_used(&mut self, now: Instant, entry: &mut QpEntry, gids: &GidTable) {
        let Some(recording) = &mut self.recording else { return };
        if entry.qp.ty() != QpType::Gsi && entry.qp.counters().rows().any(|row| row.1 > 0) {
            recording.tell_queue_pair(&QpStatus::of(entry, gids, now));
        }
    }

    /// Tells the reader of a capture the counters of the engine.
    pub(super) fn tell_counters(&mut self, rows: &[Row]) {
        if let Some(recording) = &mut self.recording {
            recording.tell_counters(rows);
        }
    }
}

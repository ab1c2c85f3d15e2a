//! Status of an engine for 'roxie top' and 'roxie metrics': a snapshot of existing state.

use std::net::IpAddr;

use transport::{Instant, QpCounters, QpState, QpType};
use wire::{Psn, Qpn};

use crate::engine::tables::QpEntry;
use crate::engine::{Core, QpIndex};
use crate::gid::GidTable;
use crate::stats::Row;

/// Status of an engine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EngineStatus {
    /// The netdev of the device.
    pub netdev: String,
    /// Kind and mode of the port.
    pub port: String,
    /// Name and value of every counter, as in [`Device::counters`](crate::verbs::Device::counters).
    pub counters: Vec<(String, u64)>,
}

/// Status of a queue pair.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct QpStatus {
    /// Its number.
    pub qpn: Qpn,
    /// Transport service: RC, UC, UD, XRC.
    pub service: String,
    /// State: RESET, INIT, RTR, RTS, SQD, SQE, ERR.
    pub state: String,
    /// Local address, once the queue pair has a path.
    pub local: Option<IpAddr>,
    /// Address of the peer, if connected.
    pub remote: Option<IpAddr>,
    /// QPN of the peer, if connected.
    pub dest_qpn: Option<Qpn>,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// First PSN of the local requests.
    pub sq_psn: Psn,
    /// First PSN of the peer's requests.
    pub rq_psn: Psn,
    /// Local ACK timeout n: 4.096 us * 2^n; 0 for none.
    pub timeout: u8,
    /// Number of retries without an answer.
    pub retry_cnt: u8,
    /// Number of retries after an RNR NAK; 7 means no limit.
    pub rnr_retry: u8,
    /// READs and atomics in flight as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics in flight as responder.
    pub max_dest_rd_atomic: u8,
    /// IPv4 TOS or IPv6 traffic class of sent packets.
    pub traffic_class: u8,
    /// Size of the send queue in work requests.
    pub max_send_wr: u32,
    /// Size of the receive queue in work requests; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Request packets in flight.
    pub in_flight: u32,
    /// Request packets that wait to be sent.
    pub pending: u32,
    /// Smoothed round-trip time, once measured.
    pub round_trip_ns: Option<u64>,
    /// Current rate limit (congestion control or configured), in bits per second on the wire.
    pub paced_bps: Option<u64>,
    /// Counters of the queue pair.
    pub counters: QpCounters,
}

/// Some queue pairs of an engine, in the order of their QPNs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct QpPage {
    pub(crate) qps: Vec<QpStatus>,
    /// Where the next page starts.
    pub(crate) next: Option<QpIndex>,
}

/// Queue pairs in one page: each takes about 400 bytes of a reply, and 1 us under the engine's lock.
const PAGE_MAX: usize = 128;

impl EngineStatus {
    pub(crate) fn new(netdev: String, port: String, rows: Vec<Row>) -> EngineStatus {
        let counters = rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        EngineStatus { netdev, port, counters }
    }
}

impl Core {
    /// Returns one page of queue pairs, starting at an index.
    pub(crate) fn status_from(&mut self, now: Instant, from: QpIndex) -> QpPage {
        let gids = std::sync::Arc::clone(&self.tables.gids);
        let entries = self.tables.qps_mut().skip_while(|(index, _)| *index < from);
        let mut page = QpPage::default();
        for (index, entry) in entries {
            if page.qps.len() == PAGE_MAX {
                page.next = Some(index);
                break;
            }
            page.qps.push(QpStatus::of(entry, &gids, now));
        }
        page
    }
}

impl QpStatus {
    pub(crate) fn of(entry: &mut QpEntry, gids: &GidTable, now: Instant) -> QpStatus {
        let qp = &mut entry.qp;
        let backlog = qp.backlog();
        let attr = qp.attr();
        let has_path = !matches!(attr.state, QpState::Reset | QpState::Init);
        let is_connected = has_path && !qp.ty().is_datagram();
        QpStatus {
            qpn: qp.qpn(),
            service: service(qp.ty()).to_owned(),
            state: state(attr.state).to_owned(),
            local: gids.address(attr.av.sgid_index).filter(|_| is_connected),
            remote: is_connected.then(|| attr.av.dgid.ip()),
            dest_qpn: is_connected.then_some(attr.dest_qp),
            path_mtu: backlog.path_mtu_bytes as u32,
            sq_psn: attr.sq_psn,
            rq_psn: attr.rq_psn,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            traffic_class: attr.av.traffic_class,
            max_send_wr: attr.cap.max_send_wr,
            max_recv_wr: attr.cap.max_recv_wr,
            in_flight: backlog.in_flight_packets as u32,
            pending: backlog.pending_packets as u32,
            round_trip_ns: qp.round_trip_ns(),
            paced_bps: qp.paced_bps(now),
            counters: *qp.counters(),
        }
    }
}

fn service(ty: QpType) -> &'static str {
    match ty {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::Gsi => "GSI",
        QpType::XrcIni | QpType::XrcTgt => "XRC",
    }
}

fn state(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

//! What an engine says of itself to whoever asks from outside ('roxie top', 'roxie metrics'): copies of what is there anyway.

use std::net::IpAddr;

use transport::{Instant, QpCounters, QpState, QpType};
use wire::{Psn, Qpn};

use crate::engine::Core;
use crate::engine::tables::QpEntry;
use crate::gid::GidTable;
use crate::stats::Row;

/// An engine as a whole.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EngineStatus {
    /// The network interface under the device.
    pub netdev: String,
    /// Kind and mode of the port.
    pub port: String,
    /// Name and value of every counter, as [`Device::counters`](crate::verbs::Device::counters) has them.
    pub counters: Vec<(String, u64)>,
}

/// A queue pair.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct QpStatus {
    /// Its number.
    pub qpn: Qpn,
    /// Its service, as the standard abbreviates it: RC, UC, UD, XRC.
    pub service: String,
    /// Its state: RESET, INIT, RTR, RTS, SQD, SQE, ERR.
    pub state: String,
    /// Its own address, once it has a path.
    pub local: Option<IpAddr>,
    /// The peer's, if it is connected.
    pub remote: Option<IpAddr>,
    /// The peer's queue pair, if it is connected.
    pub dest_qpn: Option<Qpn>,
    /// Payload of its largest packets in bytes.
    pub path_mtu: u32,
    /// The numbers that it began with, of its own requests and of the peer's.
    pub sq_psn: Psn,
    /// ... and of the peer's.
    pub rq_psn: Psn,
    /// Local ACK timeout: 4.096 us times two to this power; 0 for none.
    pub timeout: u8,
    /// Times a request may be sent again unanswered.
    pub retry_cnt: u8,
    /// Times a request may be sent again after an RNR NAK; 7 for ever.
    pub rnr_retry: u8,
    /// READs and atomics at once, its own and the peer's.
    pub max_rd_atomic: u8,
    /// ... and the peer's.
    pub max_dest_rd_atomic: u8,
    /// IPv4 TOS or IPv6 traffic class of what it sends.
    pub traffic_class: u8,
    /// Size of its send queue in work requests.
    pub max_send_wr: u32,
    /// Size of its receive queue in work requests; 0 if its receives come from a shared queue.
    pub max_recv_wr: u32,
    /// Request packets that are not acknowledged.
    pub in_flight: u32,
    /// Request packets that wait to be sent.
    pub pending: u32,
    /// How long an answer takes, smoothed, once that was measured.
    pub round_trip_ns: Option<u64>,
    /// The rate that it keeps because of congestion or a limit, in bits per second on the wire.
    pub paced_bps: Option<u64>,
    /// What it has counted.
    pub counters: QpCounters,
}

/// Some queue pairs of an engine, in the order of their numbers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct QpPage {
    pub(crate) qps: Vec<QpStatus>,
    /// Where to go on: bits 15..0 of a number.
    pub(crate) next: Option<u16>,
}

/// Queue pairs in one page: each takes some 400 bytes of a reply, and a microsecond of the engine's lock.
const PAGE_MAX: usize = 128;

impl EngineStatus {
    pub(crate) fn new(netdev: String, port: String, rows: Vec<Row>) -> EngineStatus {
        let counters = rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        EngineStatus { netdev, port, counters }
    }
}

impl Core {
    /// The queue pairs from an index on, as many as a page holds.
    pub(crate) fn status_from(&mut self, now: Instant, from: u16) -> QpPage {
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
    fn of(entry: &mut QpEntry, gids: &GidTable, now: Instant) -> QpStatus {
        let qp = &mut entry.qp;
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
            path_mtu: qp.path_mtu_bytes() as u32,
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
            in_flight: qp.packets_in_flight() as u32,
            pending: qp.pending_packets() as u32,
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

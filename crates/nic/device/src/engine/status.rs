//! Snapshots of an engine and its queue pairs.

use transport::{Instant, QpState, QpType};

use super::entry::QpEntry;
use crate::engine::Core;
use crate::gid::GidTable;
use crate::qp_numbers::QpIndex;
use crate::status::{PAGE_MAX, QpPage, QpStatus};

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
            service: service(qp.ty()),
            state: attr.state.to_string(),
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

fn service(ty: QpType) -> String {
    match ty {
        QpType::XrcIni | QpType::XrcTgt => "XRC".to_owned(),
        ty => ty.to_string(),
    }
}

//! Encoding of an engine's status. Counters are sent with their names, once per page, because versions
//! differ in them.

use transport::QpCounters;

use super::{Field, Reader, fields, kinds};
use roxie::status::{EngineStatus, ObjectKind, ObjectPage, ObjectStatus, QpPage, QpStatus};

kinds! {
    ObjectKind {
        0 => Pd,
        1 => Cq,
        2 => Mr,
        3 => CmId,
        4 => Ctx,
        5 => Srq,
    }
    ObjectStatus {
        0 => Pd { id, ctx, users },
        1 => Cq { id, ctx, entries, users },
        2 => Mr { id, key, len, pd },
        3 => CmId { id, state, port_space, qpn, local, remote },
        4 => Ctx { id },
        5 => Srq { id, pd, cq, qps },
    }
}

fields! {
    EngineStatus { device, netdev, port, counters }
    ObjectPage { objects, next }
    QpStatus {
        qpn, service, state, local, remote, dest_qpn, path_mtu, sq_psn, rq_psn, timeout, retry_cnt, rnr_retry,
        max_rd_atomic, max_dest_rd_atomic, traffic_class, max_send_wr, max_recv_wr, in_flight, pending,
        round_trip_ns, paced_bps; counters
    }
}

impl Field for QpPage {
    fn put(&self, out: &mut Vec<u8>) {
        self.next.put(out);
        let names: Vec<String> = QpCounters::default().rows().map(|(name, _)| name.to_owned()).collect();
        names.put(out);
        self.qps.put(out);
        self.qps.iter().flat_map(|qp| qp.counters.rows()).for_each(|(_, value)| value.put(out));
    }

    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let (next, names) = (Field::get(from)?, Vec::<String>::get(from)?);
        let mut qps = Vec::<QpStatus>::get(from)?;
        for qp in &mut qps {
            for name in &names {
                // Another version may have other counters.
                let _known = qp.counters.set(name, u64::get(from)?);
            }
        }
        Some(Self { qps, next })
    }
}

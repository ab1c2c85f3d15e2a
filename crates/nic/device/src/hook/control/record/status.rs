//! Encoding of an engine's status. Counters are sent with their names, once per page, because versions
//! differ in them.

use std::str::FromStr;

use transport::QpCounters;
use wire::{Psn, Qpn};

use super::{Reader, Writer};
use crate::status::{EngineStatus, ObjectKind, ObjectPage, ObjectStatus, QpPage, QpStatus};

impl Writer {
    pub(super) fn engine(&mut self, engine: &EngineStatus) {
        self.text(&engine.device);
        self.text(&engine.netdev);
        self.text(&engine.port);
        self.rows(&engine.counters);
    }

    pub(super) fn page(&mut self, page: &QpPage) {
        self.u32(page.next.unwrap_or(u32::MAX));
        let names: Vec<&str> = QpCounters::default().rows().map(|(name, _)| name).collect();
        self.list(&names, |out, name| out.text(name));
        self.list(&page.qps, Writer::queue_pair);
    }

    fn queue_pair(&mut self, qp: &QpStatus) {
        self.u32(qp.qpn.value());
        self.text(&qp.service);
        self.text(&qp.state);
        self.address(qp.local);
        self.address(qp.remote);
        self.option(qp.dest_qpn.map(|qpn| u64::from(qpn.value())));
        let words = [
            qp.path_mtu,
            qp.sq_psn.value(),
            qp.rq_psn.value(),
            qp.max_send_wr,
            qp.max_recv_wr,
            qp.in_flight,
            qp.pending,
        ];
        words.into_iter().for_each(|word| self.u32(word));
        let bytes = [
            qp.timeout,
            qp.retry_cnt,
            qp.rnr_retry,
            qp.max_rd_atomic,
            qp.max_dest_rd_atomic,
            qp.traffic_class,
        ];
        bytes.into_iter().for_each(|byte| self.u8(byte));
        self.option(qp.round_trip_ns);
        self.option(qp.paced_bps);
        qp.counters.rows().for_each(|(_, value)| self.u64(value));
    }

    pub(super) fn objects(&mut self, page: &ObjectPage) {
        self.option(page.next.map(u64::from));
        self.list(&page.objects, Writer::object);
    }

    fn object(&mut self, object: &ObjectStatus) {
        match *object {
            ObjectStatus::Pd { id, ctx, users } => {
                self.u8(ObjectKind::Pd as u8);
                self.u32(id);
                self.u32(ctx);
                self.u64(users);
            }
            ObjectStatus::Cq { id, ctx, entries, users } => {
                self.u8(ObjectKind::Cq as u8);
                self.u32(id);
                self.u32(ctx);
                self.u32(entries);
                self.u64(users);
            }
            ObjectStatus::Mr { id, key, len, pd } => {
                self.u8(ObjectKind::Mr as u8);
                self.u32(id);
                self.u32(key);
                self.u64(len);
                self.u32(pd);
            }
            ObjectStatus::CmId { id, state, port_space, qpn, local, remote } => {
                self.u8(ObjectKind::CmId as u8);
                self.u32(id);
                self.u8(state);
                self.u32(port_space.into());
                self.option(qpn.map(|qpn| u64::from(qpn.value())));
                self.address(local);
                self.address(remote);
            }
            ObjectStatus::Ctx { id } => {
                self.u8(ObjectKind::Ctx as u8);
                self.u32(id);
            }
            ObjectStatus::Srq { id, pd, cq, ref qps } => {
                self.u8(ObjectKind::Srq as u8);
                self.u32(id);
                self.u32(pd);
                self.option(cq.map(u64::from));
                self.list(qps, |out, qpn| out.u32(qpn.value()));
            }
        }
    }

    fn address(&mut self, address: Option<impl ToString>) {
        self.text(&address.map(|address| address.to_string()).unwrap_or_default());
    }

    fn option(&mut self, value: Option<u64>) {
        self.u8(u8::from(value.is_some()));
        self.u64(value.unwrap_or(0));
    }
}

impl Reader<'_> {
    pub(super) fn engine(&mut self) -> Option<EngineStatus> {
        Some(EngineStatus {
            device: self.text()?,
            netdev: self.text()?,
            port: self.text()?,
            counters: self.rows()?,
        })
    }

    pub(super) fn page(&mut self) -> Option<QpPage> {
        let next = match self.u32()? {
            u32::MAX => None,
            next => Some(next),
        };
        let names = self.list(Reader::text)?;
        Some(QpPage { qps: self.list(|fields| fields.queue_pair(&names))?, next })
    }

    fn queue_pair(&mut self, names: &[String]) -> Option<QpStatus> {
        let mut qp = QpStatus {
            qpn: Qpn::new(self.u32()?),
            service: self.text()?,
            state: self.text()?,
            local: self.address()?,
            remote: self.address()?,
            dest_qpn: self.option()?.map(|qpn| Qpn::new(qpn as u32)),
            path_mtu: self.u32()?,
            sq_psn: Psn::new(self.u32()?),
            rq_psn: Psn::new(self.u32()?),
            max_send_wr: self.u32()?,
            max_recv_wr: self.u32()?,
            in_flight: self.u32()?,
            pending: self.u32()?,
            timeout: self.u8()?,
            retry_cnt: self.u8()?,
            rnr_retry: self.u8()?,
            max_rd_atomic: self.u8()?,
            max_dest_rd_atomic: self.u8()?,
            traffic_class: self.u8()?,
            round_trip_ns: self.option()?,
            paced_bps: self.option()?,
            counters: QpCounters::default(),
        };
        for name in names {
            // A counter of another version may be unknown here.
            let _known = qp.counters.set(name, self.u64()?);
        }
        Some(qp)
    }

    pub(super) fn kind(&mut self) -> Option<ObjectKind> {
        let kind = self.u8()?;
        ObjectKind::ALL.into_iter().find(|known| *known as u8 == kind)
    }

    pub(super) fn objects(&mut self) -> Option<ObjectPage> {
        let next = self.option()?.map(|next| next as u32);
        Some(ObjectPage { next, objects: self.list(Reader::object)? })
    }

    fn object(&mut self) -> Option<ObjectStatus> {
        let (kind, id) = (self.kind()?, self.u32()?);
        Some(match kind {
            ObjectKind::Pd => ObjectStatus::Pd { id, ctx: self.u32()?, users: self.u64()? },
            ObjectKind::Cq => {
                let (ctx, entries) = (self.u32()?, self.u32()?);
                ObjectStatus::Cq { id, ctx, entries, users: self.u64()? }
            }
            ObjectKind::Mr => ObjectStatus::Mr { id, key: self.u32()?, len: self.u64()?, pd: self.u32()? },
            ObjectKind::CmId => ObjectStatus::CmId {
                id,
                state: self.u8()?,
                port_space: self.u32()? as u16,
                qpn: self.option()?.map(|qpn| Qpn::new(qpn as u32)),
                local: self.address()?,
                remote: self.address()?,
            },
            ObjectKind::Ctx => ObjectStatus::Ctx { id },
            ObjectKind::Srq => ObjectStatus::Srq {
                id,
                pd: self.u32()?,
                cq: self.option()?.map(|cq| cq as u32),
                qps: self.list(|fields| Some(Qpn::new(fields.u32()?)))?,
            },
        })
    }

    fn address<T: FromStr>(&mut self) -> Option<Option<T>> {
        match self.text()?.as_str() {
            "" => Some(None),
            text => text.parse().ok().map(Some),
        }
    }

    fn option(&mut self) -> Option<Option<u64>> {
        let (there, value) = (self.u8()? != 0, self.u64()?);
        Some(there.then_some(value))
    }
}

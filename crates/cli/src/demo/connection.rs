//! TEMPORARY
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use roxie::verbs::Context;
use transport::{Access, AddressVector, PathMtu, QpAttr, QpAttrMask, QpState};
use wire::{Gid, Psn, Qpn};

use super::endpoint::{Endpoint, Remote};
use super::report::Report;
use crate::failure::{During, Outcome};

fn go(end: &Endpoint, stream: &mut TcpStream, ip: std::net::IpAddr, first: bool) -> Outcome<Remote> {
    let ctx: &Context = end.qp.pd().context();
    let idx = ctx.gids().iter().position(|g| g.gid.ip() == ip).expect("gid") as u8;
    stream.write_all(&end.invitation()).during("tcp")?;
    stream.write_all(&end.qp.qpn().value().to_le_bytes()).during("tcp")?;
    let mut b = [0; 16];
    stream.read_exact(&mut b).during("tcp")?;
    let qpn = u32::from_le_bytes([b[12], b[13], b[14], b[15]]);
    let attr = QpAttr {
        state: QpState::Init, port_num: 1,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE,
        ..QpAttr::default()
    };
    end.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS).during("init")?;
    if first { end.expect_order()?; }
    let attr = QpAttr {
        state: QpState::Rtr, path_mtu: ctx.query_port().active_mtu, rq_psn: Psn::new(7), dest_qp: Qpn::new(qpn),
        av: AddressVector { dgid: Gid::from(ip), sgid_index: idx, hop_limit: 64, traffic_class: 0, flow_label: 0, sl: 0 },
        max_dest_rd_atomic: 16, min_rnr_timer: 12, ..QpAttr::default()
    };
    end.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN | QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER).during("rtr")?;
    let attr = QpAttr { state: QpState::Rts, sq_psn: Psn::new(7), timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 16, ..QpAttr::default() };
    end.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::TIMEOUT | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::SQ_PSN | QpAttrMask::MAX_QP_RD_ATOMIC).during("rts")?;
    let _ = PathMtu::M1024;
    stream.write_all(&[1]).during("tcp")?;
    stream.read_exact(&mut [0]).during("tcp")?;
    Remote::decode(&b[..12])
}

pub(super) fn accept(end: &Endpoint, address: SocketAddr) -> Outcome<TcpStream> {
    let l = TcpListener::bind(address).during("listen")?;
    Report::Listening { port: l.local_addr().during("x")?.port() }.say()?;
    let (mut s, _) = l.accept().during("accept")?;
    go(end, &mut s, address.ip(), true)?;
    Ok(s)
}
pub(super) fn connect(end: &Endpoint, address: SocketAddr) -> Outcome<(TcpStream, Remote)> {
    let mut s = TcpStream::connect(address).during("connect")?;
    let r = go(end, &mut s, address.ip(), false)?;
    Ok((s, r))
}

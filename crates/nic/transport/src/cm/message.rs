//! Messages, filled as Linux does (cm.c cm_format_req and its relatives, cma.c cma_format_hdr).

use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;

use wire::cm::{Answered, Drep, Dreq, IpCmHeader, Mra, Path as WirePath, Rej, RejReason, Rep, Req, Rtu};
use wire::cm::{ServiceId, SidrRep, SidrReq};
use wire::mad::MAD_LEN;
use wire::{Gid, PKey, Qpn};

use super::conn::Conn;
use super::mads::MadBytes;
use super::params::{AcceptParams, CmConfig, CmId, ConnectParams, Path, SidrAnswer, SidrParams, Transport};
use super::{Cm, timing};

impl Cm {
    /// A transaction id: 32 bits that only the peer sees above, our communication id below. Replies to a REQ
    /// or SIDR_REQ repeat it, so a host that does not see our packets cannot forge them.
    pub(super) fn fresh_tid(&self, id: CmId) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.config.tid_key, id.0).hash(&mut hasher);
        hasher.finish() << 32 | u64::from(id.0)
    }
}

pub(super) fn req(
    config: &CmConfig,
    id: CmId,
    conn: &Conn,
    params: &ConnectParams<'_>,
    ack_timeout: u8,
) -> Box<MadBytes> {
    // As in Linux, fields that an XRC sender does not have stay 0.
    let is_xrc = params.transport == Transport::Xrc;
    let unless_xrc = |value: u8| if is_xrc { 0 } else { value };
    let mut message = Req {
        tid: conn.tid,
        local_comm_id: id.0,
        service_id: params.service_id,
        local_ca_guid: config.ca_guid,
        local_qpn: params.qp.qpn,
        responder_resources: unless_xrc(params.responder_resources),
        initiator_depth: params.initiator_depth,
        remote_cm_response_timeout: timing::RESPONSE_TIMEOUT,
        transport: match params.transport {
            Transport::Rc => Req::TRANSPORT_RC,
            Transport::Uc => Req::TRANSPORT_UC,
            Transport::Xrc => Req::TRANSPORT_EXTENDED,
        },
        extended_transport: if is_xrc { Req::EXTENDED_XRC } else { 0 },
        flow_control: params.flow_control,
        starting_psn: params.qp.starting_psn,
        local_cm_response_timeout: timing::RESPONSE_TIMEOUT,
        retry_count: unless_xrc(conn.retry_count),
        p_key: PKey::DEFAULT,
        path_mtu: params.path_mtu as u8,
        rnr_retry_count: unless_xrc(params.rnr_retry_count.min(7)),
        max_cm_retries: timing::MAX_CM_RETRIES,
        srq: params.qp.srq && !is_xrc,
        primary: WirePath {
            local_lid: WirePath::PERMISSIVE_LID,
            remote_lid: WirePath::PERMISSIVE_LID,
            local_gid: params.path.src,
            remote_gid: params.path.dst,
            flow_label: params.path.flow_label,
            traffic_class: params.path.traffic_class,
            hop_limit: params.path.hop_limit,
            sl: params.path.sl,
            subnet_local: params.path.hop_limit <= 1,
            ack_timeout,
            ..WirePath::default()
        },
        ..Req::default()
    };
    put_ip_header(&mut message.private_data, &params.path, params.private_data);
    emit(|mad| message.emit(mad))
}

pub(super) fn rep(config: &CmConfig, id: CmId, conn: &Conn, params: &AcceptParams<'_>) -> Box<MadBytes> {
    // The number of an XRC receiver has a field of its own; fields that it does not have stay 0.
    let is_xrc = conn.transport == Transport::Xrc;
    let (local_qpn, local_eecn) =
        if is_xrc { (Qpn::new(0), params.qp.qpn.value()) } else { (params.qp.qpn, 0) };
    let mut message = Rep {
        tid: conn.tid,
        local_comm_id: id.0,
        remote_comm_id: conn.remote_id,
        local_qpn,
        local_eecn,
        starting_psn: params.qp.starting_psn,
        responder_resources: params.responder_resources,
        initiator_depth: if is_xrc { 0 } else { params.initiator_depth },
        target_ack_delay: config.ack_delay,
        flow_control: params.flow_control && !is_xrc,
        rnr_retry_count: params.rnr_retry_count.min(7),
        srq: params.qp.srq || is_xrc,
        local_ca_guid: config.ca_guid,
        ..Rep::default()
    };
    fill(&mut message.private_data, params.private_data);
    emit(|mad| message.emit(mad))
}

pub(super) fn rtu(id: CmId, conn: &Conn, private_data: &[u8]) -> Box<MadBytes> {
    let mut message =
        Rtu { tid: conn.tid, local_comm_id: id.0, remote_comm_id: conn.remote_id, ..Rtu::default() };
    fill(&mut message.private_data, private_data);
    emit(|mad| message.emit(mad))
}

pub(super) fn mra(id: CmId, conn: &Conn, received: Answered) -> Box<MadBytes> {
    let message = Mra {
        tid: conn.tid,
        local_comm_id: id.0,
        remote_comm_id: conn.remote_id,
        message: received,
        service_timeout: timing::MRA_SERVICE_TIMEOUT,
        ..Mra::default()
    };
    emit(|mad| message.emit(mad))
}

pub(super) fn dreq(id: CmId, conn: &Conn, private_data: &[u8]) -> Box<MadBytes> {
    let mut message = Dreq {
        tid: conn.tid,
        local_comm_id: id.0,
        remote_comm_id: conn.remote_id,
        remote_qpn: conn.remote_qpn,
        ..Dreq::default()
    };
    fill(&mut message.private_data, private_data);
    emit(|mad| message.emit(mad))
}

/// `ids` are ours and the peer's.
pub(super) fn drep(tid: u64, ids: (u32, u32), private_data: &[u8]) -> Box<MadBytes> {
    let mut message = Drep { tid, local_comm_id: ids.0, remote_comm_id: ids.1, ..Drep::default() };
    fill(&mut message.private_data, private_data);
    emit(|mad| message.emit(mad))
}

/// A REJ to be filled further; `ids` are ours and the peer's.
pub(super) fn rej(tid: u64, ids: (u32, u32), rejected: Answered, reason: RejReason, ari: &[u8]) -> Rej {
    let mut message = Rej {
        tid,
        local_comm_id: ids.0,
        remote_comm_id: ids.1,
        message: rejected,
        reason,
        ari_len: ari.len() as u8,
        ..Rej::default()
    };
    fill(&mut message.ari, ari);
    message
}

pub(super) fn sidr_req(tid: u64, id: CmId, params: &SidrParams<'_>) -> Box<MadBytes> {
    let mut message = SidrReq {
        tid,
        request_id: id.0,
        p_key: PKey::DEFAULT,
        service_id: params.service_id,
        ..SidrReq::default()
    };
    put_ip_header(&mut message.private_data, &params.path, params.private_data);
    emit(|mad| message.emit(mad))
}

pub(super) fn sidr_rep(
    tid: u64,
    request_id: u32,
    service_id: ServiceId,
    reply: &SidrAnswer<'_>,
) -> Box<MadBytes> {
    let mut message = SidrRep {
        tid,
        request_id,
        status: reply.status,
        qpn: reply.qpn,
        service_id,
        q_key: reply.q_key,
        ..SidrRep::default()
    };
    fill(&mut message.private_data, reply.private_data);
    emit(|mad| message.emit(mad))
}

/// A message in a new buffer.
pub(super) fn emit(write: impl FnOnce(&mut MadBytes)) -> Box<MadBytes> {
    let mut mad = Box::new([0; MAD_LEN]);
    write(&mut mad);
    mad
}

/// Copies private data; the caller has checked that it fits.
pub(super) fn fill(field: &mut [u8], bytes: &[u8]) {
    debug_assert!(bytes.len() <= field.len());
    for (to, from) in field.iter_mut().zip(bytes) {
        *to = *from;
    }
}

fn put_ip_header(private_data: &mut [u8], path: &Path, user_data: &[u8]) {
    let header = IpCmHeader { src_port: path.src_port, src: path.src.ip(), dst: path.dst.ip() };
    if let Some((first, rest)) = private_data.split_first_chunk_mut() {
        header.emit(first);
        fill(rest, user_data);
    }
}

/// The address that a request was sent to.
pub(super) fn destination(header: Option<IpCmHeader>, mad_dst: Gid) -> Gid {
    header.map_or(mad_dst, |header| Gid::from(header.dst))
}

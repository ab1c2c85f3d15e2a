//! Dissects messages of the connection manager.

use wire::cm::{Apr, Drep, Dreq, IpCmHeader, Lap, Mra, Path, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use wire::{CmMessage, Gid, MAD_LEN, MadHeader};

use super::{Layer, Value};

/// The layer of a message; `mad` is the complete MAD.
pub(super) fn layer<'a>(message: &CmMessage, mad: &'a [u8; MAD_LEN]) -> Layer<'a> {
    let body = &mad[MadHeader::LEN..];
    match message {
        CmMessage::Req(m) => req(m, body),
        CmMessage::Rep(m) => rep(m, body),
        CmMessage::Rtu(m) => rtu(m, body),
        CmMessage::Mra(m) => mra(m, body),
        CmMessage::Rej(m) => rej(m, body),
        CmMessage::Dreq(m) => dreq(m, body),
        CmMessage::Drep(m) => drep(m, body),
        CmMessage::SidrReq(m) => sidr_req(m, body),
        CmMessage::SidrRep(m) => sidr_rep(m, body),
        CmMessage::Lap(m) => lap(m, body),
        CmMessage::Apr(m) => apr(m, body),
    }
}

fn req<'a>(m: &Req, body: &'a [u8]) -> Layer<'a> {
    let mut layer = Layer::new("CM ConnectRequest")
        .hex("infiniband.cm.req", "Local Communication ID", 8, m.local_comm_id)
        .hex("roxie.cm.req.ece_vendor_id", "ECE Vendor ID", 6, m.ece_vendor_id)
        .hex("infiniband.cm.req.serviceid", "Service ID", 16, m.service_id.0)
        .means(m.service_id.to_string())
        .hex("infiniband.cm.req.localcaguid", "Local CA GUID", 16, m.local_ca_guid)
        .hex("infiniband.cm.req.localqkey", "Local Q_Key", 8, m.local_qkey.0)
        .hex("infiniband.cm.req.localqpn", "Local QPN", 6, m.local_qpn.value())
        .hex("infiniband.cm.req.responderres", "Responder Resources", 2, m.responder_resources)
        .hex("infiniband.cm.req.localeecn", "Local EECN", 6, m.local_eecn)
        .hex("infiniband.cm.req.initdepth", "Initiator Depth", 2, m.initiator_depth)
        .hex("infiniband.cm.req.remoteeecn", "Remote EECN", 6, m.remote_eecn)
        .hex(
            "infiniband.cm.req.remoteresptout",
            "Remote CM Response Timeout",
            2,
            m.remote_cm_response_timeout,
        )
        .means(interval(m.remote_cm_response_timeout))
        .hex("infiniband.cm.req.transpsvctype", "Transport Service Type", 2, m.transport)
        .means(transport(m))
        .hex("infiniband.cm.req.e2eflowctrl", "End-to-End Flow Control", 2, m.flow_control)
        .hex("infiniband.cm.req.startpsn", "Starting PSN", 6, m.starting_psn.value())
        .hex("infiniband.cm.req.localresptout", "Local CM Response Timeout", 2, m.local_cm_response_timeout)
        .means(interval(m.local_cm_response_timeout))
        .hex("infiniband.cm.req.retrcount", "Retry Count", 2, m.retry_count)
        .hex("infiniband.cm.req.pkey", "Partition Key", 4, m.p_key.0)
        .hex("infiniband.cm.req.pppmtu", "Path Packet Payload MTU", 2, m.path_mtu)
        .means(mtu(m.path_mtu))
        .hex("infiniband.cm.req.rdcexist", "RDC Exists", 2, m.rdc_exists)
        .hex("infiniband.cm.req.rnrretrcount", "RNR Retry Count", 2, m.rnr_retry_count)
        .means(rnr(m.rnr_retry_count))
        .hex("infiniband.cm.req.maxcmretr", "Max CM Retries", 2, m.max_cm_retries)
        .hex("infiniband.cm.req.srq", "SRQ", 2, m.srq)
        .hex("infiniband.cm.req.ext_transport", "Extended Transport", 2, m.extended_transport);
    layer = path(layer, "prim", &m.primary, &body[52..]);
    layer = path(layer, "alt", &m.alternate, &body[96..]);
    ip_header(layer, m.ip_header(), &body[140..])
}

fn rep<'a>(m: &Rep, body: &'a [u8]) -> Layer<'a> {
    Layer::new("CM ConnectReply")
        .hex("infiniband.cm.rep", "Local Communication ID", 8, m.local_comm_id)
        .hex("infiniband.cm.rep.remotecommid", "Remote Communication ID", 8, m.remote_comm_id)
        .hex("infiniband.cm.rep.localqkey", "Local Q_Key", 8, m.local_qkey.0)
        .hex("infiniband.cm.rep.localqpn", "Local QPN", 6, m.local_qpn.value())
        .hex("roxie.cm.rep.ece_vendor_id", "ECE Vendor ID", 6, m.ece_vendor_id)
        .hex("infiniband.cm.rep.localeecn", "Local EE Context Number", 6, m.local_eecn)
        .hex("infiniband.cm.rep.startpsn", "Starting PSN", 6, m.starting_psn.value())
        .hex("infiniband.cm.rep.respres", "Responder Resources", 2, m.responder_resources)
        .hex("infiniband.cm.rep.initdepth", "Initiator Depth", 2, m.initiator_depth)
        .hex("infiniband.cm.rep.tgtackdelay", "Target ACK Delay", 2, m.target_ack_delay)
        .means(interval(m.target_ack_delay))
        .hex("infiniband.cm.rep.failoveracc", "Failover Accepted", 2, m.failover_accepted)
        .hex("infiniband.cm.rep.e2eflowctrl", "End-To-End Flow Control", 2, m.flow_control)
        .hex("infiniband.cm.rep.rnrretrcount", "RNR Retry Count", 2, m.rnr_retry_count)
        .means(rnr(m.rnr_retry_count))
        .hex("infiniband.cm.rep.srq", "SRQ", 2, m.srq)
        .hex("infiniband.cm.rep.localcaguid", "Local CA GUID", 16, m.local_ca_guid)
        .bytes("infiniband.cm.rep.private", "Private Data", &body[36..])
}

fn rtu<'a>(m: &Rtu, body: &'a [u8]) -> Layer<'a> {
    Layer::new("CM ReadyToUse")
        .hex("infiniband.cm.rtu.localcommid", "Local Communication ID", 8, m.local_comm_id)
        .hex("infiniband.cm.rtu.remotecommid", "Remote Communication ID", 8, m.remote_comm_id)
        .bytes("infiniband.cm.rtu.private", "Private Data", &body[8..])
}

fn mra<'a>(m: &Mra, body: &'a [u8]) -> Layer<'a> {
    Layer::new("CM MsgRcptAck")
        .hex("roxie.cm.mra.localcommid", "Local Communication ID", 8, m.local_comm_id)
        .hex("roxie.cm.mra.remotecommid", "Remote Communication ID", 8, m.remote_comm_id)
        .hex("roxie.cm.mra.msgmraed", "Message MRAed", 2, m.message.0)
        .means(m.message.to_string())
        .hex("roxie.cm.mra.svctimeout", "Service Timeout", 2, m.service_timeout)
        .means(interval(m.service_timeout))
        .bytes("roxie.cm.mra.private", "Private Data", &body[10..])
}

fn rej<'a>(m: &Rej, body: &'a [u8]) -> Layer<'a> {
    Layer::new("CM ConnectReject")
        .hex("infiniband.cm.rej.localcommid", "Local Communication ID", 8, m.local_comm_id)
        .hex("infiniband.cm.rej.remotecommid", "Remote Communication ID", 8, m.remote_comm_id)
        .hex("infiniband.cm.rej.msgrej", "Message REJected", 2, m.message.0)
        .means(m.message.to_string())
        .hex("infiniband.cm.rej.rejinfolen", "Reject Info Length", 2, m.ari_len)
        .hex("infiniband.cm.rej.reason", "Reason", 4, m.reason.0)
        .means(m.reason.to_string())
        .bytes("infiniband.cm.rej.ari", "Additional Reject Information", &body[12..84])
        .bytes("infiniband.cm.rej.private", "Private Data", &body[84..])
}

fn dreq<'a>(m: &Dreq, body: &'a [u8]) -> Layer<'a> {
    Layer::new("CM DisconnectRequest")
        .hex("infiniband.cm.dreq.localcommid", "Local Communication ID", 8, m.local_comm_id)
        .hex("infiniband.cm.dreq.remotecommid", "Remote Communication ID", 8, m.remote_comm_id)
        .hex("infiniband.cm.req.remoteqpneecn", "Remote QPN/EECN", 6, m.remote_qpn.value())
        .bytes("infiniband.cm.dreq.private", "Private Data", &body[12..])
}

fn drep<'a>(m: &Drep, body: &'a [u8]) -> Layer<'a> {
    Layer::new("CM DisconnectReply")
        .hex("infiniband.cm.drsp.localcommid", "Local Communication ID", 8, m.local_comm_id)
        .hex("infiniband.cm.drsp.remotecommid", "Remote Communication ID", 8, m.remote_comm_id)
        .bytes("infiniband.cm.drsp.private", "Private Data", &body[8..])
}

fn sidr_req<'a>(m: &SidrReq, body: &'a [u8]) -> Layer<'a> {
    let layer = Layer::new("CM ServiceIDResolutionRequest")
        .hex("roxie.cm.sidr_req.requestid", "Request ID", 8, m.request_id)
        .hex("roxie.cm.sidr_req.pkey", "Partition Key", 4, m.p_key.0)
        .hex("roxie.cm.sidr_req.serviceid", "Service ID", 16, m.service_id.0)
        .means(m.service_id.to_string());
    ip_header(layer, m.ip_header(), &body[16..])
}

fn sidr_rep<'a>(m: &SidrRep, body: &'a [u8]) -> Layer<'a> {
    Layer::new("CM ServiceIDResolutionResponse")
        .hex("roxie.cm.sidr_rep.requestid", "Request ID", 8, m.request_id)
        .hex("roxie.cm.sidr_rep.status", "Status", 2, m.status.0)
        .means(m.status.to_string())
        .number("roxie.cm.sidr_rep.infolen", "Info Length", m.info_len)
        .hex("roxie.cm.sidr_rep.ece_vendor_id", "ECE Vendor ID", 6, m.ece_vendor_id)
        .hex("roxie.cm.sidr_rep.qpn", "QPN", 6, m.qpn.value())
        .hex("roxie.cm.sidr_rep.serviceid", "Service ID", 16, m.service_id.0)
        .means(m.service_id.to_string())
        .hex("roxie.cm.sidr_rep.qkey", "Q_Key", 8, m.q_key.0)
        .bytes("roxie.cm.sidr_rep.info", "Additional Information", &body[24..96])
        .bytes("roxie.cm.sidr_rep.private", "Private Data", &body[96..])
}

fn lap<'a>(m: &Lap, body: &'a [u8]) -> Layer<'a> {
    Layer::new("CM LoadAlternatePath")
        .hex("roxie.cm.lap.localcommid", "Local Communication ID", 8, m.local_comm_id)
        .hex("roxie.cm.lap.remotecommid", "Remote Communication ID", 8, m.remote_comm_id)
        .hex("roxie.cm.lap.remoteqpn", "Remote QPN", 6, m.remote_qpn.value())
        .hex("roxie.cm.lap.remoteresptout", "Remote CM Response Timeout", 2, m.remote_cm_response_timeout)
        .means(interval(m.remote_cm_response_timeout))
        .number("roxie.cm.lap.locallid", "Alternate Local Port LID", m.local_lid)
        .number("roxie.cm.lap.remotelid", "Alternate Remote Port LID", m.remote_lid)
        .add("roxie.cm.lap.localgid", "Alternate Local Port GID", gid(m.local_gid))
        .add("roxie.cm.lap.remotegid", "Alternate Remote Port GID", gid(m.remote_gid))
        .hex("roxie.cm.lap.flowlabel", "Flow Label", 5, m.flow_label)
        .hex("roxie.cm.lap.tfcclass", "Traffic Class", 2, m.traffic_class)
        .hex("roxie.cm.lap.hoplim", "Hop Limit", 2, m.hop_limit)
        .hex("roxie.cm.lap.pktrate", "Packet Rate", 2, m.packet_rate)
        .hex("roxie.cm.lap.sl", "SL", 2, m.sl)
        .flag("roxie.cm.lap.subnetlocal", "Subnet Local", m.subnet_local)
        .hex("roxie.cm.lap.localacktout", "Local ACK Timeout", 2, m.ack_timeout)
        .means(interval(m.ack_timeout))
        .bytes("roxie.cm.lap.private", "Private Data", &body[64..])
}

fn apr<'a>(m: &Apr, body: &'a [u8]) -> Layer<'a> {
    Layer::new("CM AlternatePathResponse")
        .hex("roxie.cm.apr.localcommid", "Local Communication ID", 8, m.local_comm_id)
        .hex("roxie.cm.apr.remotecommid", "Remote Communication ID", 8, m.remote_comm_id)
        .number("roxie.cm.apr.infolen", "Info Length", m.info_len)
        .number("roxie.cm.apr.status", "Status", m.status)
        .bytes("roxie.cm.apr.info", "Additional Information", &body[12..84])
        .bytes("roxie.cm.apr.private", "Private Data", &body[84..])
}

/// Adds the fields of a path; `body` begins with it.
fn path<'a>(mut layer: Layer<'a>, which: &str, path: &Path, body: &'a [u8]) -> Layer<'a> {
    let name = |field: &str| format!("infiniband.cm.req.{which}_{field}");
    let is_primary = which == "prim";
    layer = layer
        .number(name("locallid"), "Local Port LID", path.local_lid)
        .means(if is_primary { "primary path" } else { "alternate path" })
        .number(name("remotelid"), "Remote Port LID", path.remote_lid);
    let gids = [
        ("localgid", "Local Port GID", path.local_gid, 4),
        ("remotegid", "Remote Port GID", path.remote_gid, 20),
    ];
    for (field, label, gid, at) in gids {
        layer = match gid.ip() {
            // Wireshark has no fields for the GIDs of the alternate path.
            _ if !is_primary => layer.bytes(name(field), label, &body[at..at + 16]),
            ip if ip.is_ipv4() => layer.add(name(field) + "_ipv4", label, Value::Ip(ip)),
            ip => layer.add(name(field), label, Value::Ip(ip)),
        };
    }
    layer
        .hex(name("flowlabel"), "Flow Label", 5, path.flow_label)
        .hex(name("pktrate"), "Packet Rate", 2, path.packet_rate)
        .hex(name("tfcclass"), "Traffic Class", 2, path.traffic_class)
        .hex(name("hoplim"), "Hop Limit", 2, path.hop_limit)
        .hex(name("sl"), "SL", 1, path.sl)
        .hex(name("subnetlocal"), "Subnet Local", 1, path.subnet_local)
        .hex(name("localacktout"), "Local ACK Timeout", 2, path.ack_timeout)
        .means(interval(path.ack_timeout))
}

/// The IP addressing header of rdma_cm, and the application's private data behind it.
fn ip_header<'a>(layer: Layer<'a>, header: Option<IpCmHeader>, private: &'a [u8]) -> Layer<'a> {
    let Some(ip) = header else {
        return layer.bytes("infiniband.cm.req.private", "Private Data", private);
    };
    let version = if ip.src.is_ipv4() { 4 } else { 6 };
    layer
        .hex("infiniband.cm.req.ip_cm.majv", "IP CM Major Version", 1, private[0] >> 4)
        .hex("infiniband.cm.req.ip_cm.minv", "IP CM Minor Version", 1, private[0] & 0xf)
        .hex("infiniband.cm.req.ip_cm.ipv", "IP CM IP Version", 1, private[1] >> 4)
        .hex("infiniband.cm.req.ip_cm.sport", "IP CM Source Port", 4, ip.src_port)
        .means(ip.src_port.to_string())
        .add(format!("infiniband.cm.req.ip_cm.sip{version}"), "IP CM Source IP", Value::Ip(ip.src))
        .add(format!("infiniband.cm.req.ip_cm.dip{version}"), "IP CM Destination IP", Value::Ip(ip.dst))
        .bytes("infiniband.cm.req.ip_cm.private", "Private Data", &private[IpCmHeader::LEN..])
}

fn gid(gid: Gid) -> Value<'static> {
    Value::Ip(gid.ip())
}

/// A time encoded as the exponent of 4.096 us * 2^n.
fn interval(code: u8) -> String {
    let us = 4.096 * f64::from(1u32.checked_shl(code.into()).unwrap_or(0));
    match us {
        us if us < 1000.0 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

fn transport(req: &Req) -> &'static str {
    match (req.transport, req.extended_transport) {
        (Req::TRANSPORT_RC, _) => "RC",
        (Req::TRANSPORT_UC, _) => "UC",
        (2, _) => "RD",
        (_, 1) => "XRC",
        _ => "reserved",
    }
}

fn mtu(code: u8) -> String {
    match code {
        1..=5 => format!("{} bytes", 128 << code),
        _ => "reserved".to_owned(),
    }
}

fn rnr(count: u8) -> String {
    if count == 7 { "for ever".to_owned() } else { format!("{count} times") }
}

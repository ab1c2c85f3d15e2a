//! CM messages against vectors of another implementation: each MAD alone, and the frame that carries it. A
//! kernel rping server replied to exactly this REQ.

mod hex;

use core::net::{IpAddr, Ipv4Addr};

use hex::bytes;
use roxie_wire::cm::{
    Answered, Drep, Dreq, IpCmHeader, Mra, Path, Rej, RejReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq,
    SidrStatus, private_data,
};
use roxie_wire::{
    CmMessage, Deth, Gid, IcrcHeader, MAD_LEN, Opcode, Packet, Psn, QKey, Qpn, ROCE_PORT, icrc_of_frame,
};

macro_rules! vectors {
    ($($name:literal),*) => {
        [$((
            $name,
            include_str!(concat!("vectors/cm/", $name, ".mad.hex")),
            include_str!(concat!("vectors/cm/", $name, ".frame.hex")),
        )),*]
    };
}

const VECTORS: [(&str, &str, &str); 10] =
    vectors!("req", "rep", "rtu", "rej", "rej_timeout", "dreq", "drep", "mra", "sidr_req", "sidr_rep");

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const TID: u64 = 0x1_1122_3344;
/// Communication ids of the active and the passive side.
const ACTIVE: u32 = 0x1122_3344;
const PASSIVE: u32 = 0x5566_7788;
const ACTIVE_GUID: u64 = 0x0000_0aff_fe00_0001;
const PASSIVE_GUID: u64 = 0x0000_0aff_fe00_0002;

fn mad(hex: &str) -> [u8; MAD_LEN] {
    bytes(hex).try_into().unwrap()
}

fn message(name: &str) -> CmMessage {
    CmMessage::parse(&mad(VECTORS.iter().find(|v| v.0 == name).unwrap().1)).unwrap()
}

#[test]
fn every_vector_survives_parse_and_emit() {
    for (name, hex, _) in VECTORS {
        let want = mad(hex);
        let mut got = [0xee; MAD_LEN];
        CmMessage::parse(&want).unwrap().emit(&mut got);
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn every_vector_is_a_ud_datagram_to_qp_1() {
    for (name, hex, frame) in VECTORS {
        let frame = bytes(frame);
        assert_eq!(frame.len(), 322, "{name}");
        let payload = &frame[42..];
        let packet = Packet::parse(payload).unwrap();
        assert_eq!((packet.bth.opcode, packet.bth.dest_qp), (Opcode::UD_SEND_ONLY, Qpn::GSI), "{name}");
        assert_eq!(packet.deth(), Some(Deth { q_key: QKey::GSI, src_qp: Qpn::GSI }), "{name}");
        assert_eq!(packet.payload(), mad(hex), "{name}");
        assert_eq!(icrc_of_frame(&frame[14..]), Some(packet.icrc()), "{name}");
        let (src, dst) = if frame[29] == 1 { (A, B) } else { (B, A) };
        assert_eq!(IcrcHeader::v4(src, dst, 0xc001, ROCE_PORT).verify(0, payload), Ok(0), "{name}");
    }
}

fn ip_header_and(user: &[u8]) -> Vec<u8> {
    let mut data = [0; IpCmHeader::LEN];
    IpCmHeader { src_port: 45678, src: IpAddr::V4(A), dst: IpAddr::V4(B) }.emit(&mut data);
    [&data, user].concat()
}

#[test]
fn the_request_decodes_to_its_fields() {
    let want = Req {
        tid: TID,
        local_comm_id: ACTIVE,
        service_id: ServiceId::from_port(ServiceId::TCP, 7174),
        local_ca_guid: ACTIVE_GUID,
        local_qpn: Qpn::new(0x123),
        responder_resources: 3,
        initiator_depth: 2,
        remote_cm_response_timeout: 20,
        flow_control: true,
        starting_psn: Psn::new(0xab_cdef),
        local_cm_response_timeout: 20,
        retry_count: 7,
        path_mtu: 3,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        primary: Path {
            local_lid: Path::PERMISSIVE_LID,
            remote_lid: Path::PERMISSIVE_LID,
            local_gid: Gid::from(A),
            remote_gid: Gid::from(B),
            flow_label: 0x2_beef,
            traffic_class: 0x20,
            hop_limit: 64,
            ack_timeout: 18,
            ..Path::default()
        },
        private_data: private_data(&ip_header_and(b"roxie-req-private")).unwrap(),
        p_key: roxie_wire::PKey::DEFAULT,
        ..Req::default()
    };
    let CmMessage::Req(req) = message("req") else { panic!("not a REQ") };
    assert_eq!(req, want);
    assert_eq!(req.ip_header(), Some(IpCmHeader { src_port: 45678, src: IpAddr::V4(A), dst: IpAddr::V4(B) }));
    assert!(req.user_data().starts_with(b"roxie-req-private\0"));
    assert_eq!(req.user_data().len(), 56);
    assert_eq!(
        req.to_string(),
        "CM: ConnectRequest LocalCommID=0x11223344 ServiceID=TCP:7174 LocalQPN=0x000123 \
         StartingPSN=11259375 ResponderResources=3 InitiatorDepth=2 PathMTU=3 RetryCount=7 RNRRetryCount=6 \
         LocalGID=::ffff:10.0.0.1 RemoteGID=::ffff:10.0.0.2 HopLimit=64 AckTimeout=18 \
         10.0.0.1 port 45678 > 10.0.0.2"
    );
}

#[test]
fn the_reply_decodes_to_its_fields() {
    let want = Rep {
        tid: TID,
        local_comm_id: PASSIVE,
        remote_comm_id: ACTIVE,
        local_qpn: Qpn::new(0x456),
        starting_psn: Psn::new(0x12_3456),
        responder_resources: 2,
        initiator_depth: 3,
        target_ack_delay: 15,
        flow_control: true,
        rnr_retry_count: 6,
        local_ca_guid: PASSIVE_GUID,
        private_data: private_data(b"roxie-rep-private").unwrap(),
        ..Rep::default()
    };
    assert_eq!(message("rep"), CmMessage::Rep(want));
}

#[test]
fn the_other_messages_decode_to_their_fields() {
    let (local_comm_id, remote_comm_id, tid) = (ACTIVE, PASSIVE, TID);
    assert_eq!(message("rtu"), CmMessage::Rtu(Rtu { tid, local_comm_id, remote_comm_id, ..Rtu::default() }));

    let rej = Rej {
        tid,
        remote_comm_id: ACTIVE,
        reason: RejReason::CONSUMER_DEFINED,
        private_data: private_data(b"no thanks").unwrap(),
        ..Rej::default()
    };
    assert_eq!(message("rej"), CmMessage::Rej(rej));
    let timeout = Rej {
        tid,
        local_comm_id,
        message: Answered::OTHER,
        ari_len: 8,
        reason: RejReason::TIMEOUT,
        ari: private_data(&ACTIVE_GUID.to_be_bytes()).unwrap(),
        ..Rej::default()
    };
    let CmMessage::Rej(rej) = message("rej_timeout") else { panic!("not a REJ") };
    assert_eq!(rej, timeout);
    assert_eq!(
        rej.to_string(),
        "CM: ConnectReject LocalCommID=0x11223344 RemoteCommID=0x00000000 Message=other Reason=Timeout (4)"
    );

    let tid = 0x2_1122_3344;
    let dreq = Dreq { tid, local_comm_id, remote_comm_id, remote_qpn: Qpn::new(0x456), ..Dreq::default() };
    assert_eq!(message("dreq"), CmMessage::Dreq(dreq));
    let (local_comm_id, remote_comm_id) = (PASSIVE, ACTIVE);
    assert_eq!(
        message("drep"),
        CmMessage::Drep(Drep { tid, local_comm_id, remote_comm_id, ..Drep::default() })
    );

    let tid = TID;
    let mra = Mra { tid, local_comm_id, remote_comm_id, service_timeout: 24, ..Mra::default() };
    let CmMessage::Mra(got) = message("mra") else { panic!("not an MRA") };
    assert_eq!(got.message, Answered::REQ);
    assert_eq!(got, mra);
}

#[test]
fn service_resolution_decodes_to_its_fields() {
    let service_id = ServiceId::from_port(ServiceId::UDP, 7174);
    let CmMessage::SidrReq(req) = message("sidr_req") else { panic!("not a SIDR_REQ") };
    let want = SidrReq {
        tid: TID,
        request_id: ACTIVE,
        p_key: roxie_wire::PKey::DEFAULT,
        service_id,
        private_data: private_data(&ip_header_and(b"")).unwrap(),
        ..SidrReq::default()
    };
    assert_eq!(req, want);
    assert_eq!(req.user_data().len(), 180);

    let want = SidrRep {
        tid: TID,
        request_id: ACTIVE,
        status: SidrStatus::SUCCESS,
        qpn: Qpn::new(0x789),
        service_id,
        q_key: QKey::RDMA_UDP,
        ..SidrRep::default()
    };
    assert_eq!(message("sidr_rep"), CmMessage::SidrRep(want));
}

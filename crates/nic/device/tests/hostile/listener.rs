//! A listener for connections, and the CM messages that the hostile peer sends to it.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::time::Instant;

use roxie::cm::{CmEventKind, EventChannel, Id, PortSpace};
use roxie::registry::{DomainConfig, Membership};
use roxie::transport::numbering::ID_SHIFT;
use roxie::wire::cm::{
    Answered, CmMessage, Drep, Dreq, IpCmHeader, Mra, Path, Rej, RejReason, Rep, Req, Rtu, ServiceId,
    SidrRep, SidrReq,
};
use roxie::wire::{MAD_LEN, Opcode, PKey, Psn, QKey, Qpn};
use sys::PollFd;

use crate::lab::Lab;
use crate::packets::Fields;
use roxie_tests::random::Rng;

const DEVICE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Largest number of undecided requests.
const OPEN_MAX: usize = 32;

pub(crate) struct Listener {
    channel: EventChannel,
    _listening: Id,
    port: u16,
    open: Vec<Id>,
    pub(crate) requests: u64,
}

impl Listener {
    pub(crate) fn new(lab: &Lab) -> Self {
        let channel = EventChannel::new().expect("descriptors");
        let listening = Id::new(&lab.context, &channel, PortSpace::Tcp, 0).expect("the engine runs");
        listening.bind_addr((DEVICE, 0).into()).expect("an address of the device");
        listening.listen(0).expect("the port is free");
        let port = listening.local_addr().expect("it is bound").port();
        Self { channel, _listening: listening, port, open: Vec::new(), requests: 0 }
    }

    /// Returns a CM message: a request for the listener, or a message about a communication id that may
    /// exist.
    pub(crate) fn mad(&self, rng: &mut Rng, slot: u16) -> [u8; MAD_LEN] {
        let tid = rng.next();
        let local_comm_id = rng.below(64) as u32;
        let remote_comm_id = u32::from(slot) << ID_SHIFT | rng.next() as u32 & 0xf_ffff;
        let message = match rng.below(16) {
            0..=6 => self.req(rng, tid, local_comm_id),
            7 => CmMessage::SidrReq(SidrReq {
                tid,
                request_id: local_comm_id,
                service_id: self.service_id(rng),
                private_data: private_data(rng),
                ..SidrReq::default()
            }),
            8 => CmMessage::Rep(Rep { tid, local_comm_id, remote_comm_id, ..Rep::default() }),
            9 => CmMessage::Rtu(Rtu { tid, local_comm_id, remote_comm_id, ..Rtu::default() }),
            10 => CmMessage::Mra(Mra {
                tid,
                local_comm_id,
                remote_comm_id,
                service_timeout: 31,
                ..Mra::default()
            }),
            11 => CmMessage::Rej(Rej {
                tid,
                local_comm_id,
                remote_comm_id: if rng.one_in(8) { 0 } else { remote_comm_id },
                message: Answered(rng.below(4) as u8),
                reason: rng.pick(&[
                    RejReason::TIMEOUT,
                    RejReason::STALE_CONNECTION,
                    RejReason::CONSUMER_DEFINED,
                ]),
                ari_len: 127,
                ari: [rng.below(4) as u8; 72],
                ..Rej::default()
            }),
            12 => CmMessage::Dreq(Dreq { tid, local_comm_id, remote_comm_id, ..Dreq::default() }),
            13 => CmMessage::Drep(Drep { tid, local_comm_id, remote_comm_id, ..Drep::default() }),
            _ => CmMessage::SidrRep(SidrRep { tid, request_id: remote_comm_id, ..SidrRep::default() }),
        };
        let mut mad = [0; MAD_LEN];
        message.emit(&mut mad);
        if rng.one_in(4) {
            for _ in 0..4 {
                mad[rng.below(MAD_LEN)] ^= 1 << rng.below(8);
            }
        }
        mad
    }

    fn req(&self, rng: &mut Rng, tid: u64, local_comm_id: u32) -> CmMessage {
        CmMessage::Req(Req {
            tid,
            local_comm_id,
            service_id: self.service_id(rng),
            local_ca_guid: rng.below(4) as u64,
            local_qpn: Qpn::new(rng.below(64) as u32),
            responder_resources: rng.next() as u8,
            initiator_depth: rng.next() as u8,
            transport: rng.pick(&[0, 0, 0, 1, 3]),
            local_cm_response_timeout: rng.pick(&[0, 20, 31]),
            starting_psn: Psn::new(rng.next() as u32),
            p_key: PKey::DEFAULT,
            path_mtu: rng.pick(&[3, 3, 3, 0, 5]),
            max_cm_retries: 15,
            primary: Path {
                // The device answers to the peer, which ignores the answers.
                local_gid: PEER.into(),
                remote_gid: DEVICE.into(),
                ack_timeout: rng.below(32) as u8,
                ..Path::default()
            },
            private_data: private_data(rng),
            ..Req::default()
        })
    }

    fn service_id(&self, rng: &mut Rng) -> ServiceId {
        ServiceId::from_port(
            rng.pick(&[ServiceId::TCP, ServiceId::TCP, ServiceId::UDP]),
            if rng.one_in(4) { rng.next() as u16 } else { self.port },
        )
    }

    /// Takes requests from the channel; rejects some, drops some, and leaves some pending.
    pub(crate) fn serve(&mut self, rng: &mut Rng) {
        while readable(self.channel.fd()) {
            let event = self.channel.get_event().expect("it was readable");
            if event.kind == CmEventKind::ConnectRequest {
                self.requests += 1;
                self.open.push(event.id);
            }
        }
        while self.open.len() > rng.below(OPEN_MAX) {
            let id = self.open.swap_remove(rng.below(self.open.len()));
            if rng.one_in(2) {
                // The peer may have withdrawn the request, and that event may be unread.
                let _gone = id.reject(b"no");
            }
        }
    }
}

/// Private data of a request, which begins with an IP CM header.
fn private_data<const LEN: usize>(rng: &mut Rng) -> [u8; LEN] {
    let header = IpCmHeader {
        src_port: rng.next() as u16,
        src: rng.pick(&[PEER, DEVICE]).into(),
        dst: rng.pick(&[DEVICE, DEVICE, PEER]).into(),
    };
    let mut private_data = [0x11; LEN];
    header.emit(private_data.first_chunk_mut().expect("longer than the header"));
    private_data
}

fn readable(fd: RawFd) -> bool {
    sys::poll(&mut [PollFd::readable(fd)], Some(0)).expect("poll") > 0
}

/// Each search for the process that listens for a request takes two system calls, so they are limited. There
/// is none if no other process could listen.
pub(crate) fn searches() {
    const REQUESTS: u32 = 400_000;
    const PER_S: u64 = 5000;
    let mut lab = Lab::new();
    request_unknown_services(&mut lab, REQUESTS / 100);
    assert_eq!(lab.counter("listener_searches"), 0, "the process is alone in its domain");
    let config = DomainConfig::from_env().expect("it has a domain");
    let _second = Membership::join(&config).expect("the device answers");
    let start = Instant::now();
    request_unknown_services(&mut lab, REQUESTS);
    let (searches, elapsed) = (lab.counter("listener_searches"), start.elapsed());
    assert!(searches > 0, "no request was searched for");
    assert!(searches <= PER_S * (elapsed.as_secs() + 2), "{searches} searches in {elapsed:?}");
}

fn request_unknown_services(lab: &mut Lab, count: u32) {
    let mut fields = Fields::new(Qpn::new(1), Psn::new(0));
    fields.deth.q_key = QKey::GSI;
    for request_id in 0..count {
        let (tid, service_id) =
            (u64::from(request_id), ServiceId(0x0106_0000 | u64::from(request_id as u16)));
        let mut mad = [0; MAD_LEN];
        CmMessage::SidrReq(SidrReq { tid, request_id, service_id, ..SidrReq::default() }).emit(&mut mad);
        lab.peer.send(&fields.packet(Opcode::UD_SEND_ONLY, &mad));
        if request_id.is_multiple_of(64) {
            // Otherwise the socket of the device would drop most of them.
            lab.barrier(true);
        }
    }
    lab.barrier(true);
}

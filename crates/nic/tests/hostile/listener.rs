//! Somebody who waits for connections, and the messages the peer tries on him.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;

use roxie::cm::{CmEventKind, EventChannel, Id, PortSpace};
use roxie::wire::cm::{
    Answered, CmMessage, Drep, Dreq, IpCmHeader, Mra, Path, Rej, RejReason, Rep, Req, Rtu, ServiceId,
    SidrRep, SidrReq,
};
use roxie::wire::{MAD_LEN, PKey, Psn, Qpn};
use sys::PollFd;

use crate::lab::Lab;
use crate::rng::Rng;

const DEVICE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Requests the application has not decided about.
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
        listening.listen(0).expect("nobody else listens");
        let port = listening.local_addr().expect("it is bound").port();
        Self { channel, _listening: listening, port, open: Vec::new(), requests: 0 }
    }

    /// A connection message: requests for the listener, and everything else about names that may exist.
    pub(crate) fn mad(&self, rng: &mut Rng, slot: u8) -> [u8; MAD_LEN] {
        let tid = rng.next();
        let local_comm_id = rng.below(64) as u32;
        let remote_comm_id = u32::from(slot) << 24 | rng.next() as u32 & 0xff_ffff;
        let service_id = ServiceId::from_port(
            rng.pick(&[ServiceId::TCP, ServiceId::TCP, ServiceId::UDP]),
            if rng.one_in(4) { rng.next() as u16 } else { self.port },
        );
        let header = IpCmHeader {
            src_port: rng.next() as u16,
            src: rng.pick(&[PEER, DEVICE]).into(),
            dst: rng.pick(&[DEVICE, DEVICE, PEER]).into(),
        };
        let message = match rng.below(16) {
            0..=6 => {
                let mut private_data = [0x11; 92];
                header.emit(private_data.first_chunk_mut().expect("longer than the header"));
                CmMessage::Req(Req {
                    tid,
                    local_comm_id,
                    service_id,
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
                        // Answers always go to the peer, who ignores them.
                        local_gid: PEER.into(),
                        remote_gid: DEVICE.into(),
                        ack_timeout: rng.below(32) as u8,
                        ..Path::default()
                    },
                    private_data,
                    ..Req::default()
                })
            }
            7 => {
                let mut private_data = [0x11; 216];
                header.emit(private_data.first_chunk_mut().expect("longer than the header"));
                CmMessage::SidrReq(SidrReq {
                    tid,
                    request_id: local_comm_id,
                    service_id,
                    private_data,
                    ..SidrReq::default()
                })
            }
            8 => CmMessage::Rep(Rep { tid, local_comm_id, remote_comm_id, ..Rep::default() }),
            9 => CmMessage::Rtu(Rtu { tid, local_comm_id, remote_comm_id, ..Rtu::default() }),
            10 => CmMessage::Mra(Mra {
                tid,
                local_comm_id,
                remote_comm_id,
                service_timeout: 31,
                ..Mra::default()
            }),
            11 => {
                let message = Answered(rng.below(4) as u8);
                let reason =
                    rng.pick(&[RejReason::TIMEOUT, RejReason::STALE_CONNECTION, RejReason::CONSUMER_DEFINED]);
                let ari = [rng.below(4) as u8; 72];
                let remote_comm_id = if rng.one_in(8) { 0 } else { remote_comm_id };
                CmMessage::Rej(Rej {
                    tid,
                    local_comm_id,
                    remote_comm_id,
                    message,
                    reason,
                    ari_len: 127,
                    ari,
                    ..Rej::default()
                })
            }
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

    /// Takes requests; refuses some, forgets others, and lets some wait.
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
                // The peer may have taken its request back, which the application has not heard yet.
                let _gone = id.reject(b"no");
            }
        }
    }
}

fn readable(fd: RawFd) -> bool {
    sys::poll(&mut [PollFd::readable(fd)], Some(0)).expect("poll") > 0
}

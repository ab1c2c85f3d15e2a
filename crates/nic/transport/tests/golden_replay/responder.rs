//! Our responder in the place of the kernel's.

use std::net::IpAddr;

use roxie_transport::{
    AddressVector, Instant, MAX_PACKET, PacketSource, PathMtu, Qp, QpAttr, QpAttrMask, QpCap, QpConfig,
    QpEvent, QpState, QpType, RecvWr, ReorderBuffer, Sge,
};
use wire::{Gid, Lkey, Packet, Psn, Qpn, Rkey, Syndrome};

use crate::memory::{MR_ADDR, MR_LEN, PD, Region};
use crate::setup::Setup;

/// One end of the captures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) ip: IpAddr,
    /// PSN that its requests begin with.
    pub(crate) sq_psn: u32,
    /// Seed of the pattern in its memory.
    pub(crate) seed: u64,
}

/// The requests of one connection, BTH to ICRC.
pub(crate) struct Requests {
    pub(crate) qpn: Qpn,
    /// The requester's queue pair.
    pub(crate) from_qpn: Qpn,
    pub(crate) packets: Vec<Vec<u8>>,
}

pub(crate) struct Responder {
    qp: Qp,
    region: Region,
    setup: Setup,
    from: PacketSource,
    /// Receive work requests that are posted and not completed.
    recvs: usize,
    rnr_naks: usize,
}

impl Responder {
    pub(crate) fn new(setup: Setup, min_rnr_timer: u8, requests: &Requests, me: End, peer: End) -> Self {
        use QpAttrMask as M;
        let cap =
            QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let config = QpConfig {
            qpn: requests.qpn,
            ty: QpType::Rc,
            pd: PD,
            cap,
            sq_sig_all: false,
            srq: false,
            max_path_mtu: PathMtu::M4096,
            equal_writes: false,
        };
        let attr = QpAttr {
            path_mtu: setup.path_mtu,
            rq_psn: Psn::new(peer.sq_psn),
            dest_qp: requests.from_qpn,
            access: setup.qp_access,
            av: AddressVector { dgid: gid(peer.ip), ..AddressVector::default() },
            port_num: 1,
            max_dest_rd_atomic: 16,
            min_rnr_timer,
            ..QpAttr::default()
        };
        let to_rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let mut qp = Qp::new(config).expect("within limits");
        for (state, mask) in
            [(QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS), (QpState::Rtr, to_rtr)]
        {
            let attr = QpAttr { state, ..attr.clone() };
            qp.modify(Instant::ZERO, &attr, mask | M::STATE).expect("permitted");
        }
        let keys = keys(&requests.packets).take(if setup.one_key { 1 } else { usize::MAX });
        let region = Region::new(keys.collect(), setup.mr_access, me.seed, setup.word);
        let from = PacketSource { src: gid(peer.ip), src_port: 0xc000, dst: gid(me.ip), tos: 0, ttl: 64 };
        Self { qp, region, setup, from, recvs: 0, rnr_naks: 0 }
    }

    /// Handles a request that arrives alone; returns the immediate responses, BTH to pad.
    pub(crate) fn respond(&mut self, request: &Packet<'_>) -> Vec<Vec<u8>> {
        if self.recvs == 0 && self.rnr_naks >= self.setup.recv_after {
            let sge = Sge { addr: MR_ADDR + MR_LEN / 2, length: self.setup.recv_len, lkey: Lkey(0) };
            self.qp.post_recv(&RecvWr { wr_id: 0, sg_list: &[sge] }).expect("there is room for one");
            self.recvs = 1;
        }
        // The response says why a request was refused.
        let _: Result<_, _> = self.qp.handle_packet(
            Instant::ZERO,
            request,
            &self.from,
            &self.region,
            None,
            &mut ReorderBuffer::none(),
        );
        self.qp.end_of_batch(Instant::ZERO, false);
        let mut responses = Vec::new();
        let mut buf = [0; MAX_PACKET];
        while let Some(sent) = self.qp.poll_transmit(Instant::ZERO, &self.region, usize::MAX, &mut buf) {
            let response = buf[..sent.len].to_vec();
            self.rnr_naks += usize::from(is_rnr_nak(&response));
            responses.push(response);
        }
        while let Some(event) = self.qp.poll_event() {
            self.recvs -= usize::from(matches!(event, QpEvent::RecvWc { .. }));
        }
        responses
    }
}

/// The R_Keys that requests name, in order.
fn keys(requests: &[Vec<u8>]) -> impl Iterator<Item = Rkey> {
    requests.iter().filter_map(|bytes| {
        let packet = Packet::parse(bytes).expect("decodes");
        packet.reth().map(|h| h.r_key).or(packet.atomic_eth().map(|h| h.r_key)).or(packet.ieth())
    })
}

fn is_rnr_nak(response: &[u8]) -> bool {
    let bytes = [response, &[0; 4]].concat();
    let aeth = Packet::parse(&bytes).expect("decodes").aeth();
    matches!(aeth, Some(aeth) if matches!(aeth.syndrome, Syndrome::RnrNak(_)))
}

fn gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

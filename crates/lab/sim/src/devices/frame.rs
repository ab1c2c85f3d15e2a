//! A packet between simulated hosts, and what its bytes say to the network.

use std::net::IpAddr;

use transport::cm::CmId;
use transport::numbering::slot_of;
use wire::icrc::IcrcHeader;
use wire::{Bth, Qpn};

pub(super) const ROCE_PORT: u16 = 4791;
/// Port of the listener of process 0; those of the others follow.
pub(super) const PORT: u16 = 7000;

/// A packet between two hosts, BTH to ICRC.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// The process that sent it; `None` for a forger.
    pub(super) sender: Option<usize>,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) src_port: u16,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) bytes: Vec<u8>,
}

/// Offsets of a CM message in a frame: BTH, DETH and the MAD header come before its body.
const ATTRIBUTE: usize = 20 + 16;
pub(super) const FIRST_ID: usize = 20 + 24;
const SECOND_ID: usize = FIRST_ID + 4;
const DREQ_QPN: usize = SECOND_ID + 4;
pub(super) const REQ: u16 = 0x10;
pub(super) const REP: u16 = 0x13;
pub(super) const RTU: u16 = 0x14;
pub(super) const DREQ: u16 = 0x15;
pub(super) const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

impl Frame {
    /// It is for the connection manager.
    pub(super) fn is_gsi(&self) -> bool {
        let head = self.bytes.first_chunk::<{ Bth::LEN }>();
        head.is_some_and(|head| Qpn::new(u32::from_be_bytes([0, head[5], head[6], head[7]])) == Qpn::GSI)
    }

    /// The steering program (`registry/program.rs`) gives the packet to the socket of this slot; `None`: to
    /// the GSI socket, which the processes of a host share.
    pub(super) fn slot(&self) -> Option<u16> {
        if !self.is_gsi() {
            let head = self.bytes.first_chunk::<{ Bth::LEN }>()?;
            return Some(slot_of(Qpn::new(u32::from_be_bytes([0, head[5], head[6], head[7]]))));
        }
        let id = match self.attribute()? {
            REQ | SIDR_REQ => return None,
            // A probe.
            DREQ if self.word(DREQ_QPN)? >> 8 == 0 => return None,
            SIDR_REP => self.word(FIRST_ID)?,
            _ => self.word(SECOND_ID)?,
        };
        (id != 0).then_some(CmId(id).slot())
    }

    /// The kind of a message of the connection manager.
    pub(super) fn attribute(&self) -> Option<u16> {
        self.bytes.get(ATTRIBUTE..)?.first_chunk().map(|half| u16::from_be_bytes(*half))
    }

    pub(super) fn word(&self, at: usize) -> Option<u32> {
        self.bytes.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word))
    }
}

pub(super) fn icrc_header(src: IpAddr, dst: IpAddr, src_port: u16) -> IcrcHeader {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => IcrcHeader::v4(src, dst, src_port, ROCE_PORT),
        (IpAddr::V6(src), IpAddr::V6(dst)) => IcrcHeader::v6(src, dst, src_port, ROCE_PORT),
        _ => unreachable!("the hosts of a simulation have addresses of one family"),
    }
}

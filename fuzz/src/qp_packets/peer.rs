//! The hostile peer: requests, responses and arbitrary bytes.

use transport::{PacketSource, QpState, ReorderBuffer};
use wire::opcode::{Operation, Position, Service};
use wire::{Aeth, Msn, PKey, Packet, Rkey, Syndrome};

use super::{OWN, PEER, Reach, SRQN, World};
use crate::craft::{self, Content, Q_KEY};
use crate::ledger::{Doing, QPN, REGIONS};

impl World<'_> {
    /// Delivers a request with any opcode of the service, usually with the expected PSN.
    pub(super) fn request(&mut self) {
        let row = self.draw.pick(&self.rows);
        let mtu = self.mtu.bytes();
        let reth = craft::reth(&mut self.draw, self.mtu);
        let payload_len = match self.draw.below(10) {
            0..=3 => match row.position {
                Position::First | Position::Middle => mtu,
                Position::Last | Position::Only => {
                    if row.headers.contains(&wire::opcode::ExtHeader::Reth)
                        && row.operation != Operation::ReadRequest
                    {
                        (reth.dma_len as usize).min(mtu)
                    } else {
                        0
                    }
                }
            },
            4 => mtu,
            5 => 0,
            6 => 1 + self.draw.below(mtu as u32) as usize,
            7 => mtu + 1,
            8 => 8,
            _ => self.draw.below(5000) as usize,
        };
        let content = self.content(reth, payload_len);
        self.deliver(&craft::packet(row, &content));
    }

    fn content(&mut self, reth: wire::Reth, payload_len: usize) -> Content {
        let draw = &mut self.draw;
        let flags = draw.any::<u8>();
        let delta = match flags & 7 {
            0..=4 => 0,
            5 => draw.below(8).wrapping_sub(4),
            6 => draw.any::<i8>() as u32,
            _ => draw.any(),
        };
        let is_malformed = draw.one_in(16);
        let lost = self.service == Service::Xrc && draw.one_in(16);
        Content {
            srqn: if lost { draw.any() } else { SRQN },
            psn: self.expected.advance(delta & 0xff_ffff),
            ack_req: flags & 8 != 0,
            solicited: flags & 16 != 0,
            reth,
            atomic: craft::atomic(draw),
            aeth: craft::aeth(draw),
            original: draw.any::<u8>().into(),
            imm: [1, 2, 3, 4],
            invalidate: draw.pick(&REGIONS).key,
            q_key: if is_malformed { wire::QKey(draw.any()) } else { Q_KEY },
            payload_len,
            pad_error: if is_malformed { draw.any() } else { 0 },
            p_key: if is_malformed { PKey(draw.any()) } else { PKey::DEFAULT },
            dest_qp: QPN,
        }
    }

    /// Returns the top three bits of the opcodes of a service that has the opcodes of RC.
    fn base(&self) -> u8 {
        match self.service {
            Service::Uc => 0x20,
            Service::Xrc => 0xa0,
            _ => 0,
        }
    }

    /// Returns the top three bits of response opcodes. UC and UD have no responses; RC opcodes are used for
    /// them.
    fn response_base(&self) -> u8 {
        if self.service == Service::Xrc { 0xa0 } else { 0 }
    }

    /// Delivers a whole WRITE or SEND, packet by packet, sometimes with an error.
    pub(super) fn message(&mut self) {
        let mtu = self.mtu.bytes();
        let mut reth = craft::reth(&mut self.draw, self.mtu);
        let write = self.draw.one_in(2);
        let imm = self.draw.one_in(2);
        let packets = 1 + self.draw.below(6) as usize;
        let len = (packets - 1) * mtu + self.draw.below(mtu as u32 + 1) as usize;
        if !self.draw.one_in(8) {
            reth.dma_len = len as u32;
        }
        let base = self.base();
        for i in 0..packets {
            let (starts, ends) = (i == 0, i + 1 == packets);
            let low = match (write, starts, ends) {
                (false, true, false) => 0x00,
                (false, false, false) => 0x01,
                (false, false, true) => 0x02 + u8::from(imm),
                (false, true, true) => 0x04 + u8::from(imm),
                (true, true, false) => 0x06,
                (true, false, false) => 0x07,
                (true, false, true) => 0x08 + u8::from(imm),
                (true, true, true) => 0x0a + u8::from(imm),
            };
            let Some(row) = wire::Opcode(base | low).row() else { return };
            let payload_len = (len - i * mtu).min(mtu);
            let mut content = self.content(reth, payload_len);
            match self.draw.below(16) {
                13 => continue,
                14 => content.payload_len ^= 1,
                15 => {}
                _ => content.psn = self.expected,
            }
            self.deliver(&craft::packet(row, &content));
        }
    }

    /// Delivers an ACK, NAK or READ response for a request that was sent, or nearly.
    pub(super) fn response(&mut self) {
        let row = {
            let low = self.draw.pick(&[0x11, 0x11, 0x10, 0x0d, 0x0e, 0x0f, 0x12]);
            wire::Opcode(self.response_base() | low).row().expect("the opcode has a row")
        };
        let target = self.draw.below(self.sent.len().max(1) as u32) as usize;
        let at = self.sent.get(target).map_or(self.attr.sq_psn, |sent| sent.psn);
        let delta = match self.draw.below(4) {
            0..=1 => 0,
            2 => self.draw.any::<i8>() as u32,
            _ => self.draw.below(256),
        };
        let payload_len = match self.draw.below(4) {
            0 => self.mtu.bytes(),
            1 => 0,
            2 => self.sent.get(target).map_or(8, |sent| sent.dma_len as usize % self.mtu.bytes()),
            _ => self.draw.below(4200) as usize,
        };
        let reth = wire::Reth { va: 0, r_key: Rkey(0), dma_len: 0 };
        let content = Content {
            psn: at.advance(delta & 0xff_ffff),
            ack_req: false,
            solicited: false,
            ..self.content(reth, payload_len)
        };
        self.deliver(&craft::packet(row, &content));
    }

    /// Delivers the correct response to every request that was sent, sometimes with an error.
    pub(super) fn answer(&mut self) {
        let mtu = self.mtu.bytes();
        let reth = wire::Reth { va: 0, r_key: Rkey(0), dma_len: 0 };
        while let Some(sent) = self.sent.pop_front() {
            let len = sent.dma_len as usize;
            let packets = if sent.operation == Operation::ReadRequest { len.div_ceil(mtu).max(1) } else { 1 };
            for i in 0..packets.min(300) {
                let (starts, ends) = (i == 0, i + 1 == packets);
                let (low, payload_len) = match sent.operation {
                    Operation::ReadRequest => {
                        let low = match (starts, ends) {
                            (true, true) => 0x10,
                            (true, false) => 0x0d,
                            (false, false) => 0x0e,
                            (false, true) => 0x0f,
                        };
                        (low, (len - i * mtu).min(mtu))
                    }
                    Operation::CompareSwap | Operation::FetchAdd => (0x12, 0),
                    _ => (0x11, 0),
                };
                let row = wire::Opcode(self.response_base() | low).row().expect("the opcode has a row");
                let psn = sent.psn.advance(i as u32);
                let aeth = Aeth { syndrome: Syndrome::ACK, msn: Msn::new(0) };
                let mut content = Content { psn, aeth, ..self.content(reth, payload_len) };
                (content.pad_error, content.p_key) = (0, PKey::DEFAULT);
                match self.draw.below(32) {
                    29 => continue,
                    30 => content.payload_len += 1,
                    31 => content.psn = psn.advance(1),
                    _ => {}
                }
                self.deliver(&craft::packet(row, &content));
            }
            if self.draw.one_in(8) {
                return;
            }
        }
    }

    pub(super) fn raw(&mut self) {
        let bytes = self.draw.bytes(200).to_vec();
        self.deliver(&bytes);
    }

    /// Delivers a packet as the receive path does, and tracks the PSN that the responder expects.
    fn deliver(&mut self, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let is_foreign = self.draw.one_in(64);
        let src = if is_foreign { OWN } else { PEER };
        let from = PacketSource { src, src_port: 0xc000, dst: OWN, tos: 2, ttl: 64 };
        let state = self.qp.state();
        if is_foreign && self.service != Service::Ud {
            // The ledger does not know this packet, so any memory access would fail.
            let result = self.qp.handle_packet(
                self.now,
                &packet,
                &from,
                &self.memory,
                Reach(self.service, self.srq.as_mut()),
                &mut ReorderBuffer::none(),
            );
            assert!(result.is_err() && self.qp.state() == state);
            return;
        }
        self.memory.packet(&packet);
        let result = self.qp.handle_packet(
            self.now,
            &packet,
            &from,
            &self.memory,
            Reach(self.service, self.srq.as_mut()),
            &mut ReorderBuffer::none(),
        );
        self.memory.doing.set(Doing::Nothing);
        if matches!(state, QpState::Err | QpState::Reset) {
            assert!(result.is_err(), "a packet is accepted in state {state:?}");
        }
        let new = self.qp.state();
        assert!(new == state || new == QpState::Err, "a packet changed the state from {state:?} to {new:?}");
        let row = packet.row();
        if result.is_ok()
            && !row.is_response()
            && (packet.bth.psn == self.expected || self.service == Service::Uc)
        {
            let packets = match packet.reth() {
                Some(reth) if row.operation == Operation::ReadRequest => {
                    reth.dma_len.div_ceil(self.mtu.bytes() as u32).max(1)
                }
                _ => 1,
            };
            self.expected = packet.bth.psn.advance(packets);
        }
    }
}

//! The capture file: what of the packets at the taps it shows, in which format.

use crate::plan::{Plan, Tap};
use crate::random::Rng;
use crate::world::Story;

/// 2026-11-21 07:22:55 UTC.
const BEGIN_NS: u64 = 1_795_245_775_000_000_000;

/// A file, and which packets of the taps it has: packet 1 is the first one.
pub(crate) struct Shown {
    pub(crate) file: Vec<u8>,
    pub(crate) packets: Vec<usize>,
    /// Packets that the file lacks; pcapng counts them.
    pub(crate) dropped: u64,
}

pub(crate) fn show(plan: &Plan, story: &Story, rng: &mut Rng) -> Shown {
    let view = &plan.view;
    let all = story.at_taps.len();
    let range = all * view.begin / 1000..all - all * view.end / 1000;
    let mut dropped = 0;
    let mut packets = Vec::new();
    for index in range {
        let from = story.at_taps[index].sent.map(|sent| story.sent[sent].from);
        if view.only_from.is_some_and(|end| from.is_some_and(|from| from != end)) {
            continue;
        }
        if view.drop_one_in > 0 && rng.one_in(view.drop_one_in) {
            dropped += 1;
            continue;
        }
        packets.push(index);
    }
    let format = if plan.tap == Tap::Both { 4 + view.format % 2 } else { view.format };
    let out = Out { big: format % 2 == 1, bytes: Vec::new(), snap: view.snap };
    let file = if format < 4 {
        out.pcap(story, &packets, format >= 2)
    } else {
        out.pcapng(story, &packets, if plan.tap == Tap::Both { 2 } else { 1 }, dropped)
    };
    Shown { file, packets, dropped }
}

struct Out {
    big: bool,
    bytes: Vec<u8>,
    snap: usize,
}

impl Out {
    fn u16(&mut self, value: u16) {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    fn cut<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        if self.snap > 0 { &bytes[..bytes.len().min(self.snap)] } else { bytes }
    }

    fn pcap(mut self, story: &Story, packets: &[usize], nanoseconds: bool) -> Vec<u8> {
        self.u32(if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 });
        self.u16(2);
        self.u16(4);
        let snap = if self.snap > 0 { self.snap as u32 } else { 262_144 };
        for value in [0, 0, snap, 1] {
            self.u32(value);
        }
        for &index in packets {
            let packet = &story.at_taps[index];
            let ns = BEGIN_NS + packet.ns;
            let below = ns % 1_000_000_000;
            self.u32((ns / 1_000_000_000) as u32);
            self.u32((if nanoseconds { below } else { below / 1000 }) as u32);
            let data = self.cut(&packet.bytes);
            self.u32(data.len() as u32);
            self.u32(packet.bytes.len() as u32);
            self.bytes.extend(data);
        }
        self.bytes
    }

    fn pcapng(mut self, story: &Story, packets: &[usize], interfaces: u32, dropped: u64) -> Vec<u8> {
        self.block(0x0a0d_0d0a, |out| {
            out.u32(0x1a2b_3c4d);
            out.u16(1);
            out.u16(0);
            out.bytes.extend([0xff; 8]);
        });
        for _ in 0..interfaces {
            self.block(1, |out| {
                out.u16(1);
                out.u16(0);
                out.u32(out.snap as u32);
                // Times in nanoseconds.
                out.u16(9);
                out.u16(1);
                out.bytes.extend([9, 0, 0, 0]);
                out.u32(0);
            });
        }
        for &index in packets {
            let packet = &story.at_taps[index];
            self.block(6, |out| {
                let ns = BEGIN_NS + packet.ns;
                out.u32(packet.tap as u32);
                out.u32((ns >> 32) as u32);
                out.u32(ns as u32);
                let data = out.cut(&packet.bytes);
                out.u32(data.len() as u32);
                out.u32(packet.bytes.len() as u32);
                out.bytes.extend(data);
                out.bytes.resize(out.bytes.len().next_multiple_of(4), 0);
            });
        }
        for interface in 0..interfaces {
            self.block(5, |out| {
                out.u32(interface);
                out.u32(0);
                out.u32(0);
                out.u16(5);
                out.u16(8);
                let dropped = if interface == 0 { dropped } else { 0 };
                out.bytes.extend(if out.big { dropped.to_be_bytes() } else { dropped.to_le_bytes() });
                out.u32(0);
            });
        }
        self.bytes
    }

    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) {
        self.u32(kind);
        let at = self.bytes.len();
        self.u32(0);
        body(self);
        let len = (self.bytes.len() - at + 8) as u32;
        let bytes = if self.big { len.to_be_bytes() } else { len.to_le_bytes() };
        self.bytes[at..at + 4].copy_from_slice(&bytes);
        self.u32(len);
    }
}

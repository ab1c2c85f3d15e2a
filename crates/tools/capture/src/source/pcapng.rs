//! Blocks of pcapng. Each has its length at its beginning and at its end.

use std::io::{self, Read};
use std::mem;
use std::ops::Range;

use wire::capture::{Block, BlockHeader, EnhancedPacket, LinkType, Resolution, option};

use super::{DEVICE_BYTES_MAX, DEVICE_MAX, Format, Interface, Next, RECORD_MAX, Record, Source};
use crate::paint::text;
use crate::write::{DEVICE, LEFT_OUT, TIMES};

/// Interfaces assumed for packets that name an undescribed one; a larger number is damage.
const ASSUMED_MAX: usize = 16;

/// A packet's block, with its parts as ranges of the buffer, so that the block is decoded once.
pub(super) struct Found {
    ticks: u64,
    original_len: usize,
    outbound: Option<bool>,
    verdict: Option<u8>,
    data: Range<usize>,
    comment: Option<Range<usize>>,
}

impl Found {
    fn new(packet: &EnhancedPacket<'_>, buffer: &[u8]) -> Self {
        let place = |part: &[u8]| {
            let at = part.as_ptr().addr() - buffer.as_ptr().addr();
            at..at + part.len()
        };
        Self {
            ticks: packet.ticks,
            original_len: packet.original as usize,
            outbound: packet.outbound(),
            verdict: packet.xdp_verdict(),
            data: place(packet.data),
            comment: packet.options.value(option::COMMENT).map(place),
        }
    }
}

impl<R: Read> Source<R> {
    /// The next packet, and the index of its interface.
    pub(super) fn find_packet(&mut self) -> io::Result<Next<(usize, Found)>> {
        loop {
            if self.next_pcap_header()?.is_some() {
                return Ok(Next::Elsewhere);
            }
            let (kind, len) = match self.find_block()? {
                Next::Packet(block) => block,
                Next::Elsewhere => return Ok(Next::Elsewhere),
                Next::End => return Ok(Next::End),
            };
            let Format::Pcapng(order) = self.format else { return Ok(Next::End) };
            let body_start = self.start + BlockHeader::LEN;
            // A block that the end of the file cuts has no second length.
            let body = body_start..(self.start + len).min(self.end).max(body_start);
            let block = Block::parse(order, kind, &self.buffer[body.clone()]);
            match block {
                Some(Block::Packet(packet)) => {
                    let (interface, drops) = (packet.interface as usize, packet.drops());
                    let mut found = Found::new(&packet, &self.buffer);
                    self.packets += 1;
                    if self.has_interface(interface) {
                        self.drops = self.drops.saturating_add(drops);
                        self.consume(len.min(self.end - self.start));
                        let index = self.section + interface;
                        let snap_len = self.interfaces[index].snap_len;
                        // A simple block does not say how many of its bytes are padding.
                        if kind == BlockHeader::SIMPLE_PACKET && snap_len > 0 {
                            found.data.end = found.data.end.min(found.data.start + snap_len);
                        }
                        break Ok(Next::Packet((index, found)));
                    }
                }
                Some(Block::Interface(described)) => {
                    let name = described.options.value(option::INTERFACE_NAME);
                    let comment = |prefix: &str| {
                        let comments = described.options.filter(|option| option.0 == option::COMMENT);
                        comments.filter_map(|option| option.1.strip_prefix(prefix.as_bytes())).next()
                    };
                    let (left_out, times) = (comment(LEFT_OUT), comment(TIMES));
                    let interface = Interface {
                        name: name.map(text),
                        left_out: left_out.map(text),
                        times: times.map(text),
                        link_type: described.link_type,
                        resolution: described.resolution,
                        offset_s: described.offset_s,
                        snap_len: described.snap_len as usize,
                    };
                    self.add_interface(interface);
                }
                Some(Block::Statistics(counters)) => {
                    let index = self.section + counters.interface as usize;
                    // Later counters replace earlier ones of the same interface.
                    if let Some(drops) = self.statistics_drops.get_mut(index) {
                        *drops = counters.drops;
                    }
                    let comments = counters.options.filter(|option| option.0 == option::COMMENT);
                    let texts = comments.filter_map(|option| option.1.strip_prefix(DEVICE.as_bytes()));
                    for told in texts {
                        self.device_bytes += told.len();
                        if self.device.len() < DEVICE_MAX && self.device_bytes <= DEVICE_BYTES_MAX {
                            self.device.push((index, text(told)));
                        }
                    }
                }
                Some(Block::Section) => self.section = self.interfaces.len(),
                Some(Block::Other) => {}
                // `find_block` has noted a block that the end of the file cuts.
                None if self.end - self.start < len => {}
                None => self.note(format!("a block of kind {kind} is too short")),
            }
            self.consume(len.min(self.end - self.start));
        }
    }

    /// Whether packets of this interface can be decoded. An interface that the section does not describe is
    /// taken for Ethernet.
    fn has_interface(&mut self, interface: usize) -> bool {
        let known = self.interfaces.len() - self.section;
        if interface < known {
            return true;
        }
        self.note(format!(
            "packet {} names interface {interface}, which the file does not describe",
            self.packets
        ));
        if interface >= known + ASSUMED_MAX {
            return false;
        }
        for _ in known..=interface {
            self.add_interface(Interface::unnamed(LinkType::ETHERNET, Resolution::MICROSECONDS));
        }
        self.interfaces.len() > self.section + interface
    }

    pub(super) fn emit(&mut self, index: usize, found: Found) -> Record<'_> {
        let interface = &self.interfaces[index];
        let offset_ns = interface.offset_s.saturating_mul(1_000_000_000);
        let time_ns = interface.resolution.ns(found.ticks).wrapping_add_signed(offset_ns);
        let decode_as = self.decoding(index);
        let seen = mem::replace(&mut self.device_seen, self.device.len());
        Record {
            number: self.packets,
            time_ns,
            interface: index,
            interface_name: interface.name.as_deref().filter(|_| self.interfaces.len() > 1),
            decode_as,
            data: &self.buffer[found.data],
            original_len: found.original_len,
            outbound: found.outbound,
            verdict: found.verdict,
            comment: found.comment.map(|comment| &self.buffer[comment]),
            told: &self.device[seen..],
        }
    }

    /// The kind and length of the next block.
    fn find_block(&mut self) -> io::Result<Next<(u32, usize)>> {
        if !self.ensure(BlockHeader::BLOCK_MIN as usize)? {
            self.note_rest("a block header");
            return Ok(Next::End);
        }
        if let Some(order) = BlockHeader::section_order(&self.buffer[self.start..self.end]) {
            self.format = Format::Pcapng(order);
        }
        let header = self.block_header(self.start);
        if self.fits(header)? {
            return Ok(Next::Packet((header.kind, header.len as usize)));
        }
        let beyond = self.at_end && self.end - self.start < header.len as usize;
        let begins = |source: &Self, at| source.is_block(at) || source.file_at(at).is_some();
        let others = || (self.start + BlockHeader::LEN..self.end).any(|at| begins(self, at));
        if beyond && header.len_ok() && header.len as usize <= RECORD_MAX && !others() {
            return Ok(Next::Packet(self.last_block(header)));
        }
        self.note(format!("the block behind packet {} is damaged", self.packets));
        Ok(if self.search(begins)? { Next::Elsewhere } else { Next::End })
    }

    fn last_block(&mut self, header: BlockHeader) -> (u32, usize) {
        let there = self.end - self.start;
        self.note(format!(
            "the file ends inside the block behind packet {}: {there} of {} bytes are there",
            self.packets, header.len
        ));
        (header.kind, header.len as usize)
    }

    /// Whether the whole block is buffered and its two lengths agree.
    fn fits(&mut self, header: BlockHeader) -> io::Result<bool> {
        let len = header.len as usize;
        if !header.len_ok() || len > RECORD_MAX || !self.ensure(len)? {
            return Ok(false);
        }
        Ok(self.trailer(self.start, len) == Some(header.len))
    }

    fn trailer(&self, at: usize, len: usize) -> Option<u32> {
        let Format::Pcapng(order) = self.format else { return None };
        order.u32(self.buffer.get(at..at + len)?, len - 4)
    }

    fn block_header(&self, at: usize) -> BlockHeader {
        let Format::Pcapng(order) = self.format else { return BlockHeader { kind: 0, len: 0 } };
        let bytes = self.buffer[at..self.end].first_chunk().unwrap_or(&[0; BlockHeader::LEN]);
        BlockHeader::parse(order, bytes)
    }

    fn is_block(&self, at: usize) -> bool {
        if BlockHeader::section_order(&self.buffer[at..self.end]).is_some() {
            return true;
        }
        let header = self.block_header(at);
        let len = header.len as usize;
        let known = (1..=10).contains(&header.kind);
        known && header.len_ok() && at + len <= self.end && self.trailer(at, len) == Some(header.len)
    }
}

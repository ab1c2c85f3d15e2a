//! Writes pcapng: times in nanoseconds, directions, drop counters, comments.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::{DataLink, Endianness, PcapError};
use wire::capture::LinkType;

/// One packet to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewPacket<'a> {
    /// As [`Writer::interface`] has counted them, from 0.
    pub(super) interface: usize,
    pub(super) time_ns: u64,
    /// Bytes it had on the wire.
    pub(super) original_len: usize,
    pub(super) data: &'a [u8],
    pub(super) outbound: Option<bool>,
}

/// One section of a capture file.
pub(super) struct Writer<W: Write> {
    inner: PcapNgWriter<W>,
    interfaces: u32,
    last_ns: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the beginning.
    pub(super) fn new(output: W) -> io::Result<Self> {
        // Big-endian, in which pcap-file writes the two halves of a statistics block's time in their order.
        let inner = PcapNgWriter::with_endianness(output, Endianness::Big).map_err(why)?;
        Ok(Self { inner, interfaces: 0, last_ns: 0 })
    }

    /// How many interfaces were described.
    pub(super) fn interfaces(&self) -> usize {
        self.interfaces as usize
    }

    /// Describes the next interface.
    pub(super) fn interface(&mut self, name: Option<&str>, link_type: LinkType) -> io::Result<()> {
        let mut options = vec![InterfaceDescriptionOption::IfTsResol(9)];
        options.extend(name.map(|name| InterfaceDescriptionOption::IfName(Cow::Borrowed(name))));
        let linktype = DataLink::from(u32::from(link_type.0));
        let block = InterfaceDescriptionBlock { linktype, snaplen: 0, options };
        self.interfaces += 1;
        self.inner.write_pcapng_block(block).map(drop).map_err(why)
    }

    /// Writes a packet with what is said of it.
    pub(super) fn packet<'a>(
        &mut self,
        packet: &NewPacket<'a>,
        comments: impl IntoIterator<Item = Cow<'a, str>>,
    ) -> io::Result<()> {
        let comments = comments.into_iter().map(EnhancedPacketOption::Comment);
        // Bits 0 and 1: 1 inbound, 2 outbound.
        let direction = packet.outbound.map(|out| EnhancedPacketOption::Flags(if out { 2 } else { 1 }));
        self.last_ns = packet.time_ns;
        let block = EnhancedPacketBlock {
            interface_id: packet.interface as u32,
            timestamp: Duration::from_nanos(packet.time_ns),
            original_len: packet.original_len as u32,
            data: Cow::Borrowed(packet.data),
            options: comments.chain(direction).collect(),
        };
        self.inner.write_pcapng_block(block).map(drop).map_err(why)
    }

    /// Says that so many packets of an interface were lost before they could be written.
    pub(super) fn drops(&mut self, interface: usize, drops: u64) -> io::Result<()> {
        let options = vec![InterfaceStatisticsOption::IsbOsDrop(drops)];
        let block =
            InterfaceStatisticsBlock { interface_id: interface as u32, timestamp: self.last_ns, options };
        self.inner.write_pcapng_block(block).map(drop).map_err(why)
    }

    /// What is written to.
    pub(super) fn output(&mut self) -> &mut W {
        self.inner.get_mut()
    }
}

/// What the system said; pcap-file itself takes every failure for one of reading.
fn why(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

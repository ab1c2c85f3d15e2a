//! Writes pcapng files: times in nanoseconds, directions, drop counters, comments.
//!
//! [`Writer::packet`] assembles packet blocks itself. `pcap-file` takes 200 ns for one, and a live capture
//! takes CPU time from the traffic it records.

use std::borrow::Cow;
use std::io::{self, Write};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::{DataLink, Endianness, PcapError};
use wire::capture::{BlockHeader, LinkType, option as option_code};

/// Prefix of the interface comment that describes packets not recorded on purpose. [`crate::source`] looks
/// for it.
pub(crate) const LEFT_OUT: &str = "roxie captured not every packet: ";

/// Prefix of the interface comment that says where receive times come from.
pub(crate) const TIMES: &str = "receive times: ";

/// Prefix of the comments of an interface's counters that say what the device of a process knows.
pub(crate) const DEVICE: &str = "roxie device: ";

/// An interface to describe.
#[derive(Clone, Copy, Debug)]
pub struct NewInterface<'a> {
    /// Its name.
    pub name: Option<&'a str>,
    /// Which of its packets were not recorded on purpose.
    pub left_out: Option<&'a str>,
    /// Where the receive times come from, if not from the network stack.
    pub times: Option<&'a str>,
    /// The link layer of its packets.
    pub link_type: LinkType,
}

/// One packet to write.
#[derive(Clone, Copy, Debug)]
pub struct NewPacket<'a> {
    /// Index of the interface, from 0, in the order of the [`Writer::interface`] calls.
    pub interface: usize,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes of the packet on the wire.
    pub original_len: usize,
    /// The captured bytes.
    pub data: &'a [u8],
    /// `Some(true)` if the packet left the capturing host, `Some(false)` if it arrived; `None` if unknown.
    pub outbound: Option<bool>,
    /// The verdict of the hook that did not pass the packet (`enum xdp_action`).
    pub verdict: Option<u8>,
}

/// Writes one section of a pcapng file.
pub struct Writer<W: Write> {
    inner: PcapNgWriter<W>,
    interfaces: u32,
    last_ns: u64,
    /// Options of the packet being written; kept to reuse the memory.
    options: Vec<u8>,
}

/// Bytes of a packet block without data and options.
const FIXED_LEN: usize = 32;
/// Longest value of an option in bytes.
const OPTION_MAX: usize = u16::MAX as usize;

impl<W: Write> Writer<W> {
    /// Writes the section header.
    ///
    /// # Errors
    /// Errors of writing to `output`.
    pub fn new(output: W) -> io::Result<Self> {
        // pcap-file swaps the two halves of a statistics block's time in little-endian files.
        let inner = PcapNgWriter::with_endianness(output, Endianness::Big).map_err(io_error)?;
        Ok(Self { inner, interfaces: 0, last_ns: 0, options: Vec::new() })
    }

    /// Number of interfaces described so far.
    pub fn interfaces(&self) -> usize {
        self.interfaces as usize
    }

    /// Describes the next interface.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn interface(&mut self, interface: &NewInterface<'_>) -> io::Result<()> {
        let NewInterface { name, left_out, times, link_type } = *interface;
        let mut options = vec![InterfaceDescriptionOption::IfTsResol(9)];
        options.extend(name.map(|name| InterfaceDescriptionOption::IfName(Cow::Borrowed(name))));
        let left_out = left_out.map(|what| format!("{LEFT_OUT}{what}"));
        let times = times.map(|what| format!("{TIMES}{what}"));
        let comments = left_out.into_iter().chain(times);
        options.extend(comments.map(|what| InterfaceDescriptionOption::Comment(Cow::Owned(what))));
        let linktype = DataLink::from(u32::from(link_type.0));
        let block = InterfaceDescriptionBlock { linktype, snaplen: 0, options };
        self.interfaces += 1;
        self.inner.write_pcapng_block(block).map(drop).map_err(io_error)
    }

    /// Writes a packet with its comments. Each comment is cut at 65535 bytes.
    ///
    /// # Errors
    /// Errors of the output; a packet too long for a block (4 GiB).
    pub fn packet<'a>(
        &mut self,
        packet: &NewPacket<'a>,
        comments: impl IntoIterator<Item = Cow<'a, str>>,
    ) -> io::Result<()> {
        self.last_ns = packet.time_ns;
        self.options.clear();
        for comment in comments {
            // The length field has 16 bits.
            let len = comment.floor_char_boundary(OPTION_MAX);
            option(&mut self.options, option_code::COMMENT, &comment.as_bytes()[..len]);
        }
        if let Some(outbound) = packet.outbound {
            // Bits 0 and 1 of epb_flags: 1 inbound, 2 outbound.
            let direction = if outbound { 2_u32 } else { 1 };
            option(&mut self.options, option_code::PACKET_FLAGS, &direction.to_be_bytes());
        }
        if let Some(verdict) = packet.verdict {
            let value = [&[option_code::XDP_VERDICT][..], &u64::from(verdict).to_be_bytes()].concat();
            option(&mut self.options, option_code::PACKET_VERDICT, &value);
        }
        if !self.options.is_empty() {
            self.options.extend([0; 4]);
        }
        let padding = packet.data.len().next_multiple_of(4) - packet.data.len();
        let len = FIXED_LEN + packet.data.len() + padding + self.options.len();
        let len = u32::try_from(len)
            .map_err(|_| io::Error::other("a packet of 4 GiB does not fit into a pcapng block"))?;
        let mut front = [0; FIXED_LEN - 4];
        let words = [
            BlockHeader::ENHANCED_PACKET,
            len,
            packet.interface as u32,
            (packet.time_ns >> 32) as u32,
            packet.time_ns as u32,
            packet.data.len() as u32,
            packet.original_len as u32,
        ];
        for (place, word) in front.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        let output = self.inner.get_mut();
        output.write_all(&front)?;
        output.write_all(packet.data)?;
        output.write_all(&[0; 3][..padding])?;
        output.write_all(&self.options)?;
        output.write_all(&len.to_be_bytes())
    }

    /// Writes the number of packets of an interface that were dropped before they could be written.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn drops(&mut self, interface: usize, drops: u64) -> io::Result<()> {
        self.statistics(interface, drops, &[])
    }

    /// As [`drops`](Self::drops), and what the device of the process knows, as the engine has told it.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn statistics(&mut self, interface: usize, drops: u64, device: &[String]) -> io::Result<()> {
        let comment = |text| InterfaceStatisticsOption::Comment(Cow::Owned(format!("{DEVICE}{text}")));
        let mut options: Vec<InterfaceStatisticsOption<'_>> = device.iter().map(comment).collect();
        options.push(InterfaceStatisticsOption::IsbOsDrop(drops));
        let block =
            InterfaceStatisticsBlock { interface_id: interface as u32, timestamp: self.last_ns, options };
        self.inner.write_pcapng_block(block).map(drop).map_err(io_error)
    }

    /// The output given to [`Writer::new`].
    pub fn output(&mut self) -> &mut W {
        self.inner.get_mut()
    }
}

/// Appends an option, padded to 4 bytes.
fn option(options: &mut Vec<u8>, code: u16, value: &[u8]) {
    options.extend(code.to_be_bytes());
    options.extend((value.len() as u16).to_be_bytes());
    options.extend(value);
    options.resize(options.len().next_multiple_of(4), 0);
}

/// The error of the operating system; pcap-file reports every error as one of reading.
fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    #[test]
    fn a_written_capture_reads_back_unchanged() {
        let mut writer = Writer::new(Vec::new()).expect("memory");
        let (name, left_out, times) = (Some("eth0"), Some("a sample"), Some("the clock of the NIC"));
        let interface = NewInterface { name, left_out, times, link_type: LinkType::ETHERNET };
        writer.interface(&interface).expect("memory");
        for (n, outbound) in (0..5_u8).zip([None, Some(false), Some(true), None, Some(true)]) {
            let data = vec![n; usize::from(n)];
            let (time_ns, verdict) = (0x1_2345_6789 + u64::from(n), (n == 4).then_some(1));
            let packet =
                NewPacket { interface: 0, time_ns, original_len: 100, data: &data, outbound, verdict };
            let comments = (n > 2).then(|| "a comment".into());
            writer.packet(&packet, comments).expect("memory");
        }
        writer
            .packet(
                &NewPacket {
                    interface: 0,
                    time_ns: 0,
                    original_len: 1,
                    data: &[9],
                    outbound: None,
                    verdict: None,
                },
                [Cow::Owned("\u{e9}".repeat(40_000))],
            )
            .expect("memory");
        writer.drops(0, 7).expect("memory");
        let file = writer.output().clone();
        let mut source = Source::new(&file[..]).expect("a capture");
        for (n, outbound) in (0..5_u8).zip([None, Some(false), Some(true), None, Some(true)]) {
            let record = source.next_record().expect("reads").expect("is there");
            assert_eq!((record.data, record.original_len), (&vec![n; usize::from(n)][..], 100));
            assert_eq!((record.time_ns, record.outbound), (0x1_2345_6789 + u64::from(n), outbound));
            assert_eq!((record.comment.is_some(), record.verdict), (n > 2, (n == 4).then_some(1)));
        }
        let long = source.next_record().expect("reads").expect("is there");
        assert_eq!((long.data, long.comment.map(<[u8]>::len)), (&[9][..], Some(65_534)));
        assert!(source.next_record().expect("reads").is_none());
        assert_eq!((source.drops(), source.left_out()), (7, Some("a sample")));
        assert_eq!(source.interfaces()[0].times.as_deref(), times);
        assert_eq!(source.notes().count(), 0);
    }
}

//! The table of opcodes (IBA 9.2.1, table 35; Annexes A14 and A17; FLUSH and ATOMIC WRITE from Annex A19).
//!
//! There is one row per opcode; header offsets are sums over the row's list of headers. The parser, the
//! builder and the support table of the README read these rows. No other code knows which headers an opcode
//! has.
//!
//! The top three bits of an opcode give the service, the low five bits the operation.

use core::fmt;

use crate::{
    aeth::Aeth,
    atomic::{AtomicAckEth, AtomicEth},
    bth::Bth,
    deth::Deth,
    feth::Feth,
    ieth::Ieth,
    imm::ImmDt,
    rdeth::Rdeth,
    reth::Reth,
    xrceth::Xrceth,
};

/// First byte of the BTH. Every value is allowed; [`Opcode::row`] tells whether it is defined.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct Opcode(pub u8);

impl Opcode {
    /// Returns the row that describes this opcode, or `None` if it is reserved or manufacturer-specific.
    #[must_use]
    #[inline]
    pub fn row(self) -> Option<&'static OpcodeRow> {
        OPCODES[usize::from(self.0)].as_ref()
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row() {
            Some(row) => f.write_str(row.name),
            None => write!(f, "Unknown ({})", self.0),
        }
    }
}

/// Description of an opcode: its meaning and the headers of its packets.
///
/// ```
/// use roxie_wire::{Bth, ExtHeader, OPCODES, Opcode, Operation, Position, Service};
///
/// let row = Opcode::RC_WRITE_ONLY_IMM.row().unwrap();
/// assert_eq!(row.name, "RC RDMA WRITE Only Immediate");
/// assert_eq!((row.service, row.operation), (Service::Rc, Operation::WriteImm));
/// assert_eq!(row.position, Position::Only);
/// assert_eq!(row.headers, [ExtHeader::Reth, ExtHeader::ImmDt]);
/// assert_eq!(row.offset(ExtHeader::ImmDt), Some(Bth::LEN + 16));
/// assert_eq!(row.header_len(), 32);
///
/// // Reserved opcodes have no row.
/// assert_eq!(Opcode(0xff).row(), None);
/// assert_eq!(OPCODES.iter().flatten().filter(|row| row.service == Service::Ud).count(), 2);
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OpcodeRow {
    /// Service and operation as text, for example `RC RDMA WRITE Only`.
    pub name: &'static str,
    /// The opcode of this row.
    pub opcode: Opcode,
    /// Transport service of the QPs that use it.
    pub service: Service,
    /// Operation of the packet.
    pub operation: Operation,
    /// Position of the packet in its message or READ response.
    pub position: Position,
    /// Extension headers between BTH and payload, in wire order.
    pub headers: &'static [ExtHeader],
    header_len: u8,
    offsets: [u8; ExtHeader::COUNT],
}

impl OpcodeRow {
    /// Returns the length of BTH and extension headers in bytes, which is the payload's offset in the packet.
    #[must_use]
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.header_len as usize
    }

    /// Returns the offset of `header` from the start of the BTH in bytes, or `None` if this opcode does not
    /// have it.
    #[must_use]
    #[inline]
    pub const fn offset(&self, header: ExtHeader) -> Option<usize> {
        match self.offsets[header as usize] {
            0 => None,
            at => Some(at as usize),
        }
    }

    /// Returns whether the packet is a response, sent to the requester.
    #[must_use]
    #[inline]
    pub const fn is_response(&self) -> bool {
        matches!(self.operation, Operation::ReadResponse | Operation::Ack | Operation::AtomicAck)
    }

    /// Returns whether the packet is a request, sent to the responder. A CNP is neither request nor response.
    #[must_use]
    #[inline]
    pub const fn is_request(&self) -> bool {
        !self.is_response() && !matches!(self.operation, Operation::Cnp)
    }

    /// Returns whether the name contains each of `words`, which are separated by spaces or dashes. Case is
    /// ignored; `ack` and `imm` stand for `acknowledge` and `immediate`.
    #[must_use]
    pub fn is_called(&self, words: &str) -> bool {
        let in_full = |word| match word {
            "ack" => "acknowledge",
            "imm" => "immediate",
            word => word,
        };
        let has = |word: &str| {
            self.name
                .as_bytes()
                .windows(word.len().max(1))
                .any(|part| part.eq_ignore_ascii_case(word.as_bytes()))
        };
        words.split([' ', '-']).filter(|word| !word.is_empty()).all(|word| has(in_full(word)))
    }

    const fn new(
        opcode: u8,
        name: &'static str,
        service: Service,
        operation: Operation,
        position: Position,
        headers: &'static [ExtHeader],
    ) -> Self {
        let mut offsets = [0; ExtHeader::COUNT];
        let mut at = Bth::LEN;
        let mut i = 0;
        while i < headers.len() {
            // A BTH precedes every extension header, so offset 0 can mean "absent".
            offsets[headers[i] as usize] = at as u8;
            at += headers[i].len_bytes();
            i += 1;
        }
        let opcode = Opcode(opcode);
        Self { name, opcode, service, operation, position, headers, header_len: at as u8, offsets }
    }
}

/// Transport service of an opcode (its top three bits).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram. roxie only decodes it.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification packet, which belongs to no service.
    Cnp,
}

impl Service {
    /// Returns the short name, such as `RC` or `XRC`; `CNP` for a congestion notification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Rd => "RD",
            Service::Ud => "UD",
            Service::Xrc => "XRC",
            Service::Cnp => "CNP",
        }
    }
}

/// Operation of a packet, independent of service and position.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Operation {
    /// SEND.
    Send,
    /// Last or only packet of a SEND with immediate data.
    SendImm,
    /// Last or only packet of a SEND that invalidates an R_Key of the receiver.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// Last or only packet of an RDMA WRITE with immediate data, which consumes a receive.
    WriteImm,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response. FLUSH and ATOMIC WRITE have this response too.
    ReadResponse,
    /// ACK or NAK.
    Ack,
    /// Response to an atomic.
    AtomicAck,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// FLUSH: makes earlier writes visible or persistent.
    Flush,
    /// ATOMIC WRITE: writes eight bytes at once.
    AtomicWrite,
    /// Resynchronization of reliable datagrams.
    Resync,
    /// Congestion notification.
    Cnp,
}

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Position {
    /// First packet of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last packet of several.
    Last,
    /// The only packet of the message.
    Only,
}

impl Position {
    /// Returns whether a message starts with this packet.
    #[must_use]
    #[inline]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Returns whether a message ends with this packet.
    #[must_use]
    #[inline]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Extension header between BTH and payload.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ExtHeader {
    /// Reliable datagram extended transport header.
    Rdeth,
    /// Datagram extended transport header.
    Deth,
    /// XRC extended transport header.
    Xrceth,
    /// Flush extended transport header.
    Feth,
    /// RDMA extended transport header.
    Reth,
    /// Atomic extended transport header.
    AtomicEth,
    /// ACK extended transport header.
    Aeth,
    /// Atomic ACK extended transport header.
    AtomicAckEth,
    /// Immediate data.
    ImmDt,
    /// Invalidate extended transport header.
    Ieth,
    /// The sixteen reserved bytes of a CNP (Annex A17.9.3).
    CnpReserved,
}

impl ExtHeader {
    /// Number of extension headers.
    pub const COUNT: usize = 11;

    /// Length on the wire, in bytes.
    #[must_use]
    #[inline]
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Rdeth => Rdeth::LEN,
            Self::Deth => Deth::LEN,
            Self::Xrceth => Xrceth::LEN,
            Self::Feth => Feth::LEN,
            Self::Reth => Reth::LEN,
            Self::AtomicEth => AtomicEth::LEN,
            Self::Aeth => Aeth::LEN,
            Self::AtomicAckEth => AtomicAckEth::LEN,
            Self::ImmDt => ImmDt::LEN,
            Self::Ieth => Ieth::LEN,
            Self::CnpReserved => 16,
        }
    }

    /// Returns the name in the specification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdeth => "RDETH",
            Self::Deth => "DETH",
            Self::Xrceth => "XRCETH",
            Self::Feth => "FETH",
            Self::Reth => "RETH",
            Self::AtomicEth => "AtomicETH",
            Self::Aeth => "AETH",
            Self::AtomicAckEth => "AtomicAckETH",
            Self::ImmDt => "ImmDt",
            Self::Ieth => "IETH",
            Self::CnpReserved => "reserved",
        }
    }
}

impl fmt::Display for ExtHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! opcodes {
    ($($code:literal $id:ident: $name:literal, $service:ident, $operation:ident, $position:ident,
        [$($header:ident),*];)*) => {
        #[allow(missing_docs)] // The row of the same name describes each constant.
        impl Opcode {
            $(pub const $id: Self = Self($code);)*
        }

        /// Every opcode's row, indexed by the opcode byte; `None` is reserved or manufacturer-specific.
        pub static OPCODES: [Option<OpcodeRow>; 256] = {
            let mut table = [None; 256];
            $(table[$code] = Some(OpcodeRow::new(
                $code,
                $name,
                Service::$service,
                Operation::$operation,
                Position::$position,
                &[$(ExtHeader::$header),*],
            ));)*
            table
        };
    };
}

opcodes! {
    0x00 RC_SEND_FIRST: "RC SEND First", Rc, Send, First, [];
    0x01 RC_SEND_MIDDLE: "RC SEND Middle", Rc, Send, Middle, [];
    0x02 RC_SEND_LAST: "RC SEND Last", Rc, Send, Last, [];
    0x03 RC_SEND_LAST_IMM: "RC SEND Last Immediate", Rc, SendImm, Last, [ImmDt];
    0x04 RC_SEND_ONLY: "RC SEND Only", Rc, Send, Only, [];
    0x05 RC_SEND_ONLY_IMM: "RC SEND Only Immediate", Rc, SendImm, Only, [ImmDt];
    0x06 RC_WRITE_FIRST: "RC RDMA WRITE First", Rc, Write, First, [Reth];
    0x07 RC_WRITE_MIDDLE: "RC RDMA WRITE Middle", Rc, Write, Middle, [];
    0x08 RC_WRITE_LAST: "RC RDMA WRITE Last", Rc, Write, Last, [];
    0x09 RC_WRITE_LAST_IMM: "RC RDMA WRITE Last Immediate", Rc, WriteImm, Last, [ImmDt];
    0x0a RC_WRITE_ONLY: "RC RDMA WRITE Only", Rc, Write, Only, [Reth];
    0x0b RC_WRITE_ONLY_IMM: "RC RDMA WRITE Only Immediate", Rc, WriteImm, Only, [Reth, ImmDt];
    0x0c RC_READ_REQUEST: "RC RDMA READ Request", Rc, ReadRequest, Only, [Reth];
    0x0d RC_READ_RESPONSE_FIRST: "RC RDMA READ Response First", Rc, ReadResponse, First, [Aeth];
    0x0e RC_READ_RESPONSE_MIDDLE: "RC RDMA READ Response Middle", Rc, ReadResponse, Middle, [];
    0x0f RC_READ_RESPONSE_LAST: "RC RDMA READ Response Last", Rc, ReadResponse, Last, [Aeth];
    0x10 RC_READ_RESPONSE_ONLY: "RC RDMA READ Response Only", Rc, ReadResponse, Only, [Aeth];
    0x11 RC_ACKNOWLEDGE: "RC Acknowledge", Rc, Ack, Only, [Aeth];
    0x12 RC_ATOMIC_ACKNOWLEDGE: "RC Atomic Acknowledge", Rc, AtomicAck, Only, [Aeth, AtomicAckEth];
    0x13 RC_COMPARE_SWAP: "RC Compare Swap", Rc, CompareSwap, Only, [AtomicEth];
    0x14 RC_FETCH_ADD: "RC Fetch Add", Rc, FetchAdd, Only, [AtomicEth];
    0x16 RC_SEND_LAST_INV: "RC SEND Last Invalidate", Rc, SendInv, Last, [Ieth];
    0x17 RC_SEND_ONLY_INV: "RC SEND Only Invalidate", Rc, SendInv, Only, [Ieth];
    0x1c RC_FLUSH: "RC FLUSH", Rc, Flush, Only, [Feth, Reth];
    0x1d RC_ATOMIC_WRITE: "RC ATOMIC WRITE", Rc, AtomicWrite, Only, [Reth];

    0x20 UC_SEND_FIRST: "UC SEND First", Uc, Send, First, [];
    0x21 UC_SEND_MIDDLE: "UC SEND Middle", Uc, Send, Middle, [];
    0x22 UC_SEND_LAST: "UC SEND Last", Uc, Send, Last, [];
    0x23 UC_SEND_LAST_IMM: "UC SEND Last Immediate", Uc, SendImm, Last, [ImmDt];
    0x24 UC_SEND_ONLY: "UC SEND Only", Uc, Send, Only, [];
    0x25 UC_SEND_ONLY_IMM: "UC SEND Only Immediate", Uc, SendImm, Only, [ImmDt];
    0x26 UC_WRITE_FIRST: "UC RDMA WRITE First", Uc, Write, First, [Reth];
    0x27 UC_WRITE_MIDDLE: "UC RDMA WRITE Middle", Uc, Write, Middle, [];
    0x28 UC_WRITE_LAST: "UC RDMA WRITE Last", Uc, Write, Last, [];
    0x29 UC_WRITE_LAST_IMM: "UC RDMA WRITE Last Immediate", Uc, WriteImm, Last, [ImmDt];
    0x2a UC_WRITE_ONLY: "UC RDMA WRITE Only", Uc, Write, Only, [Reth];
    0x2b UC_WRITE_ONLY_IMM: "UC RDMA WRITE Only Immediate", Uc, WriteImm, Only, [Reth, ImmDt];

    0x40 RD_SEND_FIRST: "RD SEND First", Rd, Send, First, [Rdeth, Deth];
    0x41 RD_SEND_MIDDLE: "RD SEND Middle", Rd, Send, Middle, [Rdeth, Deth];
    0x42 RD_SEND_LAST: "RD SEND Last", Rd, Send, Last, [Rdeth, Deth];
    0x43 RD_SEND_LAST_IMM: "RD SEND Last Immediate", Rd, SendImm, Last, [Rdeth, Deth, ImmDt];
    0x44 RD_SEND_ONLY: "RD SEND Only", Rd, Send, Only, [Rdeth, Deth];
    0x45 RD_SEND_ONLY_IMM: "RD SEND Only Immediate", Rd, SendImm, Only, [Rdeth, Deth, ImmDt];
    0x46 RD_WRITE_FIRST: "RD RDMA WRITE First", Rd, Write, First, [Rdeth, Deth, Reth];
    0x47 RD_WRITE_MIDDLE: "RD RDMA WRITE Middle", Rd, Write, Middle, [Rdeth, Deth];
    0x48 RD_WRITE_LAST: "RD RDMA WRITE Last", Rd, Write, Last, [Rdeth, Deth];
    0x49 RD_WRITE_LAST_IMM: "RD RDMA WRITE Last Immediate", Rd, WriteImm, Last, [Rdeth, Deth, ImmDt];
    0x4a RD_WRITE_ONLY: "RD RDMA WRITE Only", Rd, Write, Only, [Rdeth, Deth, Reth];
    0x4b RD_WRITE_ONLY_IMM: "RD RDMA WRITE Only Immediate", Rd, WriteImm, Only, [Rdeth, Deth, Reth, ImmDt];
    0x4c RD_READ_REQUEST: "RD RDMA READ Request", Rd, ReadRequest, Only, [Rdeth, Deth, Reth];
    0x4d RD_READ_RESPONSE_FIRST: "RD RDMA READ Response First", Rd, ReadResponse, First, [Rdeth, Aeth];
    0x4e RD_READ_RESPONSE_MIDDLE: "RD RDMA READ Response Middle", Rd, ReadResponse, Middle, [Rdeth];
    0x4f RD_READ_RESPONSE_LAST: "RD RDMA READ Response Last", Rd, ReadResponse, Last, [Rdeth, Aeth];
    0x50 RD_READ_RESPONSE_ONLY: "RD RDMA READ Response Only", Rd, ReadResponse, Only, [Rdeth, Aeth];
    0x51 RD_ACKNOWLEDGE: "RD Acknowledge", Rd, Ack, Only, [Rdeth, Aeth];
    0x52 RD_ATOMIC_ACKNOWLEDGE: "RD Atomic Acknowledge", Rd, AtomicAck, Only, [Rdeth, Aeth, AtomicAckEth];
    0x53 RD_COMPARE_SWAP: "RD Compare Swap", Rd, CompareSwap, Only, [Rdeth, Deth, AtomicEth];
    0x54 RD_FETCH_ADD: "RD Fetch Add", Rd, FetchAdd, Only, [Rdeth, Deth, AtomicEth];
    0x55 RD_RESYNC: "RD RESYNC", Rd, Resync, Only, [Rdeth, Deth];
    0x5c RD_FLUSH: "RD FLUSH", Rd, Flush, Only, [Rdeth, Deth, Feth, Reth];

    0x64 UD_SEND_ONLY: "UD SEND Only", Ud, Send, Only, [Deth];
    0x65 UD_SEND_ONLY_IMM: "UD SEND Only Immediate", Ud, SendImm, Only, [Deth, ImmDt];

    0x81 CNP: "CNP", Cnp, Cnp, Only, [CnpReserved];

    0xa0 XRC_SEND_FIRST: "XRC SEND First", Xrc, Send, First, [Xrceth];
    0xa1 XRC_SEND_MIDDLE: "XRC SEND Middle", Xrc, Send, Middle, [Xrceth];
    0xa2 XRC_SEND_LAST: "XRC SEND Last", Xrc, Send, Last, [Xrceth];
    0xa3 XRC_SEND_LAST_IMM: "XRC SEND Last Immediate", Xrc, SendImm, Last, [Xrceth, ImmDt];
    0xa4 XRC_SEND_ONLY: "XRC SEND Only", Xrc, Send, Only, [Xrceth];
    0xa5 XRC_SEND_ONLY_IMM: "XRC SEND Only Immediate", Xrc, SendImm, Only, [Xrceth, ImmDt];
    0xa6 XRC_WRITE_FIRST: "XRC RDMA WRITE First", Xrc, Write, First, [Xrceth, Reth];
    0xa7 XRC_WRITE_MIDDLE: "XRC RDMA WRITE Middle", Xrc, Write, Middle, [Xrceth];
    0xa8 XRC_WRITE_LAST: "XRC RDMA WRITE Last", Xrc, Write, Last, [Xrceth];
    0xa9 XRC_WRITE_LAST_IMM: "XRC RDMA WRITE Last Immediate", Xrc, WriteImm, Last, [Xrceth, ImmDt];
    0xaa XRC_WRITE_ONLY: "XRC RDMA WRITE Only", Xrc, Write, Only, [Xrceth, Reth];
    0xab XRC_WRITE_ONLY_IMM: "XRC RDMA WRITE Only Immediate", Xrc, WriteImm, Only, [Xrceth, Reth, ImmDt];
    0xac XRC_READ_REQUEST: "XRC RDMA READ Request", Xrc, ReadRequest, Only, [Xrceth, Reth];
    0xad XRC_READ_RESPONSE_FIRST: "XRC RDMA READ Response First", Xrc, ReadResponse, First, [Aeth];
    0xae XRC_READ_RESPONSE_MIDDLE: "XRC RDMA READ Response Middle", Xrc, ReadResponse, Middle, [];
    0xaf XRC_READ_RESPONSE_LAST: "XRC RDMA READ Response Last", Xrc, ReadResponse, Last, [Aeth];
    0xb0 XRC_READ_RESPONSE_ONLY: "XRC RDMA READ Response Only", Xrc, ReadResponse, Only, [Aeth];
    0xb1 XRC_ACKNOWLEDGE: "XRC Acknowledge", Xrc, Ack, Only, [Aeth];
    0xb2 XRC_ATOMIC_ACKNOWLEDGE: "XRC Atomic Acknowledge", Xrc, AtomicAck, Only, [Aeth, AtomicAckEth];
    0xb3 XRC_COMPARE_SWAP: "XRC Compare Swap", Xrc, CompareSwap, Only, [Xrceth, AtomicEth];
    0xb4 XRC_FETCH_ADD: "XRC Fetch Add", Xrc, FetchAdd, Only, [Xrceth, AtomicEth];
    0xb6 XRC_SEND_LAST_INV: "XRC SEND Last Invalidate", Xrc, SendInv, Last, [Xrceth, Ieth];
    0xb7 XRC_SEND_ONLY_INV: "XRC SEND Only Invalidate", Xrc, SendInv, Only, [Xrceth, Ieth];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defined(base: u8) -> impl Iterator<Item = u8> {
        (base..=base | 0x1f).filter(|&code| Opcode(code).row().is_some()).map(move |code| code - base)
    }

    #[test]
    fn exactly_the_opcodes_of_the_specification_are_defined() {
        assert!(defined(0x00).eq((0..=0x14).chain([0x16, 0x17, 0x1c, 0x1d])), "RC");
        assert!(defined(0x20).eq(0..=0x0b), "UC");
        assert!(defined(0x40).eq((0..=0x15).chain([0x1c])), "RD");
        assert!(defined(0x60).eq([4, 5]), "UD");
        assert!(defined(0x80).eq([1]), "CNP");
        assert!(defined(0xa0).eq((0..=0x14).chain([0x16, 0x17])), "XRC");
        assert!(defined(0xc0).chain(defined(0xe0)).next().is_none(), "manufacturer");
    }

    #[test]
    fn a_row_knows_its_own_opcode_and_its_service_is_the_top_three_bits() {
        for (code, row) in (0u8..=255).zip(OPCODES.iter()) {
            let Some(row) = row else { continue };
            assert_eq!(row.opcode, Opcode(code));
            let service = match code >> 5 {
                0 => Service::Rc,
                1 => Service::Uc,
                2 => Service::Rd,
                3 => Service::Ud,
                4 => Service::Cnp,
                _ => Service::Xrc,
            };
            assert_eq!(row.service, service, "{}", row.name);
        }
    }

    #[test]
    fn the_low_five_bits_have_one_meaning_in_every_service() {
        for row in OPCODES.iter().flatten().filter(|row| row.service != Service::Cnp) {
            let low = row.opcode.0 & 0x1f;
            let Some(rc) = Opcode(low).row() else {
                assert_eq!(row.opcode, Opcode::RD_RESYNC);
                continue;
            };
            assert_eq!((row.operation, row.position), (rc.operation, rc.position), "{}", row.name);
            // The headers of the service precede those of the operation.
            assert!(row.headers.ends_with(rc.headers), "{}", row.name);
            let added: &[ExtHeader] = match row.service {
                Service::Rd if row.is_response() => &[ExtHeader::Rdeth],
                Service::Rd => &[ExtHeader::Rdeth, ExtHeader::Deth],
                Service::Ud => &[ExtHeader::Deth],
                Service::Xrc if row.is_request() => &[ExtHeader::Xrceth],
                _ => &[],
            };
            assert!(row.headers.starts_with(added), "{}", row.name);
            assert_eq!(row.headers.len(), added.len() + rc.headers.len(), "{}", row.name);
        }
    }

    #[test]
    fn header_offsets_are_the_sums_of_the_preceding_headers() {
        let row = Opcode::RC_WRITE_ONLY_IMM.row().unwrap();
        assert_eq!(row.offset(ExtHeader::Reth), Some(12));
        assert_eq!(row.offset(ExtHeader::ImmDt), Some(28));
        assert_eq!(row.header_len(), 32);
        assert_eq!(row.offset(ExtHeader::Aeth), None);

        let row = Opcode::XRC_COMPARE_SWAP.row().unwrap();
        assert_eq!(row.offset(ExtHeader::AtomicEth), Some(16));
        assert_eq!(row.header_len(), 44);

        assert_eq!(Opcode::RC_FLUSH.row().unwrap().offset(ExtHeader::Reth), Some(16));
        assert_eq!(Opcode::CNP.row().unwrap().header_len(), 28);
        assert_eq!(Opcode::RC_READ_RESPONSE_MIDDLE.row().unwrap().header_len(), 12);
    }

    #[test]
    fn a_row_matches_words_of_its_name() {
        let row = Opcode::RC_WRITE_ONLY_IMM.row().unwrap();
        for words in ["", "write", "Write-only imm", "rc rdma write only immediate"] {
            assert!(row.is_called(words), "{words}");
        }
        assert!(!row.is_called("write last") && !row.is_called("writeonly"));
        assert!(Opcode::RC_ATOMIC_ACKNOWLEDGE.row().unwrap().is_called("atomic ack"));
    }

    #[test]
    fn requests_responses_and_cnps_are_distinguished() {
        assert!(Opcode::XRC_ATOMIC_ACKNOWLEDGE.row().unwrap().is_response());
        assert!(Opcode::RC_FLUSH.row().unwrap().is_request());
        let cnp = Opcode::CNP.row().unwrap();
        assert!(!cnp.is_request() && !cnp.is_response());
    }
}

//! Receive hints: what a driver knows about a packet besides its bytes. A program asks the driver by kernel
//! functions (`bpf_xdp_metadata_rx_*`, since Linux 6.3) and writes the answers in front of the packet, where
//! AF_XDP sockets and classifier programs find them.
//!
//! ```text
//!  0: magic     4: which hints there are, and the type of the hash (upper 16 bits)
//!  8: time at which the program ran, CLOCK_MONOTONIC
//! 16: receive time on the clock of the NIC
//! 24: hash     28: VLAN TCI     30: VLAN protocol, in network order
//! ```

use crate::asm::{Asm, Label};
use crate::btf::function_named;
use crate::helper::Helper;
use crate::insn::{AluOp, Cond, Insn, Reg, Size};
use crate::program::Kfunc;
use crate::xdp::XdpMd;

/// What the driver said about one received packet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Hints {
    /// Time at which the XDP program ran, CLOCK_MONOTONIC in nanoseconds.
    pub arrived_ns: u64,
    /// Receive time on the clock of the NIC, in nanoseconds.
    pub timestamp_ns: Option<u64>,
    /// Hash of the flow, and what it covers (`enum xdp_rss_hash_type`).
    pub hash: Option<(u32, u16)>,
    /// The VLAN tag that the driver took out of the packet: protocol (0x8100 or 0x88a8) and TCI.
    pub vlan: Option<(u16, u16)>,
}

/// The kernel functions that give the hints; `None` for one that the kernel does not have.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HintKfuncs {
    /// `bpf_xdp_metadata_rx_timestamp`
    pub timestamp: Option<Kfunc>,
    /// `bpf_xdp_metadata_rx_hash`
    pub hash: Option<Kfunc>,
    /// `bpf_xdp_metadata_rx_vlan_tag`
    pub vlan: Option<Kfunc>,
}

/// Marks metadata that [`Asm::push_hints`] has written. Bytes that another program left there differ.
pub(crate) const MAGIC: u32 = 0x5258_4831;
pub(crate) const HAS_TIMESTAMP: u32 = 1;
const HAS_HASH: u32 = 2;
const HAS_VLAN: u32 = 4;

pub(crate) const PRESENT: i16 = 4;
pub(crate) const ARRIVED: i16 = 8;
pub(crate) const TIMESTAMP: i16 = 16;
const HASH: i16 = 24;
const TCI: i16 = 28;
const PROTOCOL: i16 = 30;
/// Stack offset of the hash type, before the hints.
const HASH_TYPE: i16 = -8;

impl Hints {
    /// Length in the metadata area in bytes. Kernels before 6.17 accept at most 32.
    pub const LEN: usize = 32;

    /// Decodes the bytes directly in front of a packet; `None` if they are no hints.
    #[must_use]
    pub fn parse(metadata: &[u8; Self::LEN]) -> Option<Hints> {
        let word = |at: i16| {
            let at = at as usize;
            u32::from_le_bytes([metadata[at], metadata[at + 1], metadata[at + 2], metadata[at + 3]])
        };
        let long = |at: i16| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if word(0) != MAGIC {
            return None;
        }
        let present = word(PRESENT);
        let (tci, protocol) = (TCI as usize, PROTOCOL as usize);
        let vlan = (
            u16::from_be_bytes([metadata[protocol], metadata[protocol + 1]]),
            u16::from_le_bytes([metadata[tci], metadata[tci + 1]]),
        );
        Some(Hints {
            arrived_ns: long(ARRIVED),
            timestamp_ns: (present & HAS_TIMESTAMP != 0).then(|| long(TIMESTAMP)),
            hash: (present & HAS_HASH != 0).then(|| (word(HASH), (present >> 16) as u16)),
            vlan: (present & HAS_VLAN != 0).then_some(vlan),
        })
    }
}

impl HintKfuncs {
    /// Finds the functions in the types of the running kernel (`/sys/kernel/btf/vmlinux`).
    #[must_use]
    pub fn of_kernel(types: &[u8]) -> HintKfuncs {
        let find = |name: &str| function_named(types, name);
        let [timestamp, hash, vlan] = ["timestamp", "hash", "vlan_tag"].map(|what| {
            let name = format!("bpf_xdp_metadata_rx_{what}");
            find(&name).map(|id| Kfunc { name, id: Some(id) })
        });
        HintKfuncs { timestamp, hash, vlan }
    }

    /// Whether the kernel has none of them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.timestamp.is_none() && self.hash.is_none() && self.vlan.is_none()
    }
}

impl Asm {
    /// Emits code that stores the [`Hints`] of the packet at `R10 + at`, which must be a multiple of 8; the
    /// 8 bytes below are used too. `ctx` must be R6 to R9. R0 to R5 are clobbered.
    pub fn read_hints(&mut self, ctx: Reg, at: i16, kfuncs: &HintKfuncs) -> &mut Asm {
        for word in (HASH_TYPE..Hints::LEN as i16).step_by(8) {
            self.store(Size::Dw, Reg::R10, at + word, 0);
        }
        self.store(Size::W, Reg::R10, at, MAGIC as i32);
        self.call(Helper::KtimeGetNs).store(Size::Dw, Reg::R10, at + ARRIVED, Reg::R0);
        if let Some(kfunc) = &kfuncs.timestamp {
            let none = self.label();
            self.ask(ctx, &[at + TIMESTAMP], kfunc, none);
            // A veth has the function, and answers 0 for a packet that no NIC received.
            self.load(Size::Dw, Reg::R1, Reg::R10, at + TIMESTAMP).branch(Cond::Eq, Reg::R1, 0, none);
            self.present(at, HAS_TIMESTAMP).bind(none);
        }
        if let Some(kfunc) = &kfuncs.hash {
            let none = self.label();
            self.ask(ctx, &[at + HASH, at + HASH_TYPE], kfunc, none);
            self.load(Size::H, Reg::R1, Reg::R10, at + HASH_TYPE);
            self.store(Size::H, Reg::R10, at + PRESENT + 2, Reg::R1);
            self.present(at, HAS_HASH).bind(none);
        }
        if let Some(kfunc) = &kfuncs.vlan {
            let none = self.label();
            self.ask(ctx, &[at + PROTOCOL, at + TCI], kfunc, none).present(at, HAS_VLAN).bind(none);
        }
        self
    }

    /// Emits a call with `ctx` and these places of the stack; without an answer it jumps to `none`.
    fn ask(&mut self, ctx: Reg, places: &[i16], kfunc: &Kfunc, none: Label) -> &mut Asm {
        self.mov(Reg::R1, ctx);
        for (&place, reg) in places.iter().zip([Reg::R2, Reg::R3]) {
            self.mov(reg, Reg::R10).add(reg, i32::from(place));
        }
        self.call_kfunc(kfunc).branch(Cond::Ne, Reg::R0, 0, none)
    }

    fn present(&mut self, at: i16, bit: u32) -> &mut Asm {
        self.load(Size::H, Reg::R1, Reg::R10, at + PRESENT).alu(AluOp::Or, Reg::R1, bit as i32);
        self.store(Size::H, Reg::R10, at + PRESENT, Reg::R1)
    }

    /// Emits code that copies the hints at `R10 + at` in front of the packet. It jumps to `fails` if the
    /// driver has no metadata area. R0 to R3 are clobbered, and pointers to the packet become invalid.
    pub fn push_hints(&mut self, ctx: Reg, at: i16, fails: Label) -> &mut Asm {
        self.mov(Reg::R1, ctx).mov(Reg::R2, -(Hints::LEN as i32)).call(Helper::XdpAdjustMeta);
        self.branch(Cond::Ne, Reg::R0, 0, fails);
        self.load_ctx(Reg::R1, ctx, XdpMd::DataMeta).load_ctx(Reg::R2, ctx, XdpMd::Data);
        self.need(Reg::R3, Reg::R1, Hints::LEN as i32, Reg::R2, fails);
        for word in (0..Hints::LEN as i16).step_by(8) {
            self.load(Size::Dw, Reg::R3, Reg::R10, at + word).store(Size::Dw, Reg::R1, word, Reg::R3);
        }
        self
    }

    /// Calls a function of the kernel. Arguments and result are as with [`Asm::call`].
    pub fn call_kfunc(&mut self, kfunc: &Kfunc) -> &mut Asm {
        let id = self.kfunc(kfunc);
        self.insn(Insn::CallKfunc { id, btf: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;
    use crate::vm::{Env, Image, Machine, RxHints, XdpBuff};
    use crate::xdp::XdpAction;

    fn kfuncs() -> HintKfuncs {
        let of = |what: &str| Some(Kfunc { name: format!("bpf_xdp_metadata_rx_{what}"), id: None });
        HintKfuncs { timestamp: of("timestamp"), hash: of("hash"), vlan: of("vlan_tag") }
    }

    fn program() -> Program {
        let mut asm = Asm::new("hints");
        let fails = asm.label();
        asm.mov(Reg::R6, Reg::R1).read_hints(Reg::R6, -32, &kfuncs()).push_hints(Reg::R6, -32, fails);
        asm.ret(XdpAction::Pass).bind(fails).ret(XdpAction::Drop);
        asm.finish().unwrap()
    }

    struct Driver(RxHints);

    impl Env for Driver {
        fn ktime_ns(&mut self) -> u64 {
            77
        }
        fn random(&mut self) -> u32 {
            4
        }
        fn rx_hints(&mut self) -> RxHints {
            self.0
        }
    }

    fn run(hints: RxHints) -> Option<Hints> {
        let image = Image::new(&program(), Vec::new()).unwrap();
        let mut buffer = [0; 256 + 60];
        let mut buff = XdpBuff::new(&mut buffer, 256..316).unwrap();
        let outcome = Machine::new(0).run(&image, &mut buff, &mut Driver(hints));
        assert_eq!(outcome.action(), XdpAction::Pass, "{outcome:?}");
        Hints::parse(buff.metadata().try_into().unwrap())
    }

    #[test]
    fn the_answers_of_the_driver_are_in_front_of_the_packet() {
        let all = RxHints {
            timestamp_ns: Some(0x0102_0304_0506_0708),
            hash: Some((0x1122_3344, 0x109)),
            vlan: Some((0x88a8, 0x2007)),
        };
        let expected =
            Hints { arrived_ns: 77, timestamp_ns: all.timestamp_ns, hash: all.hash, vlan: all.vlan };
        assert_eq!(run(all), Some(expected));
        let none = Hints { arrived_ns: 77, ..Hints::default() };
        assert_eq!(run(RxHints::default()), Some(none));
        let zero = RxHints { timestamp_ns: Some(0), ..RxHints::default() };
        assert_eq!(run(zero), Some(none), "the time of a veth is none");
        let tag = RxHints { vlan: Some((0x8100, 0)), ..RxHints::default() };
        assert_eq!(run(tag), Some(Hints { vlan: Some((0x8100, 0)), ..none }), "a priority tag is a tag");
    }

    #[test]
    fn other_metadata_is_no_hint() {
        assert_eq!(Hints::parse(&[0; Hints::LEN]), None);
        assert_eq!(Hints::parse(&[0xff; Hints::LEN]), None);
    }
}

//! Work completions, with the values and the layout of the verbs interface.

use crate::cause::Cause;
use crate::wc_status::WcStatus;

/// A work completion; laid out as `ibv_wc`, 48 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Wc {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Result of the work request.
    pub status: WcStatus,
    /// Its operation; valid only on success.
    pub opcode: WcOpcode,
    /// Why it failed: [`Cause::vendor_err`](crate::Cause::vendor_err); 0 on success, and where another
    /// process completed a receive of an XRC shared receive queue.
    pub vendor_err: u32,
    /// Bytes received (for UD with the 40-byte GRH area), or read.
    pub byte_len: u32,
    /// Immediate data as the peer's application stored it, or the invalidated key in host order.
    pub imm_data: [u8; 4],
    /// The local queue pair.
    pub qp_num: u32,
    /// The sender's queue pair (receive completions).
    pub src_qp: u32,
    /// [`Wc::GRH`], [`Wc::WITH_IMM`], [`Wc::WITH_INV`].
    pub wc_flags: u32,
    /// Index of the P_Key; 0.
    pub pkey_index: u16,
    /// InfiniBand only; 0.
    pub slid: u16,
    /// Datagrams: the kind of IP header, [`Wc::SL_IPV4`] or [`Wc::SL_IPV6`]; else 0. RoCE has no service
    /// levels.
    pub sl: u8,
    /// InfiniBand only; 0.
    pub dlid_path_bits: u8,
}

impl Wc {
    /// RoCEv2 with an IPv4 header, in `sl` as mlx5 does: UCX needs it to find the address. (IBA A17.4.5.1
    /// wants a flag, for which verbs have no field.)
    pub const SL_IPV4: u8 = 0xa;
    /// RoCEv2 with an IPv6 header.
    pub const SL_IPV6: u8 = 0x9;
    /// The first 40 bytes of the buffer are the GRH area.
    pub const GRH: u32 = 1;
    /// `imm_data` is immediate data.
    pub const WITH_IMM: u32 = 2;
    /// `imm_data` is the invalidated key.
    pub const WITH_INV: u32 = 8;

    /// Whether `opcode` names a receive.
    #[inline]
    #[must_use]
    pub fn is_receive(&self) -> bool {
        self.opcode as u32 & WcOpcode::Recv as u32 != 0
    }
}

impl Wc {
    /// The completion with the status and the vendor error code of this result.
    #[inline]
    #[must_use]
    pub fn with_result(self, result: Result<(), Cause>) -> Self {
        match result {
            Ok(()) => Self { status: WcStatus::Success, vendor_err: 0, ..self },
            Err(cause) => Self { status: cause.status(), vendor_err: cause.vendor_err(), ..self },
        }
    }
}

const _: () = assert!(size_of::<Wc>() == 48);

/// `ibv_wc_opcode`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
#[allow(missing_docs)] // the names are the verbs ones
pub enum WcOpcode {
    #[default]
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Tso = 7,
    Flush = 8,
    AtomicWrite = 9,
    /// As `IB_WC_REG_MR` in the kernel; libibverbs has no name for it.
    RegMr = 10,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

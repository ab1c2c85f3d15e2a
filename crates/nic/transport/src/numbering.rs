//! How queue pair numbers and communication ids name a process of a host.
//!
//! The numbers of a host are divided into *slots*. A slot is a block of 4096 QPNs, those with the same
//! upper 12 bits, and the communication ids with the same upper 12 bits. A process owns the slots that
//! its numbers are in, so the kernel can steer a packet to its process by these bits alone.

use wire::Qpn;

/// Slots of a host: all values of 12 bits but the last, which has the QPN of multicast packets. Half of
/// it would be too few for a large MPI node with several engines per process; double would leave 2048
/// queue pairs per slot.
pub const SLOTS: u16 = (1 << 12) - 1;
/// QPNs of a slot.
pub const SLOT_QPNS: u32 = 1 << QPN_SHIFT;

/// Position of the slot in a QPN: bits 23..12.
pub const QPN_SHIFT: u32 = 12;
/// Position of the slot in a communication id: bits 31..20.
pub const ID_SHIFT: u32 = 20;

/// Returns the slot that a QPN is in.
#[inline]
#[must_use]
pub const fn slot_of(qpn: Qpn) -> u16 {
    (qpn.value() >> QPN_SHIFT) as u16
}

/// Returns the place of a QPN within its slot, less than [`SLOT_QPNS`].
#[inline]
#[must_use]
pub const fn place_of(qpn: Qpn) -> u32 {
    qpn.value() % SLOT_QPNS
}

/// Returns the QPN at a place of a slot.
#[inline]
#[must_use]
pub fn qpn_at(slot: u16, place: u32) -> Qpn {
    debug_assert!(slot <= SLOTS && place < SLOT_QPNS);
    Qpn::new(u32::from(slot) << QPN_SHIFT | place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_and_place_lead_back_to_the_number() {
        for qpn in [0, 1, 0xfff, 0x1000, 0x12_3456, 0xff_ffff].map(Qpn::new) {
            assert_eq!(qpn_at(slot_of(qpn), place_of(qpn)), qpn);
        }
        assert_eq!((slot_of(Qpn::MULTICAST), place_of(Qpn::MULTICAST)), (SLOTS, SLOT_QPNS - 1));
    }
}

//! Management classes other than connection management, and those of their attributes that are used over
//! Ethernet (IBA 13.4.8, 16.1.3).

use wire::{Gid, MadHeader};

/// Class of performance management.
const PERFORMANCE: u8 = 0x04;

/// The name of a management class.
pub(super) fn name(class: u8) -> &'static str {
    match class {
        0x01 | 0x81 => "subnet management",
        0x03 => "subnet administration",
        PERFORMANCE => "performance management",
        0x05 => "baseboard management",
        0x06 => "device management",
        MadHeader::CLASS_CM => "connection management",
        0x08 => "SNMP tunnelling",
        0x09..=0x0f | 0x30..=0x4f => "vendor class",
        0x10..=0x2f => "application class",
        _ => "unknown class",
    }
}

/// An attribute with known fields.
pub(super) struct Attribute {
    pub(super) title: &'static str,
    pub(super) rows: &'static [Row],
}

/// One field: `width` bits after the first `skip` bits of `byte`, most significant first.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    byte: usize,
    skip: usize,
    pub(super) width: usize,
    pub(super) decimal: bool,
}

impl Row {
    /// The field's value; bits beyond the end are zero.
    pub(super) fn value(&self, body: &[u8]) -> u64 {
        let first = self.byte * 8 + self.skip;
        (first..first + self.width).fold(0, |value, bit| {
            let byte = body.get(bit / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        })
    }

    /// The field's 16 bytes as a GID; zero if they are not all there.
    pub(super) fn gid(&self, body: &[u8]) -> Gid {
        body.get(self.byte..).and_then(|rest| rest.first_chunk()).map_or(Gid::ZERO, |bytes| Gid(*bytes))
    }
}

/// The attribute in a MAD; `None` if its fields are unknown.
pub(super) fn attribute(header: &MadHeader) -> Option<&'static Attribute> {
    match (header.mgmt_class, header.attribute_id) {
        (_, 0x0001) => Some(&CLASS_PORT_INFO),
        (PERFORMANCE, 0x0012) => Some(&PORT_COUNTERS),
        (PERFORMANCE, 0x001d) => Some(&PORT_COUNTERS_EXT),
        _ => None,
    }
}

/// Reserved bytes between the common header and the attribute, by class.
pub(super) fn reserved(class: u8) -> usize {
    if class == PERFORMANCE { 40 } else { 0 }
}

const fn hex(name: &'static str, label: &'static str, byte: usize, skip: usize, width: usize) -> Row {
    Row { name, label, byte, skip, width, decimal: false }
}

const fn decimal(name: &'static str, label: &'static str, byte: usize, skip: usize, width: usize) -> Row {
    Row { name, label, byte, skip, width, decimal: true }
}

static CLASS_PORT_INFO: Attribute = Attribute {
    title: "ClassPortInfo",
    rows: &[
        hex("infiniband.classportinfo.baseversion", "BaseVersion", 0, 0, 8),
        hex("infiniband.classportinfo.classversion", "ClassVersion", 1, 0, 8),
        hex("infiniband.classportinfo.capabilitymask", "CapabilityMask", 2, 0, 16),
        hex("infiniband.classportinfo.capabilitymask2", "CapabilityMask2", 4, 0, 27),
        hex("infiniband.classportinfo.resptimevalue", "RespTimeValue", 7, 3, 5),
        hex("infiniband.classportinfo.redirectgid", "RedirectGID", 8, 0, 128),
        hex("infiniband.classportinfo.redirecttc", "RedirectTC", 24, 0, 8),
        hex("infiniband.classportinfo.redirectsl", "RedirectSL", 25, 0, 4),
        hex("infiniband.classportinfo.redirectfl", "RedirectFL", 25, 4, 20),
        hex("infiniband.classportinfo.redirectlid", "RedirectLID", 28, 0, 16),
        hex("infiniband.classportinfo.redirectpkey", "RedirectP_Key", 30, 0, 16),
        hex("infiniband.classportinfo.redirectqp", "RedirectQP", 33, 0, 24),
        hex("infiniband.classportinfo.redirectqkey", "RedirectQ_Key", 36, 0, 32),
        hex("infiniband.classportinfo.trapgid", "TrapGID", 40, 0, 128),
        hex("infiniband.classportinfo.traptc", "TrapTC", 56, 0, 8),
        hex("infiniband.classportinfo.trapsl", "TrapSL", 57, 0, 4),
        hex("infiniband.classportinfo.trapfl", "TrapFL", 57, 4, 20),
        hex("infiniband.classportinfo.traplid", "TrapLID", 60, 0, 16),
        hex("infiniband.classportinfo.trappkey", "TrapP_Key", 62, 0, 16),
        decimal("roxie.classportinfo.traphl", "TrapHL", 64, 0, 8),
        hex("infiniband.classportinfo.trapqp", "TrapQP", 65, 0, 24),
        hex("infiniband.classportinfo.trapqkey", "TrapQ_Key", 68, 0, 32),
    ],
};

static PORT_COUNTERS: Attribute = Attribute {
    title: "PortCounters",
    rows: &[
        hex("infiniband.portcounters.portselect", "PortSelect", 1, 0, 8),
        hex("infiniband.portcounters.counterselect", "CounterSelect", 2, 0, 16),
        decimal("infiniband.portcounters.symbolerrorcounter", "SymbolErrorCounter", 4, 0, 16),
        decimal("infiniband.portcounters.linkerrorrecoverycounter", "LinkErrorRecoveryCounter", 6, 0, 8),
        decimal("infiniband.portcounters.linkdownedcounter", "LinkDownedCounter", 7, 0, 8),
        decimal("infiniband.portcounters.portrcverrors", "PortRcvErrors", 8, 0, 16),
        decimal(
            "infiniband.portcounters.portrcvremotephysicalerrors",
            "PortRcvRemotePhysicalErrors",
            10,
            0,
            16,
        ),
        decimal("infiniband.portcounters.portrcvswitchrelayerrors", "PortRcvSwitchRelayErrors", 12, 0, 16),
        decimal("infiniband.portcounters.portxmitdiscards", "PortXmitDiscards", 14, 0, 16),
        decimal("infiniband.portcounters.portxmitconstrainterrors", "PortXmitConstraintErrors", 16, 0, 8),
        decimal("infiniband.portcounters.portrcvconstrainterrors", "PortRcvConstraintErrors", 17, 0, 8),
        decimal("roxie.portcounters.counterselect2", "CounterSelect2", 18, 0, 8),
        decimal("infiniband.portcounters.locallinkintegrityerrors", "LocalLinkIntegrityErrors", 19, 0, 4),
        decimal(
            "infiniband.portcounters.excessivebufferoverrunerrors",
            "ExcessiveBufferOverrunErrors",
            19,
            4,
            4,
        ),
        decimal("infiniband.portcounters.vl15dropped", "VL15Dropped", 22, 0, 16),
        decimal("infiniband.portcounters.portxmitdata", "PortXmitData", 24, 0, 32),
        decimal("infiniband.portcounters.portrcvdata", "PortRcvData", 28, 0, 32),
        decimal("infiniband.portcounters.portxmitpkts", "PortXmitPkts", 32, 0, 32),
        decimal("infiniband.portcounters.portrcvpkts", "PortRcvPkts", 36, 0, 32),
        decimal("roxie.portcounters.portxmitwait", "PortXmitWait", 40, 0, 32),
    ],
};

static PORT_COUNTERS_EXT: Attribute = Attribute {
    title: "PortCountersExtended",
    rows: &[
        hex("infiniband.portcounters_ext.portselect", "PortSelect", 1, 0, 8),
        hex("infiniband.portcounters_ext.counterselect", "CounterSelect", 2, 0, 16),
        decimal("infiniband.portcounters_ext.portxmitdata", "PortXmitData", 8, 0, 64),
        decimal("infiniband.portcounters_ext.portrcvdata", "PortRcvData", 16, 0, 64),
        decimal("infiniband.portcounters_ext.portxmitpkts", "PortXmitPkts", 24, 0, 64),
        decimal("infiniband.portcounters_ext.portrcvpkts", "PortRcvPkts", 32, 0, 64),
        decimal("infiniband.portcounters_ext.portunicastxmitpkts", "PortUnicastXmitPkts", 40, 0, 64),
        decimal("infiniband.portcounters_ext.portunicastrcvpkts", "PortUnicastRcvPkts", 48, 0, 64),
        decimal("infiniband.portcounters_ext.portmulticastxmitpkts", "PortMulticastXmitPkts", 56, 0, 64),
        decimal("infiniband.portcounters_ext.portmulticastrcvpkts", "PortMulticastRcvPkts", 64, 0, 64),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_odd_width_are_extracted() {
        let mut body = [0; 72];
        body[4..8].copy_from_slice(&[0x00, 0x00, 0x01, 0x53]);
        body[25..28].copy_from_slice(&[0x51, 0x23, 0x45]);
        let value = |label| {
            let row = CLASS_PORT_INFO.rows.iter().find(|row| row.label == label).expect("a row");
            row.value(&body)
        };
        assert_eq!(value("CapabilityMask2"), 10);
        assert_eq!(value("RespTimeValue"), 19);
        assert_eq!((value("RedirectSL"), value("RedirectFL")), (5, 0x1_2345));
    }

    #[test]
    fn rows_of_an_attribute_are_in_order_and_do_not_overlap() {
        for attribute in [&CLASS_PORT_INFO, &PORT_COUNTERS, &PORT_COUNTERS_EXT] {
            let mut end = 0;
            for row in attribute.rows {
                let start = row.byte * 8 + row.skip;
                assert!(start >= end, "{} {}", attribute.title, row.label);
                end = start + row.width;
            }
        }
    }
}

//! Frames in flight. Payload is not stored: its bytes are zero at both ends.

/// Bytes of a packet that are stored: BTH, extension headers, and what follows them in short packets.
pub(crate) const HEAD: usize = 64;
/// Ethernet header and checksum, IPv4, UDP and ICRC around a packet from BTH to pad.
const IN_BUFFERS: u32 = 14 + 4 + 20 + 8 + 4;
/// Preamble and gap, which only links carry.
const ON_LINKS: u32 = 20;

/// A frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) src_port: u16,
    /// DSCP and ECN.
    pub(crate) tos: u8,
    /// Bytes from BTH to pad.
    pub(crate) len: u16,
    /// Hash of addresses and UDP ports.
    pub(crate) hash: u64,
    /// The port by which it entered the switch that holds it.
    pub(crate) in_port: u32,
    pub(crate) head: [u8; HEAD],
}

/// The ECN field (RFC 3168).
const ECN: u8 = 3;
/// ECN-capable, and congestion experienced.
pub(crate) const ECT_0: u8 = 2;
const CE: u8 = 3;

impl Frame {
    /// Its priority in queues and for PFC, 0 to 7: the class selector of the DSCP (RFC 2474).
    pub(crate) fn priority(&self) -> u8 {
        self.tos >> 5
    }

    /// Bytes that it takes of the memory of a switch.
    pub(crate) fn bytes(&self) -> u32 {
        u32::from(self.len) + IN_BUFFERS
    }

    /// Bytes that a link transmits for it.
    pub(crate) fn bytes_on_link(&self) -> u32 {
        self.bytes() + ON_LINKS
    }

    /// Marks it if it is ECN-capable. Returns whether it is marked now and was not before.
    pub(crate) fn mark(&mut self) -> bool {
        let is_new = !matches!(self.tos & ECN, 0 | CE);
        if is_new {
            self.tos |= CE;
        }
        is_new
    }
}

/// Bytes on links of a packet with so many bytes from BTH to pad.
pub(crate) fn bytes_on_link(len: u64) -> u64 {
    len + u64::from(IN_BUFFERS + ON_LINKS)
}

/// All frames in flight, by number.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    slots: Vec<Frame>,
    free: Vec<u32>,
}

impl Frames {
    pub(crate) fn add(&mut self, frame: Frame) -> u32 {
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = frame;
            return number;
        }
        self.slots.push(frame);
        (self.slots.len() - 1) as u32
    }

    pub(crate) fn remove(&mut self, number: u32) -> Frame {
        self.free.push(number);
        self.slots[number as usize]
    }

    pub(crate) fn get(&self, number: u32) -> &Frame {
        &self.slots[number as usize]
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> &mut Frame {
        &mut self.slots[number as usize]
    }

    /// Frames in flight.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

//! Messages of the netlink family NETLINK_RDMA (netlink(7); kernel headers linux/netlink.h and
//! rdma/rdma_netlink.h). All numbers are in host byte order.

/// Length of `nlmsghdr`, and of the header of an attribute.
const HEADER_LEN: usize = 16;
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// Attributes and messages begin at multiples of this.
const ALIGNMENT: usize = 4;
/// The bits of an attribute's type that are no flags (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;

/// `NLM_F_MULTI`, `NLM_F_ACK`, and `NLM_F_ROOT | NLM_F_MATCH`.
const MULTI: u16 = 2;
pub(super) const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// An error without the request's payload, and with attributes.
const CAPPED: u16 = 0x100;
const ACK_TLVS: u16 = 0x200;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLMSGERR_ATTR_MSG`.
const ERROR_TEXT: u16 = 1;

/// A request: its header, and its attributes.
pub(super) struct Request<'a> {
    pub(super) ty: u16,
    pub(super) flags: u16,
    sequence: u32,
    attributes: &'a [u8],
}

impl<'a> Request<'a> {
    /// The first request in `bytes`, and the bytes behind it. `None` at the end and for a broken header.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let header = bytes.first_chunk::<HEADER_LEN>()?;
        let len = u32_at(header, 0) as usize;
        let attributes = bytes.get(HEADER_LEN..len)?;
        let request =
            Self { ty: u16_at(header, 4), flags: u16_at(header, 6), sequence: u32_at(header, 8), attributes };
        Some((request, bytes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default()))
    }

    /// The value of an attribute of four bytes.
    pub(super) fn u32(&self, wanted: u16) -> Option<u32> {
        let mut rest = self.attributes;
        while let Some(header) = rest.first_chunk::<ATTRIBUTE_HEADER_LEN>() {
            let len = usize::from(u16_at(header, 0));
            let value = rest.get(ATTRIBUTE_HEADER_LEN..len)?;
            if u16_at(header, 2) & TYPE_MASK == wanted {
                return Some(u32::from_ne_bytes(value.try_into().ok()?));
            }
            rest = rest.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        None
    }

    /// A reply of the same type.
    pub(super) fn reply(&self, port_id: u32) -> Message {
        let flags = if self.is_dump() { MULTI } else { 0 };
        Message::new(self.ty, flags, self.sequence, port_id)
    }

    pub(super) fn is_dump(&self) -> bool {
        self.flags & DUMP != 0
    }

    /// The last message of a dump.
    pub(super) fn done(&self, port_id: u32) -> Message {
        let mut message = Message::new(DONE, MULTI, self.sequence, port_id);
        message.bytes.extend_from_slice(&0_i32.to_ne_bytes());
        message
    }

    /// An acknowledgment if `errno` is 0, else a refusal for the reason `text`.
    pub(super) fn error(&self, port_id: u32, errno: i32, text: &str) -> Message {
        let flags = CAPPED | if text.is_empty() { 0 } else { ACK_TLVS };
        let mut message = Message::new(ERROR, flags, self.sequence, port_id);
        message.bytes.extend_from_slice(&(-errno).to_ne_bytes());
        let of_request = Message::new(self.ty, self.flags, self.sequence, 0);
        message.bytes.extend_from_slice(&of_request.bytes);
        if !text.is_empty() {
            message.text(ERROR_TEXT, text);
        }
        message
    }
}

/// A message that is being written.
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(ty: u16, flags: u16, sequence: u32, port_id: u32) -> Self {
        let mut bytes = vec![0; ALIGNMENT];
        bytes.extend_from_slice(&ty.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&port_id.to_ne_bytes());
        Self { bytes }
    }

    pub(super) fn u8(&mut self, ty: u16, value: u8) {
        self.put(ty, &[value]);
    }

    pub(super) fn u32(&mut self, ty: u16, value: u32) {
        self.put(ty, &value.to_ne_bytes());
    }

    pub(super) fn u64(&mut self, ty: u16, value: u64) {
        self.put(ty, &value.to_ne_bytes());
    }

    /// A string that ends with a zero.
    pub(super) fn text(&mut self, ty: u16, text: &str) {
        self.put(ty, &[text.as_bytes(), &[0]].concat());
    }

    /// An attribute that contains those that `fill` writes.
    pub(super) fn nest(&mut self, ty: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.put(ty, &[]);
        fill(self);
        let len = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }

    /// Bytes written so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The message with its length.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let len = self.bytes.len() as u32;
        self.bytes[..ALIGNMENT].copy_from_slice(&len.to_ne_bytes());
        self.bytes
    }

    /// An attribute with these bytes.
    pub(super) fn put(&mut self, ty: u16, value: &[u8]) {
        let len = (ATTRIBUTE_HEADER_LEN + value.len()) as u16;
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&ty.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_in_what_was_written() {
        let mut message = Message::new(0x1401, ACK, 7, 0);
        message.text(2, "roxie0");
        message.nest(19, |message| message.u8(27, 3));
        message.u32(1, 5);
        let bytes = message.finish();
        let (request, rest) = Request::parse(&bytes).expect("a message");
        assert!(rest.is_empty() && request.ty == 0x1401 && !request.is_dump());
        assert_eq!([request.u32(1), request.u32(2), request.u32(9)], [Some(5), None, None]);
        let error = request.error(9, 95, "no").finish();
        let (error, _) = Request::parse(&error).expect("a message");
        assert_eq!(
            (error.ty, error.flags, error.attributes[..4].to_vec()),
            (2, 0x300, (-95_i32).to_ne_bytes().to_vec())
        );
    }

    #[test]
    fn broken_requests_end_the_parsing() {
        let mut bytes = Message::new(0x1401, ACK, 7, 0).finish();
        bytes[0] = 15;
        assert!(Request::parse(&bytes).is_none() && Request::parse(&bytes[..8]).is_none());
        bytes[0] = 200;
        assert!(Request::parse(&bytes).is_none());
        // An attribute shorter than its header, or longer than the message.
        for len in [0_u8, 3, 9] {
            let mut message = Message::new(0x1401, ACK, 7, 0);
            message.u32(1, 5);
            let mut bytes = message.finish();
            bytes[HEADER_LEN] = len;
            assert_eq!(Request::parse(&bytes).and_then(|(request, _)| request.u32(1)), None, "{len}");
        }
    }
}

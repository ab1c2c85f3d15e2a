//! What the client tells the server to do, sent as SENDs on the connection under test.

/// Size of an encoded order or reply, in bytes.
pub(super) const LEN: usize = 24;

/// An order; the server carries it out and replies with an [`Answer`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Order {
    /// Reply, receive one SEND, then reply whether it was `len` bytes of pattern `seed`.
    TakeSend { len: u32, seed: u64 },
    /// Compare `target[at..at+len]` with pattern `seed`, and everything around it with the fill pattern.
    CheckTarget { at: u32, len: u32, seed: u64 },
    /// Write pattern `seed` to `target[at..at+len]`.
    FillTarget { at: u32, len: u32, seed: u64 },
    /// Set the word for atomics.
    SetWord { value: u64 },
    /// Read the word for atomics.
    GetWord,
    /// Reply, then receive SENDs until one has immediate data.
    TakeMany,
    /// Reply, then send every received message back until one has immediate data.
    Echo,
    /// End the process.
    Bye,
}

/// The server's reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Answer {
    /// The data is right, or the order was carried out.
    Good,
    /// The byte at this offset differs.
    Differs { at: u64 },
    /// The message had this length instead of the expected one.
    Length { got: u64 },
    /// The value of the word.
    Value(u64),
}

impl Order {
    pub(super) fn encode(self) -> [u8; LEN] {
        match self {
            Self::TakeSend { len, seed } => pack(1, 0, len, seed),
            Self::CheckTarget { at, len, seed } => pack(2, at, len, seed),
            Self::FillTarget { at, len, seed } => pack(3, at, len, seed),
            Self::SetWord { value } => pack(4, 0, 0, value),
            Self::GetWord => pack(5, 0, 0, 0),
            Self::TakeMany => pack(6, 0, 0, 0),
            Self::Echo => pack(7, 0, 0, 0),
            Self::Bye => pack(8, 0, 0, 0),
        }
    }

    pub(super) fn decode(bytes: &[u8; LEN]) -> Option<Self> {
        let (kind, at, len, value) = unpack(bytes);
        Some(match kind {
            1 => Self::TakeSend { len, seed: value },
            2 => Self::CheckTarget { at, len, seed: value },
            3 => Self::FillTarget { at, len, seed: value },
            4 => Self::SetWord { value },
            5 => Self::GetWord,
            6 => Self::TakeMany,
            7 => Self::Echo,
            8 => Self::Bye,
            _ => return None,
        })
    }
}

impl Answer {
    pub(super) fn encode(self) -> [u8; LEN] {
        match self {
            Self::Good => pack(1, 0, 0, 0),
            Self::Differs { at } => pack(2, 0, 0, at),
            Self::Length { got } => pack(3, 0, 0, got),
            Self::Value(value) => pack(4, 0, 0, value),
        }
    }

    pub(super) fn decode(bytes: &[u8; LEN]) -> Option<Self> {
        let (kind, _, _, value) = unpack(bytes);
        Some(match kind {
            1 => Self::Good,
            2 => Self::Differs { at: value },
            3 => Self::Length { got: value },
            4 => Self::Value(value),
            _ => return None,
        })
    }
}

fn pack(kind: u32, at: u32, len: u32, value: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[16..].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn unpack(bytes: &[u8; LEN]) -> (u32, u32, u32, u64) {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (word(0), word(4), word(8), u64::from(word(16)) | u64::from(word(20)) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_survive_the_wire() {
        let orders = [
            Order::TakeSend { len: 7, seed: u64::MAX },
            Order::CheckTarget { at: 1, len: 2, seed: 3 },
            Order::FillTarget { at: u32::MAX, len: 0, seed: 1 << 40 },
            Order::SetWord { value: 0x0123_4567_89ab_cdef },
            Order::GetWord,
            Order::TakeMany,
            Order::Echo,
            Order::Bye,
        ];
        for order in orders {
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        for answer in
            [Answer::Good, Answer::Differs { at: 1 << 33 }, Answer::Length { got: 9 }, Answer::Value(5)]
        {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        assert_eq!(Order::decode(&[0; LEN]), None);
        assert_eq!(Answer::decode(&[0xff; LEN]), None);
    }
}

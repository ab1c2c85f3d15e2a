//! What the client tells the server to do, sent as SENDs on the connection under test.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Size of an encoded order or reply, in bytes: the longest one has 78.
pub(super) const LEN: usize = 96;

/// An order; the server carries it out and replies with an [`Answer`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
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
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
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

/// The JSON of an order or answer, filled up with spaces.
pub(super) fn encode(message: &impl Serialize) -> [u8; LEN] {
    let mut bytes = [b' '; LEN];
    serde_json::to_writer(&mut bytes[..], message).expect("shorter than that");
    bytes
}

/// The order or answer that [`encode`] has written.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8; LEN]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_survive_the_wire() {
        let orders = [
            Order::TakeSend { len: 7, seed: u64::MAX },
            Order::CheckTarget { at: u32::MAX, len: u32::MAX, seed: u64::MAX },
            Order::FillTarget { at: u32::MAX, len: 0, seed: 1 << 40 },
            Order::SetWord { value: 0x0123_4567_89ab_cdef },
            Order::GetWord,
            Order::TakeMany,
            Order::Echo,
            Order::Bye,
        ];
        for order in orders {
            assert_eq!(decode(&encode(&order)), Some(order));
        }
        for answer in
            [Answer::Good, Answer::Differs { at: 1 << 33 }, Answer::Length { got: 9 }, Answer::Value(5)]
        {
            assert_eq!(decode(&encode(&answer)), Some(answer));
        }
        assert_eq!(decode::<Order>(&[0; LEN]), None);
        assert_eq!(decode::<Answer>(&[0xff; LEN]), None);
    }
}

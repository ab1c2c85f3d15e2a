//! Fuzzes what the peer of an rsocket sends: private data, immediate data, table entries, datagram headers.
//!
//! Checked: no panic; a decoded value survives encoding and decoding.

use wire::rsocket::datagram::{Introduction, Source};
use wire::rsocket::{ByteOrder, Hello, Iomap, Message};

/// Runs one input, as each kind of message.
pub fn run(data: &[u8]) {
    if let Some(hello) = data.first_chunk().and_then(Hello::parse) {
        let mut bytes = [0; Hello::LEN];
        hello.emit(&mut bytes);
        assert_eq!(Hello::parse(&bytes), Some(hello));
    }
    if let Some(entry) = data.first_chunk() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let mut bytes = [0; Iomap::LEN];
            Iomap::parse(entry, order).emit(&mut bytes, order);
            assert_eq!(bytes, *entry);
        }
    }
    if let Some(word) = data.first_chunk() {
        let message = Message::parse(*word);
        assert_eq!(Message::parse(message.to_bytes()), message);
    }
    if let Some((source, len)) = Source::parse(data) {
        let mut bytes = [0; Source::LEN_MAX];
        assert_eq!(source.emit(&mut bytes), len);
        assert_eq!(Source::parse(&bytes), Some((source, len)));
    }
    if let Some((introduction, len)) = Introduction::parse(data) {
        assert!(len <= data.len());
        let mut bytes = [0; Introduction::LEN_MAX];
        let emitted = introduction.emit(&mut bytes);
        assert_eq!(Introduction::parse(&bytes[..emitted]).map(|(again, _)| again), Some(introduction));
    }
}

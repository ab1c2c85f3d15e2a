//! Shows the bytes of a packet: offset, hexadecimal, text.

use std::fmt::Write;

const ROW: usize = 16;

pub(super) fn dump(out: &mut String, bytes: &[u8]) {
    for (row, chunk) in bytes.chunks(ROW).enumerate() {
        // A write to a string cannot fail.
        let _ = write!(out, "    {:04x} ", row * ROW);
        for at in 0..ROW {
            if at % 8 == 0 {
                out.push(' ');
            }
            match chunk.get(at) {
                Some(byte) => drop(write!(out, "{byte:02x} ")),
                None => out.push_str("   "),
            }
        }
        out.push(' ');
        out.extend(
            chunk.iter().map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' }),
        );
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_sixteen_bytes() {
        let mut out = String::new();
        dump(&mut out, b"0123456789abcdef\x00~");
        let want = [
            "    0000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  0123456789abcdef\n",
            "    0010  00 7e                                             .~\n",
        ]
        .concat();
        assert_eq!(out, want);
    }
}

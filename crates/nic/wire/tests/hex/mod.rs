//! Test vectors as text: hexadecimal digits with line breaks anywhere.

pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

//! `bpf_trace_printk`, with the conversions that programs use.

use std::fmt::Write as _;

use super::Env;
use super::call::{Call, EINVAL, failed};
use super::outcome::FaultKind;

/// Maximum length of a format and of a string that it prints, in bytes.
const FORMAT_MAX: u64 = 512;

/// Maximum number of values of `bpf_trace_vprintk` (`MAX_BPRINTF_VARARGS`).
const VALUES_MAX: u64 = 12;

/// `bpf_trace_printk(format, format_size, ...)`. Returns the length of the line.
pub(super) fn printk(call: &mut Call<'_, '_, '_>, env: &mut dyn Env) -> Result<u64, FaultKind> {
    let [format, len, values @ ..] = call.args;
    print(call, env, format, len, &values)
}

/// `bpf_trace_vprintk(format, format_size, values, values_size)`
pub(super) fn vprintk(call: &mut Call<'_, '_, '_>, env: &mut dyn Env) -> Result<u64, FaultKind> {
    let [format, len, values, values_len, _] = call.args;
    if !values_len.is_multiple_of(8) || values_len > VALUES_MAX * 8 {
        return Ok(failed(EINVAL));
    }
    call.read_value(values, values_len)?;
    let words = call.scratch.value.as_chunks::<8>().0;
    let values: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    print(call, env, format, len, &values)
}

fn print(
    call: &mut Call<'_, '_, '_>,
    env: &mut dyn Env,
    format: u64,
    len: u64,
    values: &[u64],
) -> Result<u64, FaultKind> {
    if len > FORMAT_MAX {
        return Err(FaultKind::Argument);
    }
    call.read_value(format, len)?;
    let Some(end) = call.scratch.value.iter().position(|&byte| byte == 0) else { return Ok(failed(EINVAL)) };
    let text = String::from_utf8_lossy(&call.scratch.value[..end]).into_owned();
    let mut line = String::new();
    let mut values = values.iter().copied();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if char != '%' {
            line.push(char);
            continue;
        }
        let mut longs = 0;
        let mut conversion = chars.next();
        while let Some('l' | '0'..='9' | '-' | '#') = conversion {
            longs += u32::from(conversion == Some('l'));
            conversion = chars.next();
        }
        if conversion == Some('%') {
            line.push('%');
            continue;
        }
        let Some(value) = values.next() else { return Ok(failed(EINVAL)) };
        let wide = longs > 0;
        let unsigned = if wide { value } else { value & 0xffff_ffff };
        let written = match conversion {
            Some('d' | 'i') if wide => write!(line, "{}", value as i64),
            Some('d' | 'i') => write!(line, "{}", value as i32),
            Some('u') => write!(line, "{unsigned}"),
            Some('x') => write!(line, "{unsigned:x}"),
            Some('X') => write!(line, "{unsigned:X}"),
            Some('c') => write!(line, "{}", char::from(value as u8)),
            Some('p') => write!(line, "{value:#x}"),
            Some('s') => write!(line, "{}", string(call, value)?),
            _ => return Ok(failed(EINVAL)),
        };
        debug_assert!(written.is_ok(), "writing to a String cannot fail");
    }
    env.trace(line.trim_end_matches('\n'));
    Ok(line.len() as u64)
}

/// Returns the text at the address up to its zero byte.
fn string(call: &mut Call<'_, '_, '_>, address: u64) -> Result<String, FaultKind> {
    let mut text = Vec::new();
    for at in 0..FORMAT_MAX {
        let address = address.wrapping_add(at);
        match call.memory.load::<1>(address).ok_or(FaultKind::Access { address })? {
            0 => break,
            byte => text.push(byte as u8),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

//! Formats numbers with three digits in few characters.

/// A number with a decimal prefix in at most five characters: `2.71G`, `17.3k`, `999`, `-` for zero.
pub(super) fn short(value: f64) -> String {
    if value < 0.5 {
        return "-".to_owned();
    }
    let (mut value, mut unit) = (value, 0);
    while value >= 999.5 && unit < UNITS.len() - 1 {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", UNITS[unit])
}

const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];

/// A duration in at most six characters: `17.3us`, `4.21ms`, `-` if unknown.
pub(super) fn time(ns: Option<u64>) -> String {
    let Some(ns) = ns else { return "-".to_owned() };
    let (value, unit) = match ns {
        0..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$}{unit}")
}

/// `text` in at most `width` characters; a cut text ends with `~`.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut text: String = text.chars().take(width.saturating_sub(1)).collect();
    text.push('~');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_few_characters() {
        let all = [0.0, 0.7, 999.4, 999.6, 17_300.0, 99_960.0, 2.714e9, 9.996e9, 1e18, 1e21];
        let want = ["-", "1", "999", "1.00k", "17.3k", "100k", "2.71G", "10.0G", "1000P", "1000000P"];
        assert_eq!(all.map(short), want);
        let all = [None, Some(0), Some(17_300), Some(999_996), Some(4_210_000), Some(1_070_000_000)];
        assert_eq!(all.map(time), ["-", "0.00us", "17.3us", "1000us", "4.21ms", "1.07s"]);
        assert_eq!((cut("ib_write_bw", 11), cut("ib_write_bw", 5)), ("ib_write_bw".into(), "ib_w~".into()));
    }
}

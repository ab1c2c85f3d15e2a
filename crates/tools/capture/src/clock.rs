//! Formats times of captures. All are UTC: a capture is often read in another time zone than it was made in.

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Seconds since 1970: `1795245775.569342000`.
#[must_use]
pub fn epoch(ns: u64) -> String {
    let before_1970 = ns.cast_signed() < 0;
    let (sign, ns) = if before_1970 { ("-", ns.wrapping_neg()) } else { ("", ns) };
    let (mut seconds, mut digits) = (itoa::Buffer::new(), itoa::Buffer::new());
    // With a leading 1, so that there are nine others.
    let below = &digits.format(SECOND + ns % SECOND)[1..];
    [sign, seconds.format(ns / SECOND), ".", below].concat()
}

/// Days since 1970, seconds of the day, and nanoseconds of the second. Times before 1970 are negative
/// numbers.
fn parts(ns: u64) -> (i64, u64, u64) {
    const DAY: i64 = 86_400 * SECOND as i64;
    let ns = ns.cast_signed();
    let in_day = ns.rem_euclid(DAY).cast_unsigned();
    (ns.div_euclid(DAY), in_day / SECOND, in_day % SECOND)
}

/// Time of day: `07:22:55.569342`.
#[must_use]
pub fn time_of_day(ns: u64) -> String {
    let (_, seconds, ns) = parts(ns);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{:06}", seconds % 60, ns / 1000)
}

/// Date and time: `2026-11-21 07:22:55.569342000 UTC`.
#[must_use]
pub fn date(ns: u64) -> String {
    let (day, seconds, ns) = parts(ns);
    let (year, month, day) = civil(day);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hours:02}:{minutes:02}:{:02}.{:09} UTC", seconds % 60, ns)
}

/// A duration with three digits: `17.3 us`, `4.2 ms`, `1.07 s`.
#[must_use]
pub fn span(ns: u64) -> String {
    let value = ns as f64;
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// Year, month and day of a day since 1970 in the Gregorian calendar.
///
/// The computation begins years in March, so that the leap day is the last day of a year.
fn civil(day: i64) -> (i64, i64, i64) {
    // 0000-03-01 is 719468 days before 1970-01-01; 400 years have 146097 days.
    let day = day + 719_468;
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_days_have_their_dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00.000000000 UTC");
        assert_eq!(date(951_782_399 * SECOND), "2000-02-28 23:59:59.000000000 UTC");
        assert_eq!(date(951_782_400 * SECOND), "2000-02-29 00:00:00.000000000 UTC");
        assert_eq!(date(1_795_245_775 * SECOND + 569_342_000), "2026-11-21 07:22:55.569342000 UTC");
        assert_eq!(epoch(1_795_245_775 * SECOND + 569_342_000), "1795245775.569342000");
        assert_eq!(time_of_day(1_795_245_775 * SECOND + 569_342_000), "07:22:55.569342");
    }

    #[test]
    fn times_before_1970_are_negative_numbers() {
        let eve = 1_500_000_000_u64.wrapping_neg();
        assert_eq!(epoch(eve), "-1.500000000");
        assert_eq!(
            (date(eve), time_of_day(eve)),
            ("1969-12-31 23:59:58.500000000 UTC".into(), "23:59:58.500000".into())
        );
        assert_eq!(date((86_400 * 365 * 30 * SECOND).wrapping_neg()), "1940-01-09 00:00:00.000000000 UTC");
    }

    #[test]
    fn a_duration_has_three_digits() {
        assert_eq!(span(999), "999 ns");
        assert_eq!(span(17_300), "17.3 us");
        assert_eq!(span(4_213_000), "4.21 ms");
        assert_eq!(span(268_000_000), "268 ms");
        assert_eq!(span(1_070_000_000), "1.07 s");
    }
}

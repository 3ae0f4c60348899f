//! Sizes in bytes as people write and read them. Units are powers of 1024, as in nccl-tests.
//!
//! Parsing is exact integer arithmetic: no size is rounded, and none wraps.

/// The largest size that is taken: every sum of a few sizes still fits 64 bits.
pub(crate) const SIZE_MAX: u64 = 1 << 56;

/// Parses `8`, `64K`, `1.5M`, `2G`, `1T`: a number and an optional unit, which together must be whole bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let expected = "expected bytes with an optional unit K, M, G or T (powers of 1024), such as 64K";
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit_bytes: u128 = match unit {
        "" => 1,
        "K" | "k" => 1 << 10,
        "M" | "m" => 1 << 20,
        "G" | "g" => 1 << 30,
        "T" | "t" => 1 << 40,
        _ => return Err(expected.to_owned()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || number.ends_with('.') {
        return Err(expected.to_owned());
    }
    // 20 digits times a unit stay below 2^107; longer numbers are too large (or too fine) anyway.
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    if whole.len() > 20 {
        return Err(too_large());
    }
    if fraction.len() > 20 {
        return Err(format!("{text} is not a whole number of bytes"));
    }
    let digits = |digits: &str| digits.bytes().fold(0_u128, |value, digit| value * 10 + u128::from(digit - b'0'));
    let scale = 10_u128.pow(fraction.len() as u32);
    let part = digits(fraction) * unit_bytes;
    if !part.is_multiple_of(scale) {
        return Err(format!("{text} is not a whole number of bytes"));
    }
    let bytes = digits(whole) * unit_bytes + part / scale;
    u64::try_from(bytes).ok().filter(|&bytes| bytes <= SIZE_MAX).ok_or_else(too_large)
}

fn too_large() -> String {
    format!("too large: at most {} are possible", format_size(SIZE_MAX))
}

/// `1.5 MiB`: for messages and summaries, three digits at most.
pub(crate) fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = (bytes.ilog2() / 10) as usize;
    let value = bytes as f64 / (1_u64 << (10 * exponent)) as f64;
    let decimals = if value.fract() == 0.0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[exponent - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_take_a_number_and_an_optional_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("64K", 65536),
            ("64k", 65536),
            ("1.5M", 3 << 19),
            ("0.25K", 256),
            ("2G", 2 << 30),
            ("1T", 1 << 40),
            ("007", 7),
            ("1.50K", 1536),
            ("72057594037927936", SIZE_MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_reason() {
        for text in ["", "K", "-1", "+1", "1E", "1KB", "1 K", ".5K", "1.", "1.5.5", "٣", "1e3", "0x10", "1Kx"] {
            assert!(parse_size(text).unwrap_err().contains("K, M, G or T"), "{text}");
        }
        for text in ["0.3K", "1.5", "0.00000000000000000000000000001T"] {
            assert!(parse_size(text).unwrap_err().contains("whole number of bytes"), "{text}");
        }
        for text in ["72057594037927937", "99999999999999999999G", "999999999999999999999999", "65537T"] {
            assert!(parse_size(text).unwrap_err().contains("too large"), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_unit_that_fits() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (3 << 20, "3 MiB")] {
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(format_size(u64::MAX), "16 EiB");
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_an_error(text in ".*") {
            let _ = parse_size(&text);
        }

        #[test]
        fn whole_numbers_are_taken_as_they_are(bytes in 0..=SIZE_MAX) {
            prop_assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
        }

        #[test]
        fn number_like_texts_never_panic(text in "[0-9.]{0,50}[KMGTkmgtE]?") {
            let _ = parse_size(&text);
        }
    }
}

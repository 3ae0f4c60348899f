//! nccl-tests' table: its header lines, columns, widths, precision and closing lines, so that what reads the output of
//! nccl-tests reads this too. (`src/util.cu` there is the reference; blanks at the ends of lines are left out.)
//!
//! This file only makes text: it measures nothing and prints nothing.

/// What one half of a row (out of place, in place) shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Half {
    /// Mean time of one call.
    pub(crate) time_us: f64,
    /// Bytes per time, in units of 10^9 bytes per second.
    pub(crate) algorithm_gb_s: f64,
    /// What the slowest link carries, whatever the number of ranks.
    pub(crate) bus_gb_s: f64,
    /// Wrong elements, if they were counted.
    pub(crate) wrong: Option<u64>,
    /// Times of single iterations, if they were taken.
    pub(crate) per_iteration: Option<Spread>,
}

/// How the times of single iterations are spread.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
    pub(crate) avg_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) stdev_us: f64,
    /// Standard deviation in percent of the mean.
    pub(crate) cv_percent: f64,
}

impl Spread {
    /// The spread of at least one time; percentiles are by nearest rank.
    pub(crate) fn of(times_us: &[f64]) -> Spread {
        let mut sorted = times_us.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let percentile = |percent: usize| sorted[((count * percent).div_ceil(100) - 1).min(count - 1)];
        let avg_us = sorted.iter().sum::<f64>() / count as f64;
        let stdev_us = (sorted.iter().map(|time| (time - avg_us).powi(2)).sum::<f64>() / count as f64).sqrt();
        Spread {
            min_us: sorted[0],
            max_us: sorted[count - 1],
            avg_us,
            p50_us: sorted[count / 2],
            p95_us: percentile(95),
            p99_us: percentile(99),
            stdev_us,
            cv_percent: if avg_us > 0.0 { stdev_us / avg_us * 100.0 } else { 0.0 },
        }
    }
}

/// The three lines above the columns, and the `#` line before them.
pub(crate) fn header(per_iteration: bool, timestamps: bool) -> String {
    let mut lines = String::from("#\n");
    let lead = |names: [&str; 5]| {
        format!("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", names[0], names[1], names[2], names[3], names[4])
    };
    let titles = if per_iteration {
        "              out-of-place (+ per-iteration)                                in-place (+ per-iteration)"
    } else {
        "           out-of-place                       in-place"
    };
    lines += &format!("{}{titles}\n", lead([""; 5]));
    let half = |names: [&str; 4], spread: [&str; 4]| {
        let mut half = format!("  {:>7}  {:>6}  {:>6}  {:>6}", names[0], names[1], names[2], names[3]);
        if per_iteration {
            for name in spread {
                half += &format!("  {name:>7}");
            }
        }
        half
    };
    let line = |lead: String, half: String, stamp: &str| {
        let stamp = if timestamps { format!(" {stamp:>19}") } else { String::new() };
        format!("{}\n", format!("{lead}{half}{half}{stamp}").trim_end())
    };
    lines += &line(
        lead(["size", "count", "type", "redop", "root"]),
        half(["time", "algbw", "busbw", "#wrong"], ["i_min", "i_max", "i_p99", "i_cv%"]),
        "timestamp",
    );
    lines += &line(
        lead(["(B)", "(elements)", "", "", ""]),
        half(["(us)", "(GB/s)", "(GB/s)", ""], ["(us)", "(us)", "(us)", "(%)"]),
        "%Y-%m-%d %H:%M:%S",
    );
    lines
}

/// The columns that say what was called.
pub(crate) fn row_start(size: u64, count: u64, dtype: &str, reduction: &str, root: i64) -> String {
    format!("{size:>12}  {count:>12}  {dtype:>8}  {reduction:>6}  {root:>6}")
}

/// The columns of one half.
pub(crate) fn row_half(half: &Half) -> String {
    let wrong = half.wrong.map_or("   N/A".to_owned(), |wrong| format!("{:>6}", format_general(wrong as f64)));
    let mut text = format!(
        "  {}  {}  {}  {wrong}",
        format_float(half.time_us, 7),
        format_float(half.algorithm_gb_s, 6),
        format_float(half.bus_gb_s, 6)
    );
    if let Some(spread) = &half.per_iteration {
        for value in [spread.min_us, spread.max_us, spread.p99_us, spread.cv_percent] {
            text += &format!("  {}", format_float(value, 7));
        }
    }
    text
}

/// The closing lines. `minimum` is the bandwidth that is asked for, if one is; nine tenths of it pass.
pub(crate) fn footer(program: &str, out_of_bounds: u64, average_gb_s: f64, minimum: Option<f64>) -> String {
    let verdict = |good: bool| if good { "OK" } else { "FAILED" };
    let bandwidth = match minimum {
        Some(minimum) => {
            format!("{} {}", format_general(average_gb_s), verdict(bandwidth_is_good(average_gb_s, minimum)))
        }
        None => format_general(average_gb_s),
    };
    format!(
        "# {:<20} : {out_of_bounds} {}\n# {:<20} : {bandwidth}\n#\n# Collective test concluded: {program}\n#\n",
        "Out of bounds values",
        verdict(out_of_bounds == 0),
        "Avg bus bandwidth"
    )
}

/// Whether a bandwidth is at least nine tenths of the one that is asked for.
pub(crate) fn bandwidth_is_good(average_gb_s: f64, minimum_gb_s: f64) -> bool {
    average_gb_s >= minimum_gb_s * 0.9
}

/// Two decimals, or one, or none, or an exponent: the first that fits `width`, right-aligned.
pub(crate) fn format_float(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:>width$.decimals$}");
        if text.len() <= width {
            return text;
        }
    }
    format!("{:>width$}", format_exponent(value, if width >= 7 { 1 } else { 0 }))
}

/// C's `%.*e`: at least two digits of exponent, with their sign.
fn format_exponent(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e').and_then(|(mantissa, exponent)| Some((mantissa, exponent.parse::<i32>().ok()?))) {
        Some((mantissa, exponent)) => {
            format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        None => text, // inf, NaN
    }
}

/// C's `%g`: six significant digits without trailing zeros.
pub(crate) fn format_general(value: f64) -> String {
    const DIGITS: i32 = 6;
    let scientific = format!("{value:.*e}", DIGITS as usize - 1);
    let Some(exponent) = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok()) else {
        return scientific; // inf, NaN
    };
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..DIGITS).contains(&exponent) {
        trim(&format!("{value:.*}", (DIGITS - 1 - exponent) as usize))
    } else {
        let text = format_exponent(value, DIGITS as usize - 1);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        format!("{}e{exponent}", trim(mantissa))
    }
}

/// Seconds since 1970 as `2026-11-30 12:19:41`, in UTC.
pub(crate) fn format_time(seconds: u64) -> String {
    // Days to a civil date, by counting years from 1 March 0000 in eras of 400 years (146097 days).
    let days = seconds / 86400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_lose_decimals_until_they_fit() {
        for (value, width, text) in [
            (0.0, 6, "  0.00"),
            (1.234, 7, "   1.23"),
            (999.994, 6, "999.99"),
            (1234.56, 7, "1234.56"),
            (12345.67, 7, "12345.7"),
            (99999.96, 7, " 100000"),
            (1234567.0, 7, "1234567"),
            (12345678.0, 7, "1.2e+07"),
            (1234567.0, 6, " 1e+06"),
            (1e100, 7, "1.0e+100"),
        ] {
            assert_eq!(format_float(value, width), text);
        }
    }

    #[test]
    fn general_floats_look_as_in_c() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (2.345678901, "2.34568"),
            (100000.0, "100000"),
            (999999.5, "1e+06"),
            (1_000_000.0, "1e+06"),
            (1_234_567.0, "1.23457e+06"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
        ] {
            assert_eq!(format_general(value), text);
        }
    }

    #[test]
    fn the_header_is_that_of_nccl_tests() {
        assert_eq!(
            header(false, false),
            "\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"
        );
    }

    #[test]
    fn a_row_is_that_of_nccl_tests() {
        let half =
            Half { time_us: 10.856, algorithm_gb_s: 0.004, bus_gb_s: 12345.6, wrong: Some(0), per_iteration: None };
        let unchecked = Half { wrong: None, ..half.clone() };
        assert_eq!(
            row_start(8, 2, "float", "sum", -1) + &row_half(&half) + &row_half(&unchecked),
            "           8             2     float     sum      -1    10.86    0.00   12346       0    10.86    0.00   12346     N/A"
        );
    }

    #[test]
    fn columns_with_times_of_iterations_stand_under_their_names() {
        let half = Half {
            time_us: 10.0,
            algorithm_gb_s: 1.0,
            bus_gb_s: 1.0,
            wrong: Some(3),
            per_iteration: Some(Spread::of(&[1.0, 2.0, 3.0, 4.0])),
        };
        let row = row_start(8, 2, "half", "avg", 0) + &row_half(&half) + &row_half(&half) + "  2026-11-30 12:19:41";
        let header = header(true, true);
        let names = header.lines().nth(2).unwrap();
        assert_eq!(row.len(), names.len() + 1, "{names}\n{row}");
    }

    #[test]
    fn the_closing_lines_say_whether_all_is_well() {
        assert_eq!(
            footer("all_reduce_perf", 0, 0.25, None),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.25\n#\n# Collective test concluded: all_reduce_perf\n#\n"
        );
        let failed = footer("all_reduce_perf", 3, 0.25, Some(1.0));
        assert!(failed.contains("values : 3 FAILED") && failed.contains("bandwidth    : 0.25 FAILED"), "{failed}");
        assert!(footer("x", 0, 0.95, Some(1.0)).contains("0.95 OK"));
    }

    #[test]
    fn the_spread_of_iterations_is_by_nearest_rank() {
        let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let spread = Spread::of(&times);
        assert_eq!((spread.min_us, spread.max_us, spread.p95_us, spread.p99_us), (1.0, 200.0, 190.0, 198.0));
        assert_eq!((spread.avg_us, spread.p50_us), (100.5, 101.0));
        let one = Spread::of(&[5.0]);
        assert_eq!((one.p99_us, one.stdev_us, one.cv_percent), (5.0, 0.0, 0.0));
    }

    #[test]
    fn times_are_civil_dates() {
        assert_eq!(format_time(0), "1970-01-01 00:00:00");
        assert_eq!(format_time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(format_time(1_796_041_181), "2026-11-30 12:19:41");
        assert_eq!(format_time(4_107_542_399), "2100-02-28 23:59:59");
    }
}

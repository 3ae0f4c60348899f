//! Names on the command line, as nccl-tests and tutti spell them, and what they stand for.

use crate::failure::Failure;
use std::ops::RangeInclusive;
use tutti::plan::{Algorithm, Collective, MAX_RANK_COUNT, PlanError};
use tutti::{DType, Reduction};

/// Parses `all_reduce` and its like; the root comes separately.
pub(crate) fn parse_collective(text: &str) -> Result<Collective, String> {
    text.replace('-', "_").parse().map_err(|_| expected(Collective::ALL.map(Collective::name)))
}

/// Parses `ring` and its like.
pub(crate) fn parse_algorithm(text: &str) -> Result<Algorithm, String> {
    text.replace('-', "_").parse().map_err(|_| expected(Algorithm::ALL.map(Algorithm::name)))
}

/// An algorithm that a collective does not have is a usage error, which says what there is.
pub(crate) fn check_offered(algorithm: Option<Algorithm>, collective: Collective) -> Result<(), Failure> {
    match algorithm {
        Some(algorithm) if !algorithm.offers(collective) => {
            Err(Failure::Usage(PlanError::NotOffered { algorithm, collective }.to_string()))
        }
        _ => Ok(()),
    }
}

/// Whether the count is that of one rank's block, and the whole is as many blocks as there are ranks.
pub(crate) fn counts_blocks(collective: Collective) -> bool {
    matches!(collective, Collective::ReduceScatter | Collective::AllGather)
}

/// Parses `float`, `f32` and their like.
pub(crate) fn parse_dtype(text: &str) -> Result<DType, String> {
    let names = |dtype: &DType| match (dtype.name(), dtype.nccl_name()) {
        (name, nccl_name) if name == nccl_name => name.to_owned(),
        (name, nccl_name) => format!("{nccl_name} ({name})"),
    };
    let all: Vec<String> = DType::ALL.iter().map(names).collect();
    text.to_ascii_lowercase().parse().map_err(|_| expected(all.iter().map(String::as_str)))
}

/// Parses a type, or `all`.
pub(crate) fn parse_dtypes(text: &str) -> Result<Choice<DType>, String> {
    or_all(text, parse_dtype)
}

/// Parses `sum` and its like.
pub(crate) fn parse_reduction(text: &str) -> Result<Reduction, String> {
    text.parse().map_err(|_| expected(Reduction::ALL.iter().map(|reduction| reduction.name())))
}

/// Parses a reduction, or `all`.
pub(crate) fn parse_reductions(text: &str) -> Result<Choice<Reduction>, String> {
    or_all(text, parse_reduction)
}

/// Parses a whole number within a range.
pub(crate) fn whole(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number) && !text.starts_with('+'));
        number.ok_or_else(|| match *range.end() {
            u64::MAX => format!("expected a whole number, {} or more", range.start()),
            end => format!("expected a whole number from {} to {end}", range.start()),
        })
    }
}

/// Parses a number of ranks: whatever [`tutti::local`] makes.
pub(crate) fn parse_rank_count(text: &str) -> Result<usize, String> {
    whole(1..=MAX_RANK_COUNT as u64)(text).map(|count| count as usize).map_err(|error| format!("{error} ranks"))
}

/// A root must be one of the ranks.
pub(crate) fn check_root(root: usize, rank_count: usize) -> Result<(), Failure> {
    if root < rank_count {
        return Ok(());
    }
    let plural = if rank_count == 1 { "there is 1 rank" } else { &format!("there are {rank_count} ranks") };
    Err(Failure::Usage(format!("-r {root}: {plural}, counted from 0")))
}

/// Parses yes or no, as nccl-tests writes it.
pub(crate) fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("expected 0 or 1".to_owned()),
    }
}

/// Parses a rank, or `all` (nccl-tests writes -1).
pub(crate) fn parse_roots(text: &str) -> Result<Choice<usize>, String> {
    if text == "-1" {
        return Ok(Choice::All);
    }
    or_all(text, |text| text.parse().map_err(|_| "expected a rank, counted from 0".to_owned()))
}

/// One of several, or each of them in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice<T> {
    One(T),
    All,
}

impl<T> Choice<T> {
    /// The chosen ones out of all.
    pub(crate) fn among(self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        match self {
            Choice::One(one) => vec![one],
            Choice::All => all.into_iter().collect(),
        }
    }
}

fn or_all<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Choice<T>, String> {
    match text {
        "all" => Ok(Choice::All),
        _ => parse(text).map(Choice::One).map_err(|error| format!("{error}, or all")),
    }
}

fn expected<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    format!("expected one of {}", names.into_iter().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_names_of_nccl_tests_and_those_of_tutti() {
        for (text, dtype) in [
            ("float", DType::F32),
            ("f32", DType::F32),
            ("half", DType::F16),
            ("bf16", DType::BF16),
            ("int8", DType::I8),
            ("uint64", DType::U64),
            ("double", DType::F64),
            ("fp8_e4m3", DType::F8E4M3),
        ] {
            assert_eq!(parse_dtypes(text), Ok(Choice::One(dtype)));
        }
        for &dtype in DType::ALL {
            assert_eq!(parse_dtype(dtype.name()), Ok(dtype));
        }
        assert!(parse_dtypes("int4").unwrap_err().contains("or all"));
    }

    #[test]
    fn numbers_are_whole_and_within_their_range() {
        let digit = whole(1..=9);
        assert_eq!((digit("1"), digit("9"), digit("007")), (Ok(1), Ok(9), Ok(7)));
        for text in
            ["", "0", "10", "-1", "+1", "1e0", "1.0", " 1", "0x1", "٣", "9223372036854775808", "99999999999999999999"]
        {
            assert_eq!(digit(text).unwrap_err(), "expected a whole number from 1 to 9", "{text}");
        }
        assert_eq!(whole(2..=u64::MAX)("1").unwrap_err(), "expected a whole number, 2 or more");
        assert!(parse_rank_count("1025").unwrap_err().contains("1 to 1024 ranks"));
        assert_eq!((parse_switch("0"), parse_switch("1")), (Ok(false), Ok(true)));
        assert!(parse_switch("yes").is_err() && parse_switch("2").is_err());
    }

    #[test]
    fn all_stands_for_every_one() {
        assert_eq!(parse_dtypes("all"), Ok(Choice::All));
        assert_eq!(parse_roots("all").unwrap().among(0..3), [0, 1, 2]);
        assert_eq!(parse_roots("-1"), Ok(Choice::All));
        assert_eq!(parse_roots("2").unwrap().among(0..3), [2]);
        assert!(parse_roots("-2").is_err());
        assert_eq!(parse_reductions("avg"), Ok(Choice::One(Reduction::Avg)));
        assert!(parse_reductions("median").unwrap_err().contains("sum"));
    }

    #[test]
    fn collectives_and_algorithms_are_found_by_name() {
        assert_eq!(parse_collective("reduce-scatter"), Ok(Collective::ReduceScatter));
        assert_eq!(parse_algorithm("one-shot"), Ok(Algorithm::OneShot));
        assert!(parse_algorithm("snail").unwrap_err().contains("ring, tree"));
        assert!(parse_collective("all_scatter").unwrap_err().contains("all_reduce, reduce_scatter"));
    }
}

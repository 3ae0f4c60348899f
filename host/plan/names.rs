//! The names of collectives, algorithms and buffers, written and read.
//!
//! A name is the word that MPI or NCCL uses, in `snake_case`. This room never guesses: what it does not know is an error
//! that lists what it does know.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use super::{Algorithm, Buffer, Collective, Rank};

impl Collective {
    /// Every collective, those with a root rooted at rank 0.
    pub const ALL: [Collective; 6] = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root: Rank(0) },
        Collective::Reduce { root: Rank(0) },
        Collective::Barrier,
    ];

    /// The name without the root, such as `all_reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllGather => "all_gather",
            Collective::Broadcast { .. } => "broadcast",
            Collective::Reduce { .. } => "reduce",
            Collective::Barrier => "barrier",
        }
    }

    /// The root, where there is one.
    pub const fn root(self) -> Option<Rank> {
        match self {
            Collective::Broadcast { root } | Collective::Reduce { root } => Some(root),
            _ => None,
        }
    }

    /// The same collective with another root; those without a root stay as they are.
    #[must_use]
    pub const fn with_root(self, root: Rank) -> Collective {
        match self {
            Collective::Broadcast { .. } => Collective::Broadcast { root },
            Collective::Reduce { .. } => Collective::Reduce { root },
            other => other,
        }
    }

    /// Whether inputs are reduced, so that scale and finish apply.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. })
    }

    /// The algorithms that offer this collective.
    pub fn algorithms(self) -> impl Iterator<Item = Algorithm> {
        Algorithm::ALL.into_iter().filter(move |algorithm| algorithm.offers(self))
    }
}

/// The name; with a root, `broadcast root r2`.
impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.root() {
            None => f.write_str(self.name()),
            Some(root) => write!(f, "{} root {root}", self.name()),
        }
    }
}

/// Reads a name as [`Collective::name`] writes it; the root is rank 0 until [`Collective::with_root`] moves it.
impl FromStr for Collective {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Collective, UnknownName> {
        find(text, "collective", &Collective::ALL, |collective| collective.name())
    }
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 10] = [
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::Chain,
        Algorithm::OneShot,
        Algorithm::Direct,
        Algorithm::Nvls,
        Algorithm::Dissemination,
        Algorithm::HalvingDoubling,
        Algorithm::DoubleTree,
        Algorithm::Bruck,
    ];

    /// The name, such as `one_shot`.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::Chain => "chain",
            Algorithm::OneShot => "one_shot",
            Algorithm::Direct => "direct",
            Algorithm::Nvls => "nvls",
            Algorithm::Dissemination => "dissemination",
            Algorithm::HalvingDoubling => "halving_doubling",
            Algorithm::DoubleTree => "double_tree",
            Algorithm::Bruck => "bruck",
        }
    }

    /// Whether its channels go round, in whatever order they are given.
    pub const fn takes_orders(self) -> bool {
        matches!(self, Algorithm::Ring)
    }

    /// What it can do; collectives with a root are offered for every root and listed with rank 0.
    pub const fn collectives(self) -> &'static [Collective] {
        const ROOTED: Rank = Rank(0);
        match self {
            Algorithm::Ring => &[Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather],
            Algorithm::Tree => {
                &[Collective::AllReduce, Collective::Broadcast { root: ROOTED }, Collective::Reduce { root: ROOTED }]
            }
            Algorithm::Chain => &[Collective::Broadcast { root: ROOTED }, Collective::Reduce { root: ROOTED }],
            Algorithm::OneShot | Algorithm::HalvingDoubling | Algorithm::DoubleTree => &[Collective::AllReduce],
            Algorithm::Bruck => &[Collective::AllGather],
            Algorithm::Direct | Algorithm::Nvls => &[
                Collective::AllReduce,
                Collective::ReduceScatter,
                Collective::AllGather,
                Collective::Broadcast { root: ROOTED },
                Collective::Reduce { root: ROOTED },
            ],
            Algorithm::Dissemination => &[Collective::Barrier],
        }
    }

    /// Whether it can do `collective`, whatever the root.
    pub fn offers(self, collective: Collective) -> bool {
        self.collectives().contains(&collective.with_root(Rank(0)))
    }

    /// Whether its plans read or write peers' windows, which not every transport offers.
    pub const fn needs_windows(self) -> bool {
        matches!(self, Algorithm::Direct | Algorithm::Nvls)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Algorithm, UnknownName> {
        find(text, "algorithm", &Algorithm::ALL, |algorithm| algorithm.name())
    }
}

impl Buffer {
    /// Every buffer.
    pub const ALL: [Buffer; 3] = [Buffer::Input, Buffer::Output, Buffer::Scratch];

    /// The name, such as `input`.
    pub const fn name(self) -> &'static str {
        match self {
            Buffer::Input => "input",
            Buffer::Output => "output",
            Buffer::Scratch => "scratch",
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Buffer {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Buffer, UnknownName> {
        find(text, "buffer", &Buffer::ALL, |buffer| buffer.name())
    }
}

/// A name that nothing has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// What it should have named, such as `collective`.
    pub what: &'static str,
    /// What came, cut to a readable length.
    pub came: String,
    /// The names that exist.
    pub expected: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} is called {:?}; expected one of {}", self.what, self.came, self.expected.join(", "))
    }
}

impl Error for UnknownName {}

/// Characters of a foreign text that an error repeats.
pub(super) const QUOTED_CHARS_MAX: usize = 40;

fn find<T: Copy>(
    text: &str,
    what: &'static str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T, UnknownName> {
    all.iter().copied().find(|&each| name(each) == text).ok_or_else(|| UnknownName {
        what,
        came: text.chars().take(QUOTED_CHARS_MAX).collect(),
        expected: all.iter().map(|&each| name(each)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for collective in Collective::ALL {
            assert_eq!(collective.name().parse(), Ok(collective));
        }
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        for buffer in Buffer::ALL {
            assert_eq!(buffer.to_string().parse(), Ok(buffer));
        }
    }

    #[test]
    fn an_unknown_name_lists_what_is_known() {
        let error = "rign".parse::<Algorithm>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "no algorithm is called \"rign\"; expected one of ring, tree, chain, one_shot, direct, nvls, dissemination, halving_doubling, double_tree, bruck"
        );
    }

    #[test]
    fn every_collective_has_an_algorithm_and_a_root_prints_itself() {
        for collective in Collective::ALL {
            assert!(collective.algorithms().count() > 0, "{collective}");
        }
        assert_eq!(Collective::Broadcast { root: Rank(2) }.to_string(), "broadcast root r2");
        assert!(Algorithm::Chain.offers(Collective::Reduce { root: Rank(7) }));
        assert!(!Algorithm::Ring.offers(Collective::Reduce { root: Rank(0) }));
    }
}

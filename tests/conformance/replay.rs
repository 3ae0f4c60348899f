//! Random values, and properties of them, by a seed that replays them.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// This run's seed: what `TUTTI_SEED` says, or another one each time.
fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var("TUTTI_SEED") {
        Ok(seed) => seed.parse().expect("TUTTI_SEED: expected a number"),
        Err(_) => RandomState::new().hash_one("seed"),
    })
}

/// Runs `test` on `cases` values of `strategy`; `about` makes the values of one run differ from another's. Where one fails, it is
/// shrunk, and shown with the command that replays it: the test `name` of the suite `suite`.
pub(crate) fn for_any<S: Strategy>(
    suite: &str,
    name: &str,
    about: &impl Hash,
    cases: u32,
    strategy: &S,
    test: impl Fn(S::Value) -> Result<(), String>,
) {
    let mut hasher = DefaultHasher::new();
    (seed(), name, about).hash(&mut hasher);
    let seed_bytes: Vec<u8> = (0..4_u64).flat_map(|part| (hasher.finish() ^ part).to_le_bytes()).collect();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed_bytes));
    let result = runner.run(strategy, |value| test(value).map_err(TestCaseError::fail));
    if let Err(error) = result {
        panic!("{error}\nTo replay this: TUTTI_SEED={} cargo test --test {suite} {name}", seed());
    }
}

/// Numbers that look random and are always the same for the same seed (Steele, Lea and Flood's SplitMix64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// One of them.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Mixes the bits of a number.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

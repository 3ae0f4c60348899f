//! What a rank says it is doing, packed into the few words that every slot carries.

use tutti_kernels::layout::{Fingerprint, ODD};

use crate::dtype::{DType, Reduction, Scale};
use crate::plan::{Algorithm, Collective, Rank};

/// The code of "none" for a field that a call does not have.
const NONE: u8 = u8::MAX;

/// Beside the collectives of plans, the calls of a communicator include making another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// What the collective says.
    Collective,
    /// An all-gather of colours and keys.
    Split,
}

/// What a call is, as far as the ranks must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallWords {
    pub(crate) purpose: Purpose,
    pub(crate) collective: Collective,
    pub(crate) algorithm: Algorithm,
    pub(crate) dtype: Option<DType>,
    pub(crate) reduction: Option<Reduction>,
    /// Of a scaled sum; otherwise zero.
    pub(crate) scale: u64,
    pub(crate) count: u64,
    pub(crate) plan_digest: u64,
}

/// Lists the codes of an enum's variants once, for packing and unpacking.
fn code_of<T: PartialEq>(all: &[T], one: Option<T>) -> u8 {
    one.and_then(|one| all.iter().position(|each| *each == one)).map_or(NONE, |code| code as u8)
}

fn decode<T: Copy>(all: &[T], code: u8) -> Option<T> {
    all.get(usize::from(code)).copied()
}

impl CallWords {
    /// Packed: bits 0..8 collective, 8..16 element type, 16..24 reduction, 24..31 algorithm, 31 split, 32..64 root.
    pub(crate) fn pack(&self, sequence: u64) -> Fingerprint {
        let collective = code_of(&Collective::ALL, Some(self.collective.with_root(Rank(0))));
        let dtype = code_of(DType::ALL, self.dtype);
        let reduction = code_of(Reduction::ALL, self.reduction);
        let algorithm = code_of(&Algorithm::ALL, Some(self.algorithm)) & 0x7f;
        let split = u64::from(self.purpose == Purpose::Split);
        let root = self.collective.root().map_or(0, |root| root.0);
        let call = u64::from(collective)
            | u64::from(dtype) << 8
            | u64::from(reduction) << 16
            | u64::from(algorithm) << 24
            | split << 31
            | u64::from(root) << 32;
        // The plan's word digests the scale too, so that those of later calls do.
        let plan = self.plan_digest ^ self.scale.wrapping_mul(ODD).rotate_left(29);
        Fingerprint { sequence, call, count: self.count, plan, scale: self.scale }
    }
}

/// A fingerprint in words, such as `broadcast(count 12, f32, root 3, by tree)`.
pub(crate) fn describe(fingerprint: &Fingerprint) -> String {
    let word = fingerprint.call;
    let Some(collective) = decode(&Collective::ALL, word as u8) else {
        return format!("an unknown call ({word:#x})");
    };
    if word >> 31 & 1 == 1 {
        return "split()".to_owned();
    }
    let mut arguments = Vec::new();
    if collective != Collective::Barrier {
        arguments.push(format!("count {}", fingerprint.count));
    }
    let (dtype, reduction) = (decode(DType::ALL, (word >> 8) as u8), decode(Reduction::ALL, (word >> 16) as u8));
    arguments.extend(dtype.map(|dtype| dtype.name().to_owned()));
    arguments.extend(reduction.map(|reduction| reduction.name().to_owned()));
    if let (Some(dtype), Some(Reduction::ScaledSum)) = (dtype, reduction) {
        arguments.push(format!("scale {}", Scale::of_bits(fingerprint.scale, dtype)));
    }
    if collective.root().is_some() {
        arguments.push(format!("root {}", word >> 32));
    }
    if let Some(algorithm) = decode(&Algorithm::ALL, (word >> 24) as u8 & 0x7f) {
        arguments.push(format!("by {algorithm}"));
    }
    format!("{}({})", collective.name(), arguments.join(", "))
}

/// Both calls in words; where these are the same, with what else differs: the plan, or calls that nobody remembers.
pub(crate) fn describe_both(left: &Fingerprint, right: &Fingerprint) -> (String, String) {
    let (mut left_text, mut right_text) = (describe(left), describe(right));
    if left_text == right_text && left.sequence == right.sequence {
        // What a switch is to do depends on where the buffers are.
        let is_switched = decode(&Algorithm::ALL, (left.call >> 24) as u8 & 0x7f) == Some(Algorithm::Nvls);
        let what = if is_switched { "plan, or buffers at places," } else { "plan" };
        left_text += &format!(" with {what} {:#018x}", left.plan);
        right_text += &format!(" with {what} {:#018x}", right.plan);
    }
    if left.sequence != right.sequence {
        left_text += &format!(" as call {}", left.sequence);
        right_text += &format!(" as call {}", right.sequence);
    }
    (left_text, right_text)
}

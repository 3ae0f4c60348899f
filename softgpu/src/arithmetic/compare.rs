//! Comparisons: 0 or 1 in each lane.

#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "an unordered comparison is the negation of an ordered one")]

use super::Binary;
use super::float::{flush, widen_bf16, widen_f16};
use crate::types::Type;

/// The function of `setp.operator.kind`.
pub(crate) fn comparison(operator: &str, kind: Type, ftz: bool) -> Option<Binary> {
    macro_rules! floats {
        ($bits:ty, |$x:ident| $read:expr) => {{
            macro_rules! with {
                (|$a:ident, $b:ident| $value:expr) => {
                    binary!($bits, |x, y| {
                        let $a = {
                            let $x = x;
                            $read
                        };
                        let $b = {
                            let $x = y;
                            $read
                        };
                        $value
                    })
                };
            }
            Some(match operator {
                "eq" => with!(|a, b| a == b),
                "ne" => with!(|a, b| a != b && !a.is_nan() && !b.is_nan()),
                "lt" => with!(|a, b| a < b),
                "le" => with!(|a, b| a <= b),
                "gt" => with!(|a, b| a > b),
                "ge" => with!(|a, b| a >= b),
                "equ" => with!(|a, b| a == b || a.is_nan() || b.is_nan()),
                "neu" => with!(|a, b| a != b),
                "ltu" => with!(|a, b| !(a >= b)),
                "leu" => with!(|a, b| !(a > b)),
                "gtu" => with!(|a, b| !(a <= b)),
                "geu" => with!(|a, b| !(a < b)),
                "num" => with!(|a, b| !a.is_nan() && !b.is_nan()),
                "nan" => with!(|a, b| a.is_nan() || b.is_nan()),
                _ => return None,
            })
        }};
    }
    match kind {
        Type::F32 if ftz => floats!(u32, |x| flush(f32::from_bits(x))),
        Type::F32 => floats!(u32, |x| f32::from_bits(x)),
        Type::F64 => floats!(u64, |x| f64::from_bits(x)),
        Type::F16 => floats!(u16, |x| widen_f16(x)),
        Type::Bf16 => floats!(u16, |x| widen_bf16(x)),
        _ => match operator {
            "eq" => integers!(kind, binary, |a, b| a == b),
            "ne" => integers!(kind, binary, |a, b| a != b),
            "lt" | "lo" => integers!(kind, binary, |a, b| a < b),
            "le" | "ls" => integers!(kind, binary, |a, b| a <= b),
            "gt" | "hi" => integers!(kind, binary, |a, b| a > b),
            "ge" | "hs" => integers!(kind, binary, |a, b| a >= b),
            _ => None,
        },
    }
}

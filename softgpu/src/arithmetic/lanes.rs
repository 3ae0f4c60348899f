//! From a scalar expression to a function over the lanes of a warp.

use crate::types::Lanes;

pub(crate) type Unary = fn(&mut Lanes, &Lanes, u32);
pub(crate) type Binary = fn(&mut Lanes, &Lanes, &Lanes, u32);
pub(crate) type Ternary = fn(&mut Lanes, &Lanes, &Lanes, &Lanes, u32);
pub(crate) type Quaternary = fn(&mut Lanes, [&Lanes; 4], u32);

/// Calls `body` with each lane of `mask`; all 32 in a loop of their own, which a compiler can vectorise.
#[inline(always)]
pub(crate) fn each(mask: u32, mut body: impl FnMut(usize)) {
    if mask == u32::MAX {
        for lane in 0..32 {
            body(lane);
        }
    } else {
        let mut left = mask;
        while left != 0 {
            body(left.trailing_zeros() as usize & 31);
            left &= left - 1;
        }
    }
}

/// A value that lives in a lane of a register.
pub(crate) trait Lane: Copy {
    fn from_bits(bits: u64) -> Self;
    fn to_bits(self) -> u64;
}

macro_rules! integer_lanes {
    ($($type:ty, $unsigned:ty);* $(;)?) => {
        $(impl Lane for $type {
            #[inline(always)]
            fn from_bits(bits: u64) -> $type {
                bits as $type
            }
            #[inline(always)]
            fn to_bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
        })*
    };
}

integer_lanes! { u8, u8; u16, u16; u32, u32; u64, u64; i8, u8; i16, u16; i32, u32; i64, u64 }

impl Lane for bool {
    #[inline(always)]
    fn from_bits(bits: u64) -> bool {
        bits != 0
    }
    #[inline(always)]
    fn to_bits(self) -> u64 {
        u64::from(self)
    }
}

impl Lane for f32 {
    #[inline(always)]
    fn from_bits(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
    /// A NaN that an instruction makes is the canonical one.
    #[inline(always)]
    fn to_bits(self) -> u64 {
        u64::from(if self.is_nan() { 0x7fff_ffff } else { self.to_bits() })
    }
}

impl Lane for f64 {
    #[inline(always)]
    fn from_bits(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.to_bits()
    }
}

/// `unary!(u32, |a| a.count_ones())`: the type in which the source is read, and an expression of any type that is a [`Lane`].
macro_rules! unary {
    ($a_type:ty, |$a:ident| $value:expr) => {{
        fn lanes(d: &mut $crate::types::Lanes, a: &$crate::types::Lanes, mask: u32) {
            use $crate::arithmetic::lanes::Lane;
            $crate::arithmetic::each(mask, |lane| {
                let $a = <$a_type as Lane>::from_bits(a[lane]);
                d[lane] = Lane::to_bits($value);
            });
        }
        lanes as $crate::arithmetic::Unary
    }};
}

/// As [`unary!`]; the second source may have a type of its own.
macro_rules! binary {
    ($a_type:ty, |$a:ident, $b:ident| $value:expr) => {
        binary!($a_type, $a_type, |$a, $b| $value)
    };
    ($a_type:ty, $b_type:ty, |$a:ident, $b:ident| $value:expr) => {{
        fn lanes(d: &mut $crate::types::Lanes, a: &$crate::types::Lanes, b: &$crate::types::Lanes, mask: u32) {
            use $crate::arithmetic::lanes::Lane;
            $crate::arithmetic::each(mask, |lane| {
                let $a = <$a_type as Lane>::from_bits(a[lane]);
                let $b = <$b_type as Lane>::from_bits(b[lane]);
                d[lane] = Lane::to_bits($value);
            });
        }
        lanes as $crate::arithmetic::Binary
    }};
}

/// As [`unary!`]; the second and third source may have types of their own.
macro_rules! ternary {
    ($a_type:ty, |$a:ident, $b:ident, $c:ident| $value:expr) => {
        ternary!($a_type, $a_type, $a_type, |$a, $b, $c| $value)
    };
    ($a_type:ty, $b_type:ty, $c_type:ty, |$a:ident, $b:ident, $c:ident| $value:expr) => {{
        fn lanes(
            d: &mut $crate::types::Lanes,
            a: &$crate::types::Lanes,
            b: &$crate::types::Lanes,
            c: &$crate::types::Lanes,
            mask: u32,
        ) {
            use $crate::arithmetic::lanes::Lane;
            $crate::arithmetic::each(mask, |lane| {
                let $a = <$a_type as Lane>::from_bits(a[lane]);
                let $b = <$b_type as Lane>::from_bits(b[lane]);
                let $c = <$c_type as Lane>::from_bits(c[lane]);
                d[lane] = Lane::to_bits($value);
            });
        }
        lanes as $crate::arithmetic::Ternary
    }};
}

/// As [`unary!`], with four sources.
macro_rules! quaternary {
    ($a_type:ty, $b_type:ty, $c_type:ty, $d_type:ty, |$a:ident, $b:ident, $c:ident, $d:ident| $value:expr) => {{
        fn lanes(d: &mut $crate::types::Lanes, sources: [&$crate::types::Lanes; 4], mask: u32) {
            use $crate::arithmetic::lanes::Lane;
            $crate::arithmetic::each(mask, |lane| {
                let $a = <$a_type as Lane>::from_bits(sources[0][lane]);
                let $b = <$b_type as Lane>::from_bits(sources[1][lane]);
                let $c = <$c_type as Lane>::from_bits(sources[2][lane]);
                let $d = <$d_type as Lane>::from_bits(sources[3][lane]);
                d[lane] = Lane::to_bits($value);
            });
        }
        lanes as $crate::arithmetic::Quaternary
    }};
}

/// One function for each integer type: `integers!(kind, binary, |a, b| a.wrapping_add(b))`.
macro_rules! integers {
    ($kind:expr, $make:ident, $($closure:tt)*) => {
        match $kind {
            Type::U8 | Type::B8 => Some($make!(u8, $($closure)*)),
            Type::U16 | Type::B16 => Some($make!(u16, $($closure)*)),
            Type::U32 | Type::B32 => Some($make!(u32, $($closure)*)),
            Type::U64 | Type::B64 => Some($make!(u64, $($closure)*)),
            Type::S8 => Some($make!(i8, $($closure)*)),
            Type::S16 => Some($make!(i16, $($closure)*)),
            Type::S32 => Some($make!(i32, $($closure)*)),
            Type::S64 => Some($make!(i64, $($closure)*)),
            _ => None,
        }
    };
}

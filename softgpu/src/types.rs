//! PTX's types, and the 32 lanes of a warp's register.

/// Threads in a warp.
pub const WARP_THREADS: usize = 32;

/// One register of a warp: a value for each lane, zero-extended from the register's width.
pub(crate) type Lanes = [u64; WARP_THREADS];

/// A type of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    B8,
    B16,
    B32,
    B64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F32x2,
    F64,
    U16x2,
    S16x2,
    E4m3x2,
    E5m2x2,
    E4m3,
    E5m2,
    E4m3x4,
    E5m2x4,
}

impl Type {
    /// The type with that name (without its dot).
    pub(crate) fn named(name: &str) -> Option<Type> {
        Some(match name {
            "pred" => Type::Pred,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "bf16" => Type::Bf16,
            "bf16x2" => Type::Bf16x2,
            "tf32" => Type::Tf32,
            "f32" => Type::F32,
            "f32x2" => Type::F32x2,
            "f64" => Type::F64,
            "u16x2" => Type::U16x2,
            "s16x2" => Type::S16x2,
            "e4m3x2" => Type::E4m3x2,
            "e5m2x2" => Type::E5m2x2,
            "e4m3" => Type::E4m3,
            "e5m2" => Type::E5m2,
            "e4m3x4" => Type::E4m3x4,
            "e5m2x4" => Type::E5m2x4,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> u32 {
        match self {
            Type::Pred | Type::U8 | Type::S8 | Type::B8 | Type::E4m3 | Type::E5m2 => 1,
            Type::U16 | Type::S16 | Type::B16 | Type::F16 | Type::Bf16 | Type::E4m3x2 | Type::E5m2x2 => 2,
            Type::U64 | Type::S64 | Type::B64 | Type::F64 | Type::F32x2 => 8,
            _ => 4,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub(crate) fn is_integer(self) -> bool {
        use Type::*;
        matches!(self, U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64 | B8 | B16 | B32 | B64)
    }
}

/// The lowest `bytes` bytes.
pub(crate) fn mask_of(bytes: u32) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 }
}

/// `value` of `bytes` bytes, with its sign repeated up to 64 bits.
pub(crate) fn sign_extend(value: u64, bytes: u32) -> u64 {
    let unused = 64 - bytes.clamp(1, 8) * 8;
    (((value << unused) as i64) >> unused) as u64
}

//! Each instruction against an obvious oracle, by way of PTX text, so that parser, decoder and interpreter are tested with it.

use std::sync::Arc;

use half::{bf16, f16};
use softgpu::{Arguments, LaunchOptions, Machine, MemoryKind, Module};

/// Runs one instruction (or a few) over many inputs. `%d0` to `%d3` hold the inputs' 64 bits, `%r0` … their lower 32, `%h0` …
/// their lower 16, `%p0` … whether they are odd. The result is what stands in `%d4`, `%r4`, `%h4` and `%p4` together.
fn run(instructions: &str, inputs: &[[u64; 4]]) -> Vec<u64> {
    let mut text = String::from(
        ".version 8.8\n.target sm_100\n.address_size 64\n.visible .entry test(.param .u64 in, .param .u64 out)\n{\n\
         .reg .b16 %h<8>;\n.reg .b32 %r<16>;\n.reg .b64 %d<16>;\n.reg .pred %p<8>;\n\
         ld.param.u64 %d8, [in];\nld.param.u64 %d9, [out];\nmov.u32 %r8, %ctaid.x;\nmov.u32 %r9, %tid.x;\n\
         mad.lo.u32 %r10, %r8, 32, %r9;\nmul.wide.u32 %d10, %r10, 32;\nadd.u64 %d8, %d8, %d10;\n\
         mul.wide.u32 %d10, %r10, 8;\nadd.u64 %d9, %d9, %d10;\n\
         ld.global.v4.u64 {%d0, %d1, %d2, %d3}, [%d8];\nmov.b64 %d4, 0;\nmov.b32 %r4, 0;\nmov.b16 %h4, 0;\n\
         setp.ne.u32 %p4, 0, 0;\n",
    );
    for index in 0..4 {
        text += &format!(
            "cvt.u32.u64 %r{index}, %d{index};\ncvt.u16.u64 %h{index}, %d{index};\nand.b32 %r11, %r{index}, 1;\nsetp.eq.u32 %p{index}, %r11, 1;\n"
        );
    }
    text += instructions;
    text += "\ncvt.u64.u32 %d11, %r4;\nor.b64 %d4, %d4, %d11;\ncvt.u64.u16 %d11, %h4;\nor.b64 %d4, %d4, %d11;\n\
             selp.b64 %d11, 1, 0, %p4;\nor.b64 %d4, %d4, %d11;\nst.global.u64 [%d9], %d4;\nret;\n}\n";
    let module = Arc::new(Module::parse(&text).unwrap_or_else(|error| panic!("{instructions}: {error}")));
    let machine = Machine::with_workers(1);
    let loaded = machine.load(&module, 0).unwrap();
    assert_eq!(inputs.len() % 32, 0);
    let from = machine.allocate(inputs.len() as u64 * 32, MemoryKind::Device, 0).unwrap();
    let to = machine.allocate(inputs.len() as u64 * 8, MemoryKind::Device, 0).unwrap();
    machine.write(from, &inputs.iter().flatten().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let options = LaunchOptions {
        grid: (inputs.len() as u32 / 32).into(),
        arguments: Arguments::new().u64(from).u64(to).into_bytes(),
        ..LaunchOptions::default()
    };
    machine.run(&loaded, "test", options).unwrap_or_else(|error| panic!("{instructions}: {error}"));
    let mut bytes = vec![0; inputs.len() * 8];
    machine.read(to, &mut bytes).unwrap();
    bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// Edges of every width and format, and numbers without a pattern.
fn inputs() -> Vec<[u64; 4]> {
    let edges = [
        0u64,
        1,
        2,
        7,
        31,
        32,
        33,
        63,
        64,
        65,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0xffff,
        0x3c00,
        0x7c00,
        0xfc00,
        0x7bff,
        0x0001,
        0x8001,
        0x7f80,
        0xff80,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x3f80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x0000_0001,
        0x8000_0001,
        0x007f_ffff,
        0x7f7f_ffff,
        0x3ff0_0000_0000_0000,
        0x7ff0_0000_0000_0000,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        u64::MAX,
        0x4008_0000_4040_0000,
        0x3c00_3c00_bc00_4200,
    ];
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut list: Vec<[u64; 4]> = Vec::new();
    for a in edges {
        for b in edges {
            list.push([a, b, edges[next() as usize % edges.len()], next()]);
        }
    }
    while list.len() < 4096 {
        let (a, b) = (next(), next());
        list.push([a, b, next() >> (next() % 64), next() >> (next() % 64)]);
    }
    list
}

/// Compares with an oracle; `equal` may take two NaNs for one.
fn check(instructions: &str, equal: impl Fn(u64, u64) -> bool, oracle: impl Fn([u64; 4]) -> u64) {
    let inputs = inputs();
    for (input, found) in inputs.iter().zip(run(instructions, &inputs)) {
        let want = oracle(*input);
        assert!(equal(found, want), "{instructions}: of {input:#x?} expected {want:#x}, found {found:#x}");
    }
}

fn exact(instructions: &str, oracle: impl Fn([u64; 4]) -> u64) {
    check(instructions, |found, want| found == want, oracle);
}

fn single(instructions: &str, oracle: impl Fn(f32, f32, f32) -> f32) {
    let same = |found: u64, want: u64| {
        found == want || (f32::from_bits(found as u32).is_nan() && f32::from_bits(want as u32).is_nan())
    };
    let value = |bits: u64| f32::from_bits(bits as u32);
    check(instructions, same, |[a, b, c, _]| oracle(value(a), value(b), value(c)).to_bits().into());
}

fn double(instructions: &str, oracle: impl Fn(f64, f64, f64) -> f64) {
    let same =
        |found: u64, want: u64| found == want || (f64::from_bits(found).is_nan() && f64::from_bits(want).is_nan());
    check(instructions, same, |[a, b, c, _]| oracle(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c)).to_bits());
}

fn u32s(oracle: impl Fn(u32, u32, u32) -> u32) -> impl Fn([u64; 4]) -> u64 {
    move |[a, b, c, _]| oracle(a as u32, b as u32, c as u32).into()
}

fn i32s(oracle: impl Fn(i32, i32, i32) -> i32) -> impl Fn([u64; 4]) -> u64 {
    move |[a, b, c, _]| (oracle(a as i32, b as i32, c as i32) as u32).into()
}

#[test]
fn integer_arithmetic_is_that_of_the_processor() {
    exact("add.s32 %r4, %r0, %r1;", u32s(|a, b, _| a.wrapping_add(b)));
    exact("sub.u32 %r4, %r0, %r1;", u32s(|a, b, _| a.wrapping_sub(b)));
    exact("add.sat.s32 %r4, %r0, %r1;", i32s(|a, b, _| a.saturating_add(b)));
    exact("mul.lo.u32 %r4, %r0, %r1;", u32s(|a, b, _| a.wrapping_mul(b)));
    exact("mul.hi.s32 %r4, %r0, %r1;", i32s(|a, b, _| ((i64::from(a) * i64::from(b)) >> 32) as i32));
    exact("mul.hi.u64 %d4, %d0, %d1;", |[a, b, ..]| ((u128::from(a) * u128::from(b)) >> 64) as u64);
    exact("mul.hi.s64 %d4, %d0, %d1;", |[a, b, ..]| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64);
    exact("mul.wide.s32 %d4, %r0, %r1;", |[a, b, ..]| (i64::from(a as i32) * i64::from(b as i32)) as u64);
    exact("mul.wide.u16 %r4, %h0, %h1;", |[a, b, ..]| u64::from(u32::from(a as u16) * u32::from(b as u16)));
    exact("mad.lo.s32 %r4, %r0, %r1, %r2;", i32s(|a, b, c| a.wrapping_mul(b).wrapping_add(c)));
    exact("mad.wide.u32 %d4, %r0, %r1, %d2;", |[a, b, c, _]| {
        (a & 0xffff_ffff).wrapping_mul(b & 0xffff_ffff).wrapping_add(c)
    });
    exact("sad.s32 %r4, %r0, %r1, %r2;", i32s(|a, b, c| (a.abs_diff(b) as i32).wrapping_add(c)));
    exact("min.s32 %r4, %r0, %r1;", i32s(|a, b, _| a.min(b)));
    exact("max.u64 %d4, %d0, %d1;", |[a, b, ..]| a.max(b));
    exact("min.s64 %d4, %d0, %d1;", |[a, b, ..]| (a as i64).min(b as i64) as u64);
    exact("max.s16 %h4, %h0, %h1;", |[a, b, ..]| ((a as i16).max(b as i16) as u16).into());
    exact("abs.s64 %d4, %d0;", |[a, ..]| (a as i64).wrapping_abs() as u64);
    exact("neg.s16 %h4, %h0;", |[a, ..]| (a as i16).wrapping_neg() as u16 as u64);
    exact("div.s32 %r4, %r0, %r1;", i32s(|a, b, _| if b == 0 { -1 } else { a.wrapping_div(b) }));
    exact("rem.u64 %d4, %d0, %d1;", |[a, b, ..]| if b == 0 { a } else { a % b });
    // 128-bit sums and products by carries, as a compiler writes them.
    exact("add.cc.u64 %d5, %d0, %d1;\naddc.u64 %d4, %d2, %d3;", |[a, b, c, d]| {
        let sum = (u128::from(c) << 64 | u128::from(a)).wrapping_add(u128::from(d) << 64 | u128::from(b));
        (sum >> 64) as u64
    });
    exact("sub.cc.s64 %d5, %d0, %d1;\nsubc.s64 %d4, %d2, %d3;", |[a, b, c, d]| {
        let difference = (u128::from(c) << 64 | u128::from(a)).wrapping_sub(u128::from(d) << 64 | u128::from(b));
        (difference >> 64) as u64
    });
    exact(
        "dp4a.s32.u32 %r4, %r0, %r1, %r2;",
        u32s(|a, b, c| {
            let products =
                a.to_le_bytes().into_iter().zip(b.to_le_bytes()).map(|(a, b)| i32::from(a as i8) * i32::from(b));
            c.wrapping_add(products.sum::<i32>() as u32)
        }),
    );
    exact(
        "add.u16x2 %r4, %r0, %r1;",
        u32s(|a, b, _| {
            (a as u16).wrapping_add(b as u16) as u32 | (((a >> 16) as u16).wrapping_add((b >> 16) as u16) as u32) << 16
        }),
    );
}

#[test]
fn bits_go_where_the_manual_says() {
    exact("xor.b32 %r4, %r0, %r1;", u32s(|a, b, _| a ^ b));
    exact("not.b64 %d4, %d0;", |[a, ..]| !a);
    exact("cnot.b32 %r4, %r0;", u32s(|a, _, _| u32::from(a == 0)));
    exact("shl.b32 %r4, %r0, %r1;", u32s(|a, b, _| if b > 31 { 0 } else { a << b }));
    exact("shr.s32 %r4, %r0, %r1;", i32s(|a, b, _| a >> (b as u32).min(31)));
    exact("shr.u64 %d4, %d0, %r1;", |[a, b, ..]| if b as u32 > 63 { 0 } else { a >> (b as u32) });
    exact("shr.s16 %h4, %h0, %r1;", |[a, b, ..]| ((a as i16 >> (b as u32).min(15)) as u16).into());
    exact(
        "shf.l.wrap.b32 %r4, %r0, %r1, %r2;",
        u32s(|a, b, c| (((u64::from(b) << 32 | u64::from(a)) << (c & 31)) >> 32) as u32),
    );
    exact(
        "shf.r.clamp.b32 %r4, %r0, %r1, %r2;",
        u32s(|a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32),
    );
    exact("popc.b64 %r4, %d0;", |[a, ..]| a.count_ones().into());
    exact("clz.b32 %r4, %r0;", u32s(|a, _, _| a.leading_zeros()));
    exact("brev.b32 %r4, %r0;", u32s(|a, _, _| a.reverse_bits()));
    exact("bfind.u32 %r4, %r0;", u32s(|a, _, _| if a == 0 { u32::MAX } else { 31 - a.leading_zeros() }));
    // The manual's own pseudo-code, bit by bit.
    let extract = |a: u64, width: u32, signed: bool, b: u64, c: u64| {
        let (position, length) = (b as u32 & 0xff, c as u32 & 0xff);
        let bit = |at: u32| if at < width { a >> at & 1 } else { 0 };
        let sign = if !signed || length == 0 { 0 } else { bit((position + length - 1).min(width - 1)) };
        (0..width)
            .fold(0, |d, at| d | (if at < length && position + at < width { bit(position + at) } else { sign }) << at)
    };
    exact("bfe.u32 %r4, %r0, %r1, %r2;", move |[a, b, c, _]| extract(a & 0xffff_ffff, 32, false, b, c));
    exact("bfe.s32 %r4, %r0, %r1, %r2;", move |[a, b, c, _]| extract(a & 0xffff_ffff, 32, true, b, c));
    exact("bfe.s64 %d4, %d0, %r1, %r2;", move |[a, b, c, _]| extract(a, 64, true, b, c));
    let insert = |a: u64, b: u64, width: u32, c: u64, d: u64| {
        let (position, length) = (c as u32 & 0xff, d as u32 & 0xff);
        (0..length)
            .filter(|at| position + at < width)
            .fold(b, |f, at| f & !(1 << (position + at)) | (a >> at & 1) << (position + at))
    };
    exact("bfi.b32 %r4, %r0, %r1, %r2, %r3;", move |[a, b, c, d]| insert(a & 0xffff_ffff, b & 0xffff_ffff, 32, c, d));
    exact("bfi.b64 %d4, %d0, %d1, %r2, %r3;", move |[a, b, c, d]| insert(a, b, 64, c, d));
    exact(
        "prmt.b32 %r4, %r0, %r1, %r2;",
        u32s(|a, b, c| {
            let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
            u32::from_le_bytes(std::array::from_fn(|index| {
                let choice = (c >> (4 * index)) as usize & 15;
                let byte = bytes[choice & 7];
                if choice & 8 == 0 {
                    byte
                } else if byte & 0x80 == 0 {
                    0
                } else {
                    0xff
                }
            }))
        }),
    );
    exact("lop3.b32 %r4, %r0, %r1, %r2, 0xca;", u32s(|a, b, c| (a & b) | (!a & c)));
    exact(
        "{ .reg .b16 low, high; mov.b32 {low, high}, %r0; mov.b32 %r4, {high, low}; }",
        u32s(|a, _, _| a.rotate_left(16)),
    );
    exact("mov.b64 %d4, {%h0, %h1, %h2, %h3};", |[a, b, c, d]| {
        [a, b, c, d].iter().rev().fold(0, |sum, part| sum << 16 | part & 0xffff)
    });
    exact("mov.b64 {_, %r4}, %d0;", |[a, ..]| a >> 32);
}

#[test]
fn comparisons_combine_and_select() {
    exact("setp.lt.s32 %p4, %r0, %r1;", |[a, b, ..]| ((a as i32) < b as i32).into());
    exact("setp.hs.u64 %p4, %d0, %d1;", |[a, b, ..]| (a >= b).into());
    exact("setp.ne.and.b16 %p4, %h0, %h1, !%p2;", |[a, b, c, _]| (a as u16 != b as u16 && c & 1 == 0).into());
    exact("setp.eq.xor.u32 %p5|%p4, %r0, %r1, %p2;", |[a, b, c, _]| ((a as u32 != b as u32) ^ (c & 1 == 1)).into());
    let single = |a: u64, b: u64| f32::from_bits(a as u32).partial_cmp(&f32::from_bits(b as u32));
    exact("setp.lt.f32 %p4, %r0, %r1;", move |[a, b, ..]| (single(a, b) == Some(std::cmp::Ordering::Less)).into());
    exact("setp.geu.f32 %p4, %r0, %r1;", move |[a, b, ..]| (single(a, b) != Some(std::cmp::Ordering::Less)).into());
    exact("setp.ne.f32 %p4, %r0, %r1;", move |[a, b, ..]| {
        single(a, b).is_some_and(|order| order != std::cmp::Ordering::Equal).into()
    });
    exact("setp.nan.f64 %p4, %d0, %d1;", |[a, b, ..]| {
        (f64::from_bits(a).is_nan() || f64::from_bits(b).is_nan()).into()
    });
    exact("setp.gt.f16 %p4, %h0, %h1;", |[a, b, ..]| (f16::from_bits(a as u16) > f16::from_bits(b as u16)).into());
    exact("setp.le.bf16 %p4, %h0, %h1;", |[a, b, ..]| (bf16::from_bits(a as u16) <= bf16::from_bits(b as u16)).into());
    exact("selp.b64 %d4, %d0, %d1, %p2;", |[a, b, c, _]| if c & 1 == 1 { a } else { b });
    exact("slct.u32.s32 %r4, %r0, %r1, %r2;", u32s(|a, b, c| if c as i32 >= 0 { a } else { b }));
    exact("set.lt.u32.s32 %r4, %r0, %r1;", |[a, b, ..]| if (a as i32) < b as i32 { 0xffff_ffff } else { 0 });
    exact("xor.pred %p4, %p0, %p1;", |[a, b, ..]| (a ^ b) & 1);
    exact("@!%p0 mov.u32 %r4, %r1;", |[a, b, ..]| if a & 1 == 0 { b & 0xffff_ffff } else { 0 });
}

#[test]
fn single_and_double_precision_are_ieee() {
    single("add.rn.f32 %r4, %r0, %r1;", |a, b, _| a + b);
    single("sub.f32 %r4, %r0, %r1;", |a, b, _| a - b);
    single("mul.rn.f32 %r4, %r0, %r1;", |a, b, _| a * b);
    single("fma.rn.f32 %r4, %r0, %r1, %r2;", |a, b, c| a.mul_add(b, c));
    single("div.rn.f32 %r4, %r0, %r1;", |a, b, _| a / b);
    single("sqrt.rn.f32 %r4, %r0;", |a, _, _| a.sqrt());
    single("rcp.rn.f32 %r4, %r0;", |a, _, _| 1.0 / a);
    single("add.sat.f32 %r4, %r0, %r1;", |a, b, _| if a + b >= 0.0 { (a + b).min(1.0) } else { 0.0 });
    let flush = |value: f32| if value.is_subnormal() { 0.0f32.copysign(value) } else { value };
    single("mul.ftz.f32 %r4, %r0, %r1;", move |a, b, _| flush(flush(a) * flush(b)));
    // −0 comes before +0; a NaN gives way to a number, or does not.
    let lesser = |a: f32, b: f32| if a < b || (a == b && a.is_sign_negative()) { a } else { b };
    single("min.f32 %r4, %r0, %r1;", move |a, b, _| {
        if a.is_nan() {
            b
        } else if b.is_nan() {
            a
        } else {
            lesser(a, b)
        }
    });
    single("min.NaN.f32 %r4, %r0, %r1;", move |a, b, _| if a.is_nan() || b.is_nan() { f32::NAN } else { lesser(a, b) });
    single(
        "max.NaN.f32 %r4, %r0, %r1;",
        move |a, b, _| if a.is_nan() || b.is_nan() { f32::NAN } else { -lesser(-a, -b) },
    );
    // Toward zero: never larger than the exact value, and no further from it than a step.
    single("add.rz.f32 %r4, %r0, %r1;", |a, b, _| {
        let (x, y, nearest) = (f64::from(a), f64::from(b), a + b);
        if !nearest.is_finite() {
            // An infinity of finite numbers is the nearest of what is in truth between the largest and it.
            return if a.is_finite() && b.is_finite() { f32::MAX.copysign(nearest) } else { nearest };
        }
        // What the f64 sum lacks (Knuth's two-sum), and so on which side of the exact value the nearest f32 lies.
        let sum = x + y;
        let lacks = (x - (sum - (sum - x))) + (y - (sum - x));
        let beyond = sum - f64::from(nearest);
        let beyond = if beyond == 0.0 { lacks } else { beyond };
        match nearest > 0.0 {
            true if beyond < 0.0 => nearest.next_down(),
            false if beyond > 0.0 => nearest.next_up(),
            _ => nearest,
        }
    });
    single("abs.f32 %r4, %r0;", |a, _, _| a.abs());
    double("add.rn.f64 %d4, %d0, %d1;", |a, b, _| a + b);
    double("mul.f64 %d4, %d0, %d1;", |a, b, _| a * b);
    double("fma.rn.f64 %d4, %d0, %d1, %d2;", |a, b, c| a.mul_add(b, c));
    double("div.rn.f64 %d4, %d0, %d1;", |a, b, _| a / b);
    double("max.f64 %d4, %d0, %d1;", |a, b, _| {
        if a.is_nan() {
            b
        } else if b.is_nan() || a > b || (a == b && a.is_sign_positive()) {
            a
        } else {
            b
        }
    });
}

#[test]
fn half_precision_is_rounded_once() {
    /// The oracle's halves, as f64 so that sums and products of two are exact; each is rounded once by the `half` crate.
    fn halves(instructions: &str, packed: bool, brain: bool, oracle: impl Fn(f64, f64) -> f64) {
        let widen = |bits: u16| if brain { bf16::from_bits(bits).to_f64() } else { f16::from_bits(bits).to_f64() };
        let narrow = |value: f64| if brain { bf16::from_f64(value).to_bits() } else { f16::from_f64(value).to_bits() };
        let part = |a: u64, b: u64, shift: u32| narrow(oracle(widen((a >> shift) as u16), widen((b >> shift) as u16)));
        let nan = |bits: u16| widen(bits).is_nan();
        let same = move |found: u64, want: u64| {
            let equal = |shift: u32| {
                let (found, want) = ((found >> shift) as u16, (want >> shift) as u16);
                found == want || (nan(found) && nan(want))
            };
            equal(0) && equal(16)
        };
        check(instructions, same, |[a, b, ..]| {
            u64::from(part(a, b, 0)) | if packed { u64::from(part(a, b, 16)) << 16 } else { 0 }
        });
    }
    let greater = |a: f64, b: f64| if a > b || (a == b && a.is_sign_positive()) { a } else { b };
    for (brain, scalar, pair) in [(false, "f16", "f16x2"), (true, "bf16", "bf16x2")] {
        halves(&format!("add.rn.{scalar} %h4, %h0, %h1;"), false, brain, |a, b| a + b);
        halves(&format!("sub.rn.{pair} %r4, %r0, %r1;"), true, brain, |a, b| a - b);
        halves(&format!("mul.rn.{pair} %r4, %r0, %r1;"), true, brain, |a, b| a * b);
        halves(&format!("max.NaN.{pair} %r4, %r0, %r1;"), true, brain, move |a, b| {
            if a.is_nan() || b.is_nan() { f64::NAN } else { greater(a, b) }
        });
        halves(&format!("min.{scalar} %h4, %h0, %h1;"), false, brain, move |a, b| {
            if a.is_nan() {
                b
            } else if b.is_nan() {
                a
            } else {
                -greater(-a, -b)
            }
        });
        halves(&format!("neg.{pair} %r4, %r0;"), true, brain, |a, _| -a);
    }
    // Mixed precision: the narrow source is widened, and the sum is an f32.
    let same = |found: u64, want: u64| {
        found == want || (f32::from_bits(found as u32).is_nan() && f32::from_bits(want as u32).is_nan())
    };
    check("add.rn.f32.f16 %r4, %h0, %r1;", same, |[a, b, ..]| {
        (f16::from_bits(a as u16).to_f32() + f32::from_bits(b as u32)).to_bits().into()
    });
    check("add.rn.f32.bf16 %r4, %h0, %r1;", same, |[a, b, ..]| {
        (bf16::from_bits(a as u16).to_f32() + f32::from_bits(b as u32)).to_bits().into()
    });
    exact("fma.rn.f16 %h4, 0x3c01, 0x3c01, %h0;", |[a, ..]| {
        // 1.0009765625² has 21 digits, which f64 adds to any f16 exactly (f16 has 2^−24 at least, and 2^16 at most).
        let one = f16::from_bits(0x3c01).to_f64();
        let sum = f16::from_f64(one * one + f16::from_bits(a as u16).to_f64());
        if sum.is_nan() { 0x7fff } else { sum.to_bits().into() }
    });
}

#[test]
fn conversions_cut_extend_and_round() {
    exact("cvt.s64.s8 %d4, %r0;", |[a, ..]| i64::from(a as i8) as u64);
    exact("cvt.s32.s16 %r4, %h0;", |[a, ..]| (i32::from(a as i16) as u32).into());
    exact("cvt.u32.s8 %r4, %r0;", |[a, ..]| (i32::from(a as i8) as u32).into());
    exact("cvt.s8.s32 %r4, %r0;", |[a, ..]| (i32::from(a as i8) as u32).into());
    exact("cvt.sat.u8.s32 %r4, %r0;", |[a, ..]| (a as i32).clamp(0, 255) as u64);
    exact("cvt.rzi.s32.f32 %r4, %r0;", |[a, ..]| (f32::from_bits(a as u32) as i32 as u32).into());
    exact("cvt.rni.u64.f64 %d4, %d0;", |[a, ..]| f64::from_bits(a).round_ties_even() as u64);
    exact("cvt.rn.f32.s64 %r4, %d0;", |[a, ..]| (a as i64 as f32).to_bits().into());
    exact("cvt.rn.f64.u32 %d4, %r0;", |[a, ..]| f64::from(a as u32).to_bits());
    exact("cvt.rn.f16.f32 %h4, %r0;", |[a, ..]| {
        let value = f32::from_bits(a as u32);
        if value.is_nan() { 0x7fff } else { f16::from_f32(value).to_bits().into() }
    });
    exact("cvt.rn.bf16x2.f32 %r4, %r0, %r1;", |[a, b, ..]| {
        let part = |bits: u64| {
            let value = f32::from_bits(bits as u32);
            if value.is_nan() { 0x7fff } else { u64::from(bf16::from_f32(value).to_bits()) }
        };
        part(a) << 16 | part(b)
    });
    exact("cvt.rn.f32.f64 %r4, %d0;", |[a, ..]| {
        let value = f64::from_bits(a) as f32;
        if value.is_nan() { 0x7fff_ffff } else { value.to_bits().into() }
    });
    exact("cvt.rmi.f32.f32 %r4, %r0;", |[a, ..]| {
        let value = f32::from_bits(a as u32).floor();
        if value.is_nan() { 0x7fff_ffff } else { value.to_bits().into() }
    });
    // 8-bit floats: to f16x2 and back is the identity, but for what has no number.
    exact("cvt.rn.f16x2.e4m3x2 %r4, %h0;\ncvt.rn.satfinite.e4m3x2.f16x2 %h4, %r4;\nmov.b32 %r4, 0;", |[a, ..]| {
        let part = |byte: u8| u64::from(if byte & 0x7f == 0x7f { 0x7f } else { byte });
        part(a as u8) | part((a >> 8) as u8) << 8
    });
    exact("cvt.rn.satfinite.e5m2x2.f32 %h4, %r0, %r1;", |[a, b, ..]| {
        // e5m2 is the upper half of an f16, which is rounded to by way of that only where nothing is lost: search instead.
        let part = |bits: u64| {
            let value = f64::from(f32::from_bits(bits as u32));
            let number = |byte: u8| f16::from_bits(u16::from(byte) << 8).to_f64();
            let sign = if value.is_sign_negative() { 0x80u8 } else { 0 };
            if value.is_nan() {
                0x7f
            } else {
                let distance = |byte: &u8| (number(*byte) - value.abs().min(57344.0)).abs();
                let best =
                    (0..0x7c).min_by(|x, y| distance(x).total_cmp(&distance(y)).then((x & 1).cmp(&(y & 1)))).unwrap();
                u64::from(best | sign)
            }
        };
        part(a) << 8 | part(b)
    });
}

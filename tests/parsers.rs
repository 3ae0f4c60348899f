//! Fuzzing of what reads texts from outside: no text makes a parser panic, or keeps it busy for long.
//!
//! Texts are good ones with bytes changed, pieces left out, doubled, or taken from another parser's; each is made of
//! one number. A parser is one row of [`PARSERS`]. By default each is tried for a second; `TUTTI_FUZZ_SECONDS=60`, as
//! `./test` sets it, for a minute. Coverage-guided fuzzers need a nightly compiler; this needs none.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime};

use tutti::plan::text;
use tutti::topology::formats::{matrix, xml};

/// A parser, and good texts for it.
struct Parser {
    name: &'static str,
    parse: fn(&str),
    texts: &'static [&'static str],
}

const PARSERS: &[Parser] = &[
    Parser {
        name: "topology XML",
        parse: |text| drop(xml::read("fuzzed", text)),
        texts: &[
            r#"<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:03:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:06:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="70" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="2" tclass="0x030200"/>
          <nvlink target="0000:1c:00.0" count="4" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:07:00.0" class="0x030200" link_speed="" link_width="0">
        <gpu dev="1" sm="70" rank="1" gdr="1"><nvlink target="0000:06:00.0" count="2" tclass="0x030200"/></gpu>
      </pci>
    </pci>
    <nic><net name="eth0" dev="0" speed="100000" port="0" guid="0x0"/></nic>
  </cpu>
  <cpu numaid="1"><pci busid="0000:00:16.0"/></cpu>
</system>"#,
            "<!DOCTYPE s [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><system version='1'><cpu numaid='&b;'/></system>",
        ],
    },
    Parser {
        name: "matrix",
        parse: |text| drop(matrix::read("fuzzed", text)),
        texts: &[
            "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV2\tPIX\t0-31\t0\nGPU1\tNV2\t X \tPXB\t0-31\t0\n\
             NIC0\tPIX\tPXB\t X \t\t\n",
            "GPU0 GPU1 GPU2\nGPU0 X SYS NODE\nGPU1 SYS X PHB\nGPU2 NODE PHB X\n",
        ],
    },
    Parser {
        name: "plan text",
        parse: |text| drop(text::parse(text)),
        texts: &["plan all_reduce ring ranks 2 count 256 element_bytes 4
connection c0 r0 -> r1 slots 2 slot_bytes 512
connection c1 r1 -> r0 slots 2 slot_bytes 512
rank r0 scratch_bytes 0
  program p0
    loop iterations 1 chunk_bytes 32768
      s0 512: c0 <- scale input@512
      s1 512: output@0, c0 <- finish reduce(c1, scale input@0)
      s2 512: output@512 <- c1
rank r1 scratch_bytes 0
"],
    },
];

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// A text of one parser's, changed; a number always gives the same one.
fn text_of(parser: &Parser, seed: u64) -> String {
    let mut random = Random(seed);
    let mut bytes = parser.texts[random.below(parser.texts.len())].as_bytes().to_vec();
    for _ in 0..=random.below(12) {
        let place = random.below(bytes.len());
        let end = (place + random.below(64)).min(bytes.len());
        match random.below(7) {
            0 if !bytes.is_empty() => bytes[place] = random.next() as u8,
            1 => drop(bytes.drain(place..end)),
            2 => bytes.insert(place, random.next() as u8),
            3 => {
                let piece = bytes[place..end].to_vec();
                let other = random.below(bytes.len() + 1);
                bytes.splice(other..other, piece);
            }
            // Long texts find what is not linear.
            4 if bytes.len() < 1 << 16 => bytes.extend_from_within(place..),
            5 => {
                let other = &PARSERS[random.below(PARSERS.len())];
                let piece = other.texts[random.below(other.texts.len())].as_bytes();
                let start = random.below(piece.len());
                bytes.splice(place..place, piece[start..].iter().copied());
            }
            _ => {
                let number = [u64::MAX, u64::from(u32::MAX), 1 << 31, 0, 1][random.below(5)].to_string();
                bytes.splice(place..end, number.into_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn no_text_makes_a_parser_panic_or_keeps_it_busy() {
    let number = |name: &str| env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let replayed = number("TUTTI_SEED");
    let seconds = number("TUTTI_FUZZ_SECONDS").unwrap_or(1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    for parser in PARSERS {
        let start = Instant::now();
        let mut seed = replayed.unwrap_or(now);
        let mut texts = 0_u64;
        while texts == 0 || replayed.is_none() && start.elapsed() < Duration::from_secs(seconds) {
            let text = text_of(parser, seed);
            let begin = Instant::now();
            let parsed = catch_unwind(AssertUnwindSafe(|| (parser.parse)(&text)));
            let replay = format!("replay: TUTTI_SEED={seed} cargo test --test parsers; {} of {text:?}", parser.name);
            assert!(parsed.is_ok(), "a parser panicked; {replay}");
            assert!(begin.elapsed() < Duration::from_secs(5), "a parser was busy for {:?}; {replay}", begin.elapsed());
            seed = seed.wrapping_add(1);
            texts += 1;
        }
        println!("{}: {texts} texts in {:.1} s", parser.name, start.elapsed().as_secs_f64());
    }
}

//! How a slot says that its data is there, between two pinned CPU threads: a flag in its first line, which also holds a
//! fingerprint and the first data, as tutti's slots do; or a flag in every line, as low-latency formats on GPUs do.
//!
//! Each message goes over and one comes back; the figure is half of that. Medians of rounds in turn.
//!
//! ```console
//! $ cargo bench --bench slot_formats
//! ```

use std::array;
use std::hint::spin_loop;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread;
use std::time::Instant;

use core_affinity::CoreId;

/// Words of 8 bytes in a line.
const LINE_WORDS: usize = 8;
/// Words of a fingerprint.
const FINGERPRINT_WORDS: usize = 5;
/// The slot's words: as many lines as the longest message takes.
const SLOT_WORDS: usize = 5 * 64;
const SLOTS: usize = 4;
const MESSAGES: u64 = 20_000;
const ROUNDS: usize = 11;

/// A slot; in whichever format, only the flags order anything.
#[repr(align(64))]
struct Slot([AtomicU64; SLOT_WORDS]);

#[derive(Clone, Copy, PartialEq)]
enum Format {
    /// Fingerprint, flag, data.
    OneFlag,
    /// Fingerprint, two words of data and a flag; then lines of seven words and a flag.
    EveryLine,
}

impl Format {
    /// Where a word of data is.
    fn place(self, word: usize) -> usize {
        let at = FINGERPRINT_WORDS + word;
        match self {
            Format::OneFlag => at + 1,
            Format::EveryLine => at + at / (LINE_WORDS - 1),
        }
    }

    /// The flags of a message, each with the number of words of data that come before it.
    fn flags(self, words: usize) -> impl Iterator<Item = (usize, usize)> {
        let lines = match self {
            Format::OneFlag => 1,
            Format::EveryLine => (FINGERPRINT_WORDS + words).div_ceil(LINE_WORDS - 1),
        };
        (0..lines).map(move |line| match self {
            Format::OneFlag => (FINGERPRINT_WORDS, words),
            Format::EveryLine => {
                let before = (line + 1) * (LINE_WORDS - 1) - FINGERPRINT_WORDS;
                (line * LINE_WORDS + LINE_WORDS - 1, before.min(words))
            }
        })
    }

    fn send(self, slot: &Slot, number: u64, data: &[u64]) {
        slot.0[..FINGERPRINT_WORDS].iter().for_each(|word| word.store(7, Relaxed));
        let mut done = 0;
        for (flag, until) in self.flags(data.len()) {
            let first = self.place(done);
            for (word, value) in slot.0[first..].iter().zip(&data[done..until]) {
                word.store(*value, Relaxed);
            }
            slot.0[flag].store(number, Release);
            done = until;
        }
    }

    fn receive(self, slot: &Slot, number: u64, sum: &mut [u64]) {
        let (mut done, words) = (0, sum.len());
        for (flag, until) in self.flags(words) {
            while slot.0[flag].load(Acquire) != number {
                spin_loop();
            }
            if done == 0 {
                assert!(slot.0[..FINGERPRINT_WORDS].iter().all(|word| word.load(Relaxed) == 7));
            }
            let first = self.place(done);
            for (sum, word) in sum[done..until].iter_mut().zip(&slot.0[first..]) {
                *sum = sum.wrapping_add(word.load(Relaxed));
            }
            done = until;
        }
    }
}

/// Nanoseconds that one message of so many words takes.
fn measure(format: Format, words: usize, processors: &[CoreId]) -> f64 {
    let slots: [Vec<Slot>; 2] =
        array::from_fn(|_| (0..SLOTS).map(|_| Slot(array::from_fn(|_| AtomicU64::new(0)))).collect());
    let run = |side: usize| {
        if let Some(processor) = processors.get(side) {
            core_affinity::set_for_current(*processor);
        }
        let (data, mut sum) = (vec![1; words], vec![0; words]);
        let mut begun = Instant::now();
        for number in 1..=MESSAGES {
            // The first tenth warms up.
            if number == MESSAGES / 10 {
                begun = Instant::now();
            }
            let slot = number as usize % SLOTS;
            if side == 0 {
                format.send(&slots[0][slot], number, &data);
                format.receive(&slots[1][slot], number, &mut sum);
            } else {
                format.receive(&slots[0][slot], number, &mut sum);
                format.send(&slots[1][slot], number, &data);
            }
        }
        assert!(sum.iter().all(|sum| *sum == MESSAGES));
        begun.elapsed().as_nanos() as f64 / (MESSAGES as f64 * 0.9) / 2.0
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        let nanoseconds = run(0);
        other.join().expect("the other side does not panic");
        nanoseconds
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    // Asked here, since a thread that is pinned sees only its own.
    let processors = core_affinity::get_core_ids().unwrap_or_default();
    println!("one message between two threads; medians of {rounds} rounds, in turn");
    println!("{:>10} {:>15} {:>20} {:>8}", "size (B)", "one flag (ns)", "a flag a line (ns)", "ratio");
    for bytes in [8, 16, 64, 128, 256, 512, 1024, 2048] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            times[0].push(measure(Format::OneFlag, bytes / 8, &processors));
            times[1].push(measure(Format::EveryLine, bytes / 8, &processors));
        }
        let [one, every] = times.map(median);
        println!("{bytes:>10} {one:>15.0} {every:>20.0} {:>8.2}", every / one);
    }
}

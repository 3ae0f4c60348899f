//! A plan's digest: one number that differs when plans differ.
//!
//! Ranks compare it before they use each other's data, so it must not depend on the platform, on the order of anything but
//! the plan itself, or on a hasher that the standard library may change. It guards against mistakes, not against malice.

use super::{Algorithm, Buffer, Collective, Operand, Plan};

impl Plan {
    /// A digest over the whole plan: equal plans have the same one on every platform and in every build.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        let (collective, root) = match self.collective {
            Collective::AllReduce => (0, 0),
            Collective::ReduceScatter => (1, 0),
            Collective::AllGather => (2, 0),
            Collective::Broadcast { root } => (3, root.0),
            Collective::Reduce { root } => (4, root.0),
            Collective::Barrier => (5, 0),
        };
        let algorithm = match self.algorithm {
            Algorithm::Ring => 0,
            Algorithm::Tree => 1,
            Algorithm::Chain => 2,
            Algorithm::OneShot => 3,
            Algorithm::Direct => 4,
            Algorithm::Dissemination => 5,
            Algorithm::HalvingDoubling => 7,
            Algorithm::DoubleTree => 8,
            Algorithm::Bruck => 9,
            Algorithm::Nvls => 6,
        };
        digest.pair(collective, root);
        digest.pair(algorithm, self.element_bytes);
        digest.word(self.count);
        // Every list is preceded by its length, so that no two plans are one sequence of words.
        digest.length(self.orders.len());
        for order in &self.orders {
            digest.length(order.len());
            order.iter().for_each(|rank| digest.word(u64::from(rank.0)));
        }
        digest.length(self.connections.len());
        for connection in &self.connections {
            digest.pair(connection.from.0, connection.to.0);
            digest.pair(connection.slots, connection.slot_bytes);
        }
        digest.length(self.ranks.len());
        for rank in &self.ranks {
            digest.word(rank.scratch_bytes);
            digest.length(rank.programs.len());
            for program in &rank.programs {
                digest.length(program.loops.len());
                for each in &program.loops {
                    digest.word(each.iterations);
                    digest.word(u64::from(each.chunk_bytes));
                    digest.length(each.steps.len());
                    for step in &each.steps {
                        digest.word(step.bytes);
                        digest.length(step.sources.len());
                        for source in &step.sources {
                            digest.operand(&source.operand, source.scale);
                        }
                        digest.length(step.destinations.len());
                        for destination in &step.destinations {
                            digest.operand(destination, false);
                        }
                        digest.pair(u32::from(step.finish), u32::from(step.after.is_some()));
                        if let Some(after) = step.after {
                            digest.pair(after.program.0, after.step.0);
                        }
                    }
                }
            }
        }
        digest.finish()
    }
}

/// FNV-1a's scheme on words of 64 bits in place of bytes: mix in, multiply. A multiplication carries only upwards, so
/// each word is followed by a shift that brings the high half down.
struct Digest(u64);

impl Digest {
    fn new() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325) // FNV's offset basis
    }

    fn word(&mut self, word: u64) {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 / φ, odd: every bit of a word spreads over the upper ones
        let mixed = (self.0 ^ word).wrapping_mul(GOLDEN);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn pair(&mut self, low: u32, high: u32) {
        self.word(u64::from(low) | u64::from(high) << 32);
    }

    fn length(&mut self, length: usize) {
        self.word(length as u64);
    }

    fn operand(&mut self, operand: &Operand, scale: bool) {
        let number = |buffer: Buffer| match buffer {
            Buffer::Input => 0,
            Buffer::Output => 1,
            Buffer::Scratch => 2,
        };
        // One word says what kind of operand it is and which one, a second one where it begins.
        let scale = u32::from(scale) << 31;
        match *operand {
            Operand::Local { buffer, offset } => {
                self.pair(scale | number(buffer), 0);
                self.word(offset);
            }
            Operand::Slot(connection) => self.pair(scale | 1 << 8, connection.0),
            Operand::Window { rank, buffer, offset } => {
                self.pair(scale | 2 << 8 | number(buffer), rank.0);
                self.word(offset);
            }
            Operand::Multicast { buffer, offset } => {
                self.pair(scale | 3 << 8 | number(buffer), 0);
                self.word(offset);
            }
        }
    }

    fn finish(mut self) -> u64 {
        self.word(0);
        self.0
    }
}

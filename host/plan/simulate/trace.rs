//! When each step ran, as the trace that Chrome's and Perfetto's viewers read (the "Trace Event Format" of Google's Catapult).

use std::fmt::Write;

use super::{PICOSECONDS, Simulated};
use crate::plan::Plan;

impl Simulated {
    /// The trace as JSON: a process for each rank, a thread for each program, and of each step the time in software and the time in
    /// which its bytes move. None where there were more steps than were to be kept.
    pub fn trace(&self, plan: &Plan) -> Option<String> {
        self.critical_path.as_ref()?;
        let places: Vec<(usize, usize)> = plan
            .ranks
            .iter()
            .enumerate()
            .flat_map(|(rank, own)| (0..own.programs.len()).map(move |program| (rank, program)))
            .collect();
        let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        for rank in 0..plan.rank_count() {
            let comma = if rank == 0 { "" } else { "," };
            let _ = write!(
                text,
                "{comma}\n{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{rank},\"args\":{{\"name\":\"rank {rank}\"}}}}"
            );
        }
        for record in &self.records {
            let (rank, program) = places[record.program as usize];
            let us = |picoseconds: u64| picoseconds as f64 / PICOSECONDS;
            for (name, from, to) in [("wait", record.ready, record.moved), ("move", record.moved, record.done)] {
                if from < to {
                    let (start, length) = (us(from), us(to - from));
                    let _ = write!(
                        text,
                        ",\n{{\"ph\":\"X\",\"name\":\"s{step} {name}\",\"pid\":{rank},\"tid\":{program},\"ts\":{start:.3},\"dur\":{length:.3}}}",
                        step = record.step,
                    );
                }
            }
        }
        text.push_str("\n]}\n");
        Some(text)
    }
}

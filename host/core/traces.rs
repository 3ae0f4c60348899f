//! When steps ran: kept while a trace is under way, within the communicator's budget.

use std::time::{Duration, Instant};

use tutti_kernels::layout::{StepTime, Trace};

use super::TimedStep;

/// Where step times go.
pub(super) struct Traces {
    capacity: usize,
    entries: Vec<Vec<StepTime>>,
    headers: Vec<Trace>,
    clock: Clock,
    /// The same moment by the system's clock and by the processor's.
    begun: (Instant, u64),
}

/// What step times are counted in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    /// The processor's ticks, as the kernels read them.
    Processor,
    /// Nanoseconds since the trace was begun.
    SinceBegun,
}

// SAFETY: the addresses in `headers` point into `entries`, which moves with it.
unsafe impl Send for Traces {}

impl Traces {
    /// None yet; of each program so many are kept.
    pub(super) fn new(capacity: usize, clock: Clock) -> Traces {
        let begun = (Instant::now(), tutti_kernels::target::timestamp());
        Traces { capacity, entries: Vec::new(), headers: Vec::new(), clock, begun }
    }

    /// Since when.
    pub(super) fn begun(&self) -> Instant {
        self.begun.0
    }

    /// Keeps when a step of `program` ran, if there is room.
    pub(super) fn keep(&mut self, program: usize, time: StepTime) {
        let header = &mut self.headers[program];
        if header.count < header.capacity {
            self.entries[program][header.count as usize] = time;
        }
        header.count += 1;
    }

    /// Room for the steps of one more call, given how many each program has, within `room_bytes` more than there are; less
    /// where the memory does not reach. Steps beyond it are counted and not kept.
    pub(super) fn reserve(&mut self, step_counts: impl Iterator<Item = u64>, mut room_bytes: u64) -> *mut Trace {
        const ENTRY_BYTES: u64 = size_of::<StepTime>() as u64;
        for (program, steps) in step_counts.enumerate() {
            if self.headers.len() == program {
                self.entries.push(Vec::new());
                self.headers.push(Trace { entries: std::ptr::null_mut(), capacity: 0, count: 0 });
            }
            let (entries, header) = (&mut self.entries[program], &mut self.headers[program]);
            let there = entries.len() as u64;
            let wanted = header.count.saturating_add(steps);
            if wanted > there {
                // Twice as many as before, so that a long row of calls does not copy them each time.
                let most = (self.capacity as u64).min(there.saturating_add(room_bytes / ENTRY_BYTES));
                let more = wanted.max(2 * there).min(most).saturating_sub(there);
                if more > 0 && entries.try_reserve_exact(more as usize).is_ok() {
                    entries.resize((there + more) as usize, StepTime::default());
                    room_bytes -= more * ENTRY_BYTES;
                }
            }
            header.entries = entries.as_mut_ptr();
            header.capacity = entries.len() as u64;
        }
        self.headers.as_mut_ptr()
    }

    /// Gives back the room in which there are no times.
    pub(super) fn trim(&mut self) {
        for (entries, header) in self.entries.iter_mut().zip(&mut self.headers) {
            entries.truncate(header.count.min(header.capacity) as usize);
            entries.shrink_to_fit();
            header.entries = entries.as_mut_ptr();
            header.capacity = entries.len() as u64;
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entries| size_of_val(&entries[..]) as u64).sum()
    }

    /// The times, by the system's clock: the kernels' is compared with it at both ends.
    pub(super) fn finish(self) -> Vec<TimedStep> {
        let (begun, begun_ticks) = self.begun;
        let elapsed = begun.elapsed();
        let elapsed_ticks = tutti_kernels::target::timestamp().saturating_sub(begun_ticks).max(1);
        let since = |ticks: u64| {
            if self.clock == Clock::SinceBegun {
                return Duration::from_nanos(ticks);
            }
            elapsed.mul_f64((ticks.saturating_sub(begun_ticks) as f64 / elapsed_ticks as f64).clamp(0.0, 1.0))
        };
        let mut steps: Vec<_> = self
            .headers
            .iter()
            .zip(&self.entries)
            .flat_map(|(header, entries)| &entries[..header.count.min(header.capacity) as usize])
            .map(|time| TimedStep {
                program: time.program,
                step: time.step,
                iteration: time.iteration,
                start: since(time.start),
                end: since(time.end),
            })
            .collect();
        steps.sort_by_key(|step| step.start);
        steps
    }
}

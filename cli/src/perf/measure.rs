//! One row of the table: a collective at one size, timed and checked, out of place and in place.
//!
//! Timed calls run back to back between barriers; on a device they are queued, and waited for once. The check is a call of its own
//! with fresh inputs, after which every
//! element of every rank is compared with what it must be, the input with what it was, and the guard bands of all buffers
//! with what they were.

use super::place::Buffer;
use crate::failure::Failure;
use crate::guarded::Guarded;
use crate::inputs::{Inputs, Number, scale_of};
use crate::names::counts_blocks;
use crate::ranks::run_ranks;
use crate::table::{Half, Spread};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tutti::cuda::{Graph, Handle, Stream};
use tutti::plan::{Collective, Rank};
use tutti::{CallBuilder, Communicator, Reduction};

/// How rows are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) iterations: u64,
    pub(crate) warmup_iterations: u64,
    pub(crate) checks: u64,
    /// Elements by which buffers are moved off their alignment.
    pub(crate) unalign: usize,
    pub(crate) average: Average,
    /// Whether each iteration is timed for itself, and how many of the first ones are left out.
    pub(crate) per_iteration_skip: Option<usize>,
    /// How often the iterations are launched as a graph that has captured them; 0 captures none.
    pub(crate) graph_launches: u64,
}

/// Which time is shown, out of those of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Average {
    Rank0,
    Mean,
    Min,
    Max,
}

impl Average {
    fn of(self, times: &[f64]) -> f64 {
        match self {
            Average::Rank0 => times[0],
            Average::Mean => times.iter().sum::<f64>() / times.len() as f64,
            Average::Min => times.iter().copied().fold(f64::INFINITY, f64::min),
            Average::Max => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// What a row calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) reduction: Option<Reduction>,
    pub(crate) rank_count: usize,
    /// As the call counts: elements of one block for reduce-scatter and all-gather.
    pub(crate) count: usize,
}

impl Case {
    /// The row for a size: the largest count whose larger buffer has at most this many bytes.
    pub(crate) fn of_size(
        collective: Collective,
        reduction: Option<Reduction>,
        rank_count: usize,
        size_bytes: u64,
        element_bytes: usize,
    ) -> Case {
        let elements = size_bytes / element_bytes as u64;
        let count = match collective {
            Collective::Barrier => 0,
            _ if counts_blocks(collective) => elements / rank_count as u64,
            _ => elements,
        };
        Case { collective, reduction, rank_count, count: usize::try_from(count).unwrap_or(usize::MAX) }
    }

    /// Elements of the larger of the two buffers: the size that the table shows.
    pub(crate) fn elements(&self) -> usize {
        if counts_blocks(self.collective) { self.count.saturating_mul(self.rank_count) } else { self.count }
    }

    fn send_elements(&self) -> usize {
        if self.collective == Collective::ReduceScatter { self.elements() } else { self.count }
    }

    fn receive_elements(&self) -> usize {
        if self.collective == Collective::AllGather { self.elements() } else { self.count }
    }

    /// Bytes of buffers that one rank holds at most.
    pub(crate) fn rank_bytes<T: Number>(&self, unalign: usize) -> usize {
        let bytes = |count| Guarded::<T>::bytes(count, unalign);
        bytes(self.send_elements()).saturating_add(bytes(self.receive_elements()))
    }

    /// Bandwidths in 10^9 bytes per second, as nccl-tests reckons them: of the algorithm, and of the bus.
    fn bandwidths(&self, element_bytes: usize, seconds: f64) -> (f64, f64) {
        let ranks = self.rank_count as f64;
        let bytes = self.elements() as f64 * element_bytes as f64;
        let algorithm = if bytes > 0.0 { bytes / 1e9 / seconds } else { 0.0 };
        let factor = match self.collective {
            Collective::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Collective::ReduceScatter | Collective::AllGather => (ranks - 1.0) / ranks,
            _ => 1.0,
        };
        (algorithm, algorithm * factor)
    }
}

/// What was measured in one half of a row.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) half: Half,
    /// Times of single iterations, if they were taken: the slowest rank's.
    pub(crate) iteration_times_us: Vec<f64>,
    /// Guard elements that were overwritten, on all ranks.
    pub(crate) overwritten: u64,
}

/// What one rank saw.
struct OfRank {
    seconds: f64,
    iteration_seconds: Vec<f64>,
    wrong: u64,
    overwritten: u64,
}

/// Measures and checks one half of a row.
pub(crate) fn measure<T: Number>(
    communicators: &[Communicator],
    cores: &[Option<usize>],
    case: &Case,
    inputs: &Inputs<T>,
    settings: &Settings,
    in_place: bool,
) -> Result<Measured, Failure> {
    let arrivals = AtomicU64::new(0);
    let run = Run { case, inputs, settings, in_place, arrivals: &arrivals };
    // What all ranks need is there before the first one calls: a driver may let an allocation wait until the device is idle, and
    // the kernel that it waited for would wait for this rank.
    let seats = run_ranks(communicators, cores, |communicator| run.seat(communicator).map(Mutex::new))?;
    let ranks = run_ranks(communicators, cores, |communicator| {
        let mut seat = seats[communicator.rank()].lock().unwrap_or_else(PoisonError::into_inner);
        match (case.collective, in_place) {
            (Collective::Barrier, _) => run.barrier(communicator, &mut seat),
            (_, false) => run.out_of_place(communicator, &mut seat),
            (_, true) => run.in_place(communicator, &mut seat),
        }
    })?;
    let seconds = settings.average.of(&ranks.iter().map(|rank| rank.seconds).collect::<Vec<_>>());
    let (algorithm_gb_s, bus_gb_s) = case.bandwidths(size_of::<T>(), seconds);
    let iteration_times_us: Vec<f64> = (0..ranks[0].iteration_seconds.len())
        .map(|iteration| ranks.iter().map(|rank| rank.iteration_seconds[iteration]).fold(0.0, f64::max) * 1e6)
        .collect();
    Ok(Measured {
        half: Half {
            time_us: seconds * 1e6,
            algorithm_gb_s,
            bus_gb_s,
            wrong: (settings.checks > 0).then(|| ranks.iter().map(|rank| rank.wrong).sum()),
            per_iteration: settings.per_iteration_skip.map(|skip| Spread::of(&iteration_times_us[skip..])),
        },
        iteration_times_us,
        overwritten: ranks.iter().map(|rank| rank.overwritten).sum(),
    })
}

struct Run<'a, T> {
    case: &'a Case,
    inputs: &'a Inputs<T>,
    settings: &'a Settings,
    in_place: bool,
    /// How often a rank has come to a checked barrier.
    arrivals: &'a AtomicU64,
}

/// What a rank brings along.
struct Seat<T: Number> {
    queue: Queue,
    /// Empty where calls are in place.
    input: Buffer<T>,
    output: Buffer<T>,
}

/// Where a rank's calls are queued, if a device runs it. What is queued is done before the buffers go, whatever else happened.
struct Queue(Option<Stream>);

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(stream) = &self.0 {
            // If that fails nothing runs there any more.
            let _ = stream.synchronize();
        }
    }
}

/// Makes the call of a case, by what makes calls: at once, or on a stream.
macro_rules! make_call {
    ($case:expr, $reduction:expr, $by:expr, ($input:expr, $output:expr)) => {
        match $case.collective {
            Collective::AllReduce => $by.all_reduce($input, $output, $reduction),
            Collective::ReduceScatter => $by.reduce_scatter($input, $output, $reduction),
            Collective::AllGather => $by.all_gather($input, $output),
            Collective::Broadcast { root } => $by.broadcast($input, $output, root.index()),
            Collective::Reduce { root } => $by.reduce($input, $output, $reduction, root.index()),
            Collective::Barrier => $by.barrier(),
        }
    };
    ($case:expr, $reduction:expr, $by:expr, ($buffer:expr)) => {
        match $case.collective {
            Collective::AllReduce => $by.all_reduce_in_place($buffer, $reduction),
            Collective::ReduceScatter => $by.reduce_scatter_in_place($buffer, $reduction),
            Collective::AllGather => $by.all_gather_in_place($buffer),
            Collective::Broadcast { root } => $by.broadcast_in_place($buffer, root.index()),
            Collective::Reduce { root } => $by.reduce_in_place($buffer, $reduction, root.index()),
            Collective::Barrier => $by.barrier(),
        }
    };
}

impl<T: Number> Run<'_, T> {
    /// All that a rank allocates, filled as its first calls take it.
    fn seat(&self, communicator: &Communicator) -> Result<Seat<T>, Failure> {
        let (rank, unalign) = (communicator.rank(), self.settings.unalign);
        let (input, output) = match self.in_place {
            true => (0, self.case.elements()),
            false => (self.case.send_elements(), self.case.receive_elements()),
        };
        let mut seat = Seat {
            queue: Queue(communicator.device().map(|device| device.stream()).transpose()?),
            input: Buffer::new(communicator, input, unalign)?,
            output: Buffer::new(communicator, output, unalign)?,
        };
        self.inputs.fill(rank, 0, &mut seat.input);
        if self.in_place {
            self.inputs.fill(rank, 0, &mut seat.output);
        }
        seat.input.upload()?;
        seat.output.upload()?;
        Ok(seat)
    }

    fn out_of_place(&self, communicator: &Communicator, seat: &mut Seat<T>) -> Result<OfRank, Failure> {
        let rank = communicator.rank();
        let mut result = self.time(communicator, seat)?;
        result.overwritten = seat.count_overwritten()?;
        for check in 0..self.settings.checks {
            let first = first_of_check(check);
            self.inputs.fill(rank, first, &mut seat.input);
            self.inputs.fill(rank, first + STALE, &mut seat.output);
            self.call_once(communicator, seat)?;
            result.overwritten += seat.count_overwritten()?;
            result.wrong += self.count_wrong(rank, first, &seat.output);
            result.wrong += self.inputs.count_unlike_input(rank, first, &seat.input);
        }
        Ok(result)
    }

    fn in_place(&self, communicator: &Communicator, seat: &mut Seat<T>) -> Result<OfRank, Failure> {
        let rank = communicator.rank();
        let mut result = self.time(communicator, seat)?;
        result.overwritten = seat.count_overwritten()?;
        let own_block = rank * self.case.count..(rank + 1) * self.case.count;
        for check in 0..self.settings.checks {
            let first = first_of_check(check);
            let buffer = &mut seat.output;
            match self.case.collective {
                Collective::AllGather => {
                    self.inputs.fill(rank, first + STALE, buffer);
                    self.inputs.fill(rank, first, &mut buffer[own_block.clone()]);
                }
                Collective::Broadcast { root } if root.index() != rank => {
                    self.inputs.fill(rank, first + STALE, buffer);
                }
                _ => self.inputs.fill(rank, first, buffer),
            }
            self.call_once(communicator, seat)?;
            result.overwritten += seat.count_overwritten()?;
            let buffer = &seat.output;
            result.wrong += match self.case.collective {
                Collective::ReduceScatter => self.count_wrong(rank, first, &buffer[own_block.clone()]),
                // It stays as it was.
                Collective::Reduce { root } if root.index() != rank => {
                    self.inputs.count_unlike_input(rank, first, buffer)
                }
                _ => self.count_wrong(rank, first, buffer),
            };
        }
        Ok(result)
    }

    fn barrier(&self, communicator: &Communicator, seat: &mut Seat<T>) -> Result<OfRank, Failure> {
        let mut result = self.time(communicator, seat)?;
        for check in 0..self.settings.checks {
            self.arrivals.fetch_add(1, Ordering::Relaxed);
            self.call_once(communicator, seat)?;
            let come = self.arrivals.load(Ordering::Relaxed);
            result.wrong += u64::from(come < (check + 1) * self.case.rank_count as u64);
        }
        Ok(result)
    }

    /// The mean time of a call, after some calls that warm up.
    fn time(&self, communicator: &Communicator, seat: &mut Seat<T>) -> Result<OfRank, Failure> {
        let Settings { iterations, warmup_iterations, graph_launches, .. } = *self.settings;
        let warm_up = self.calls(communicator, seat, warmup_iterations)?;
        seat.wait(communicator, warm_up)?;
        let graph = if graph_launches > 0 { self.capture(communicator, seat, iterations)? } else { None };
        // The first one lets threads that are still being started come; the second one lets them go together.
        seat.meet(communicator)?;
        seat.meet(communicator)?;
        let mut iteration_seconds = Vec::new();
        let start = Instant::now();
        let launches = match &graph {
            Some(graph) => {
                (0..graph_launches).try_for_each(|_| seat.launch(graph))?;
                seat.wait(communicator, None)?;
                graph_launches
            }
            None if self.settings.per_iteration_skip.is_some() => {
                let mut last = start;
                for _ in 0..iterations {
                    let handle = self.call(communicator, seat)?;
                    seat.wait(communicator, handle)?;
                    let now = Instant::now();
                    iteration_seconds.push((now - last).as_secs_f64());
                    last = now;
                }
                1
            }
            None => {
                let handle = self.calls(communicator, seat, iterations)?;
                seat.wait(communicator, handle)?;
                1
            }
        };
        let seconds = start.elapsed().as_secs_f64() / (iterations * launches) as f64;
        // Nobody prepares the check, which takes memory bandwidth, while others are still being timed.
        seat.meet(communicator)?;
        Ok(OfRank { seconds, iteration_seconds, wrong: 0, overwritten: 0 })
    }

    /// One call with what was filled in here, in the way in which calls are timed; its result is on its rank's side when this
    /// returns, and has yet to be downloaded.
    fn call_once(&self, communicator: &Communicator, seat: &mut Seat<T>) -> Result<(), Failure> {
        seat.input.upload()?;
        seat.output.upload()?;
        let graph = if self.settings.graph_launches > 0 { self.capture(communicator, seat, 1)? } else { None };
        let handle = match &graph {
            Some(graph) => seat.launch(graph).map(|()| None)?,
            None => self.call(communicator, seat)?,
        };
        Ok(seat.wait(communicator, handle)?)
    }

    /// So many calls, back to back; what tells of the last one, if it is yet to be waited for.
    fn calls(&self, communicator: &Communicator, seat: &mut Seat<T>, count: u64) -> tutti::Result<Option<Handle>> {
        let mut last = None;
        for _ in 0..count {
            last = self.call(communicator, seat)?;
        }
        Ok(last)
    }

    /// So many calls as a graph, on a device.
    fn capture(&self, communicator: &Communicator, seat: &mut Seat<T>, count: u64) -> tutti::Result<Option<Graph>> {
        let Some(stream) = &seat.queue.0 else { return Ok(None) };
        stream.begin_capture()?;
        let captured = self.calls(communicator, seat, count);
        let graph = seat.queue.0.as_ref().map(Stream::end_capture).transpose();
        captured.and(graph)
    }

    fn call(&self, communicator: &Communicator, seat: &mut Seat<T>) -> tutti::Result<Option<Handle>> {
        let (reduction, call) = self.with_scale(communicator);
        let Seat { queue, input, output } = seat;
        match (&queue.0, input.on_device(), output.on_device(), self.in_place) {
            (Some(stream), Some(input), Some(mut output), false) => {
                make_call!(self.case, reduction, call.on(stream), (&input, &mut output)).map(Some)
            }
            (Some(stream), _, Some(mut buffer), true) => {
                make_call!(self.case, reduction, call.on(stream), (&mut buffer)).map(Some)
            }
            (_, _, _, false) => make_call!(self.case, reduction, call, (&input[..], &mut output[..])).map(|()| None),
            (_, _, _, true) => make_call!(self.case, reduction, call, (&mut output[..])).map(|()| None),
        }
    }

    /// The reduction, and a call with its scale if it has one.
    fn with_scale<'a>(&self, communicator: &'a Communicator) -> (Reduction, CallBuilder<'a>) {
        match self.case.reduction.unwrap_or(Reduction::Sum) {
            Reduction::ScaledSum => (Reduction::ScaledSum, communicator.call().scale(scale_of(T::DTYPE))),
            reduction => (reduction, communicator.call()),
        }
    }

    /// Wrong elements of a rank's result, where the inputs began at `first`.
    fn count_wrong(&self, rank: usize, first: usize, result: &[T]) -> u64 {
        match self.case.collective {
            Collective::AllReduce => self.inputs.count_unlike_reduced(first, result),
            Collective::ReduceScatter => self.inputs.count_unlike_reduced(first + rank * self.case.count, result),
            Collective::AllGather if self.case.count == 0 => 0,
            Collective::AllGather => {
                let blocks = result.chunks_exact(self.case.count).enumerate();
                blocks.map(|(from, block)| self.inputs.count_unlike_input(from, first, block)).sum()
            }
            Collective::Broadcast { root } => self.inputs.count_unlike_input(root.index(), first, result),
            Collective::Reduce { root: Rank(root) } if root as usize == rank => {
                self.inputs.count_unlike_reduced(first, result)
            }
            // Not written.
            Collective::Reduce { .. } => self.inputs.count_unlike_input(rank, first + STALE, result),
            Collective::Barrier => 0,
        }
    }
}

impl<T: Number> Seat<T> {
    fn launch(&self, graph: &Graph) -> tutti::Result<()> {
        self.queue.0.as_ref().map_or(Ok(()), |stream| graph.launch(stream))
    }

    /// Returns when all ranks have come. It is queued where calls are, so that a graph follows it.
    fn meet(&self, communicator: &Communicator) -> tutti::Result<()> {
        match &self.queue.0 {
            Some(stream) => self.wait(communicator, Some(communicator.on(stream).barrier()?)),
            None => communicator.barrier(),
        }
    }

    /// Waits for what is queued, if a device runs this rank: of the calls the last one tells, or of those of a graph the
    /// communicator.
    fn wait(&self, communicator: &Communicator, last: Option<Handle>) -> tutti::Result<()> {
        let Some(stream) = &self.queue.0 else { return Ok(()) };
        // The driver notices the end soonest; that it comes, the deadlines of the calls see to.
        let synchronized = stream.synchronize();
        match last {
            Some(handle) => handle.wait()?,
            None => communicator.check()?,
        }
        synchronized
    }

    /// Guard elements that have changed, as the buffers are now.
    fn count_overwritten(&mut self) -> Result<u64, Failure> {
        self.input.download()?;
        self.output.download()?;
        Ok(self.input.count_overwritten() + self.output.count_overwritten())
    }
}

/// How far from the inputs the values lie that an output holds before it is written.
const STALE: usize = 4099;

/// Every check begins elsewhere in the inputs, so that no result of an earlier one passes for a later one's.
fn first_of_check(check: u64) -> usize {
    1 + (check % 1000) as usize * 1013
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_of_the_larger_buffer_and_counts_are_not_rounded_to_more_than_an_element() {
        let case = |collective, size| Case::of_size(collective, None, 3, size, 4);
        let all_reduce = case(Collective::AllReduce, 23);
        assert_eq!((all_reduce.count, all_reduce.elements(), all_reduce.receive_elements()), (5, 5, 5));
        let gather = case(Collective::AllGather, 64);
        assert_eq!((gather.count, gather.elements(), gather.send_elements()), (5, 15, 5));
        let scatter = case(Collective::ReduceScatter, 64);
        assert_eq!((scatter.count, scatter.send_elements(), scatter.receive_elements()), (5, 15, 5));
        assert_eq!(case(Collective::Barrier, 64).elements(), 0);
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let bandwidths = |collective| Case::of_size(collective, None, 4, 4_000_000, 4).bandwidths(4, 1e-3);
        assert_eq!(bandwidths(Collective::AllReduce), (4.0, 6.0));
        assert_eq!(bandwidths(Collective::ReduceScatter), (4.0, 3.0));
        assert_eq!(bandwidths(Collective::Broadcast { root: Rank(0) }), (4.0, 4.0));
        assert_eq!(bandwidths(Collective::Barrier), (0.0, 0.0));
    }

    #[test]
    fn the_time_shown_is_the_chosen_one() {
        let times = [3.0, 1.0, 5.0];
        let shown = [Average::Rank0, Average::Mean, Average::Min, Average::Max].map(|average| average.of(&times));
        assert_eq!(shown, [3.0, 3.0, 1.0, 5.0]);
    }
}

//! One call as every rank makes it, in all its forms: its inputs, how it is made, and whether what came out is right.

use tutti::{Algorithm, Collective, Communicator, DType, Group, Rank, Reduction};

use super::buffers::Guarded;
use super::number::{Format, Number};
use super::oracle::{in_rank_order, reduced};
use super::ranks::{each_on_a_thread, mix};

/// One call of a communicator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    /// For this call; the communicator's choice if there is none.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) dtype: DType,
    pub(crate) reduction: Reduction,
    /// As the collective counts.
    pub(crate) count: usize,
    /// Bit r: rank r passes one buffer for input and output.
    pub(crate) in_place: u64,
    /// Of rank 0's input from an aligned address, in elements; other ranks and outputs have others.
    pub(crate) offset: usize,
    /// Whether ranks pass buffers that their call does not need: inputs of a broadcast, outputs of a reduce.
    pub(crate) needless_buffers: bool,
    pub(crate) values: Values,
    /// Makes the inputs of two cases differ.
    pub(crate) salt: u64,
}

/// What the inputs are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Values {
    /// Small integers (for products: powers of two), of which nothing is ever rounded away.
    Exact,
    /// Numbers that use the whole significand, over a few binades.
    Rough,
}

impl Case {
    /// A call with nothing special about it.
    pub(crate) fn new(collective: Collective, dtype: DType, reduction: Reduction, count: usize) -> Case {
        Case {
            collective,
            algorithm: None,
            dtype,
            reduction,
            count,
            in_place: 0,
            offset: 0,
            needless_buffers: false,
            values: Values::Exact,
            salt: 0,
        }
    }

    fn root(&self) -> usize {
        self.collective.root().map_or(0, Rank::index)
    }

    /// Elements of one rank's input.
    pub(crate) fn input_count(&self, rank_count: usize) -> usize {
        match self.collective {
            Collective::ReduceScatter => rank_count * self.count,
            Collective::Barrier => 0,
            _ => self.count,
        }
    }

    /// What a scaled sum scales by: of whole numbers by one, of floats for exact values by a power of two.
    pub(crate) fn scale(&self) -> f64 {
        match (self.dtype.is_integer(), self.values) {
            (true, _) if self.dtype.is_signed() => [3.0, -2.0, 1.0][self.salt as usize % 3],
            (true, _) => [3.0, 2.0, 1.0][self.salt as usize % 3],
            (false, Values::Exact) => [0.5, -1.0, 0.25][self.salt as usize % 3],
            (false, Values::Rough) => [0.75, -0.375, 1.0][self.salt as usize % 3],
        }
    }

    /// Rank `rank`'s element `index`, before the call.
    fn input(&self, format: &'static Format, rank: usize, index: usize) -> Number {
        let random = mix(mix(self.salt ^ (rank as u64) << 40) ^ index as u64);
        let sign = if random >> 63 == 1 { -1.0 } else { 1.0 };
        if format.dtype.is_integer() {
            return match self.values {
                Values::Exact => format.wrapped((random % 29) as i128 - 14),
                Values::Rough => format.number(random),
            };
        }
        let product = self.collective.reduces() && self.reduction == Reduction::Prod;
        // The range of 8-bit floats has room for the factors of a few ranks.
        let is_one = product && format.precision <= 4 && rank >= 4;
        format.exact(match self.values {
            _ if is_one => sign,
            Values::Exact if product => sign * 2.0_f64.powi((random % 3) as i32 - 1),
            Values::Exact => format.nearest((random % 29) as f64 - 14.0).value(),
            Values::Rough => {
                let fraction =
                    (random & ((1 << (format.precision - 1)) - 1)) as f64 / 2.0_f64.powi(format.precision - 1);
                let binade = if product { -((random >> 55 & 1) as i32) } else { (random >> 55) as i32 % 7 - 3 };
                sign * (1.0 + fraction) * 2.0_f64.powi(binade)
            }
        })
    }

    /// All ranks' inputs.
    pub(crate) fn inputs(&self, rank_count: usize) -> Vec<Vec<Number>> {
        let format = Format::of(self.dtype);
        let count = self.input_count(rank_count);
        (0..rank_count).map(|rank| (0..count).map(|index| self.input(format, rank, index)).collect()).collect()
    }
}

/// Makes a call of some [`Buffers`], given what calls have settings of their own: a communicator's, or a group's.
macro_rules! make {
    ($buffers:expr, $call:expr, $case:expr) => {{
        let (root, reduction) = ($case.root(), $case.reduction);
        let mut call = $call;
        if let Some(algorithm) = $case.algorithm {
            call = call.algorithm(algorithm);
        }
        if $case.collective.reduces() && reduction == Reduction::ScaledSum {
            // An integer takes a whole float as well as an integer.
            call = call.scale($case.scale());
        }
        tutti::with_element!($case.dtype, T => {
            let output = $buffers.output.slice_mut::<T>();
            let input = $buffers.input.as_ref().map(|input| input.slice::<T>());
            match (input, $case.collective) {
                (None, Collective::AllReduce) => call.all_reduce_in_place(output, reduction),
                (None, Collective::ReduceScatter) => call.reduce_scatter_in_place(output, reduction),
                (None, Collective::AllGather) => call.all_gather_in_place(output),
                (None, Collective::Broadcast { .. }) => call.broadcast_in_place(output, root),
                (None, Collective::Reduce { .. }) => call.reduce_in_place(output, reduction, root),
                (Some(input), Collective::AllReduce) => call.all_reduce(input, output, reduction),
                (Some(input), Collective::ReduceScatter) => call.reduce_scatter(input, output, reduction),
                (Some(input), Collective::AllGather) => call.all_gather(input, output),
                (Some(input), Collective::Broadcast { .. }) => call.broadcast(input, output, root),
                (Some(input), Collective::Reduce { .. }) => call.reduce(input, output, reduction, root),
                (_, Collective::Barrier) => call.barrier(),
            }
        })
    }};
}

/// One rank's buffers of a call.
pub(crate) struct Buffers {
    /// None where the output is the input too.
    input: Option<Guarded>,
    output: Guarded,
}

impl Buffers {
    /// What `rank` passes to the call, given its input.
    pub(crate) fn new(case: &Case, rank: usize, rank_count: usize, input: &[Number]) -> Buffers {
        let format = Format::of(case.dtype);
        let in_place = case.in_place >> (rank % 64) & 1 == 1;
        let is_root = case.root() == rank;
        let offset = (case.offset + 5 * rank) % 16;
        let output_offset = (case.offset + 11 * rank + 7) % 16;
        let total = rank_count * case.count;
        if in_place {
            let mut output = match case.collective {
                Collective::AllGather => Guarded::new(format, total, offset),
                Collective::ReduceScatter => Guarded::new(format, total, offset),
                Collective::Barrier => Guarded::new(format, 0, offset),
                _ => Guarded::new(format, case.count, offset),
            };
            match case.collective {
                Collective::AllGather => {
                    output.fill(rank * case.count, input);
                }
                // What a rank other than the root holds before a broadcast is of no account.
                Collective::Broadcast { .. } if !is_root => {}
                _ => output.fill(0, input),
            }
            return Buffers { input: None, output };
        }
        let (has_input, output_count) = match case.collective {
            Collective::AllGather => (true, total),
            Collective::Broadcast { .. } => (is_root || case.needless_buffers, case.count),
            Collective::Reduce { .. } => (true, if is_root || case.needless_buffers { case.count } else { 0 }),
            Collective::Barrier => (true, 0),
            _ => (true, case.count),
        };
        let input = Guarded::holding(format, if has_input { input } else { &[] }, offset);
        Buffers { input: Some(input), output: Guarded::new(format, output_count, output_offset) }
    }

    /// The result.
    pub(crate) fn output(&self) -> Vec<Number> {
        self.output.numbers()
    }

    /// The first place that was written to beside one of the buffers.
    pub(crate) fn written_beside(&self) -> Option<isize> {
        self.output.written_beside().or_else(|| self.input.as_ref().and_then(Guarded::written_beside))
    }

    /// Makes the call.
    pub(crate) fn call(&mut self, communicator: &Communicator, case: &Case) -> tutti::Result<()> {
        make!(self, communicator.call(), case)
    }

    /// Adds the call to a group.
    pub(crate) fn add_to<'a>(
        &'a mut self,
        group: &mut Group<'a>,
        communicator: &'a Communicator,
        case: &Case,
    ) -> tutti::Result<()> {
        make!(self, group.call(communicator), case)
    }
}

/// Checks all ranks' buffers after a call: that results are right and the same on all ranks, and that nothing else changed.
pub(crate) fn check(case: &Case, inputs: &[Vec<Number>], all: &[Buffers]) -> Result<(), String> {
    let rank_count = inputs.len();
    let is_direct = matches!(case.algorithm, Some(Algorithm::Direct | Algorithm::OneShot));
    let mut elements = Vec::with_capacity(rank_count);
    let mut check_reduced = |rank: usize, index: usize, came: Number| {
        elements.clear();
        elements.extend(inputs.iter().map(|input| input[index]));
        let expected = reduced(&elements, case.reduction, case.scale());
        let right = expected.accepts(came);
        // Where the order is known, so are the bits.
        let right = right
            && (!is_direct || came.is_nan() || came.bits() == in_rank_order(&elements, case.reduction, case.scale()));
        if right {
            return Ok(());
        }
        let values: Vec<f64> = elements.iter().map(|element| element.value()).collect();
        Err(format!(
            "rank {rank}: element {index}: expected {expected:?} of {values:?}, came {} ({:#x})",
            came.value(),
            came.bits()
        ))
    };
    let check_same = |rank: usize, index: usize, expected: Number, came: Number| {
        if expected.bits() == came.bits() {
            return Ok(());
        }
        Err(format!("rank {rank}: element {index}: expected the bits {:#x}, came {:#x}", expected.bits(), came.bits()))
    };
    let first = all[0].output();
    for (rank, buffers) in all.iter().enumerate() {
        if let Some(place) = buffers.output.written_beside() {
            return Err(format!("rank {rank}: wrote beside the output, at element {place}"));
        }
        if let Some(input) = &buffers.input {
            if let Some(place) = input.written_beside() {
                return Err(format!("rank {rank}: wrote beside the input, at element {place}"));
            }
            for (index, (after, before)) in input.numbers().iter().zip(&inputs[rank]).enumerate() {
                check_same(rank, index, *before, *after).map_err(|error| format!("the input changed: {error}"))?;
            }
        }
        let in_place = buffers.input.is_none();
        let output = buffers.output();
        match case.collective {
            Collective::AllReduce => {
                for (index, came) in output.iter().enumerate() {
                    if rank == 0 {
                        check_reduced(rank, index, *came)?;
                    } else {
                        check_same(rank, index, first[index], *came)
                            .map_err(|error| format!("not what rank 0 has: {error}"))?;
                    }
                }
            }
            Collective::ReduceScatter => {
                let own = rank * case.count..(rank + 1) * case.count;
                for (index, came) in output.iter().enumerate() {
                    if !in_place {
                        check_reduced(rank, own.start + index, *came)?;
                    } else if own.contains(&index) {
                        check_reduced(rank, index, *came)?;
                    } else {
                        check_same(rank, index, inputs[rank][index], *came)
                            .map_err(|error| format!("another rank's block changed: {error}"))?;
                    }
                }
            }
            Collective::AllGather => {
                for (index, came) in output.iter().enumerate() {
                    check_same(rank, index, inputs[index / case.count][index % case.count], *came)?;
                }
            }
            Collective::Broadcast { root } => {
                for (index, came) in output.iter().enumerate() {
                    check_same(rank, index, inputs[root.index()][index], *came)?;
                }
            }
            Collective::Reduce { root } => {
                for (index, came) in output.iter().enumerate() {
                    if rank == root.index() {
                        check_reduced(rank, index, *came)?;
                    } else if in_place {
                        check_same(rank, index, inputs[rank][index], *came)
                            .map_err(|error| format!("changed though it is not the root's: {error}"))?;
                    } else if !buffers.output.is_untouched(index) {
                        return Err(format!("rank {rank}: element {index} was written though it is not the root's"));
                    }
                }
            }
            Collective::Barrier => {}
        }
    }
    Ok(())
}

/// How ranks are driven.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Drive {
    /// All of them by this thread, in a group.
    Group,
    /// Each by a thread of its own.
    Threads,
}

/// Makes a call with these inputs, and returns all ranks' buffers after it.
pub(crate) fn make_call(
    communicators: &[Communicator],
    case: &Case,
    drive: Drive,
    inputs: &[Vec<Number>],
) -> Result<Vec<Buffers>, String> {
    let rank_count = communicators.len();
    let mut all: Vec<Buffers> =
        (0..rank_count).map(|rank| Buffers::new(case, rank, rank_count, &inputs[rank])).collect();
    let result = match drive {
        Drive::Group => {
            let mut group = Group::new();
            let added: tutti::Result<()> = communicators
                .iter()
                .zip(&mut all)
                .try_for_each(|(communicator, buffers)| buffers.add_to(&mut group, communicator, case));
            added.and_then(|()| group.run())
        }
        Drive::Threads => {
            let (all_cells, case) = (std::sync::Mutex::new(&mut all), case);
            let taken: Vec<std::sync::Mutex<&mut Buffers>> =
                all_cells.into_inner().unwrap().iter_mut().map(std::sync::Mutex::new).collect();
            each_on_a_thread(communicators, |communicator| {
                taken[communicator.rank()].lock().unwrap().call(communicator, case)
            })
            .into_iter()
            .collect()
        }
    };
    result.map_err(|error| format!("the call failed: {error}"))?;
    Ok(all)
}

/// Makes a call and checks everything about it.
pub(crate) fn try_call(communicators: &[Communicator], case: &Case, drive: Drive) -> Result<(), String> {
    let inputs = case.inputs(communicators.len());
    make_call(communicators, case, drive, &inputs)
        .and_then(|all| check(case, &inputs, &all))
        .map_err(|error| format!("{} ranks, {drive:?}, {case:?}:\n{error}", communicators.len()))
}

/// As [`try_call`]; fails the test if anything is wrong.
pub(crate) fn call(communicators: &[Communicator], case: &Case, drive: Drive) {
    if let Err(error) = try_call(communicators, case, drive) {
        panic!("{error}");
    }
}

/// As [`call`], with inputs of the caller's.
pub(crate) fn call_with(communicators: &[Communicator], case: &Case, drive: Drive, inputs: &[Vec<Number>]) {
    let result = make_call(communicators, case, drive, inputs).and_then(|all| check(case, inputs, &all));
    if let Err(error) = result {
        panic!("{} ranks, {drive:?}, {case:?}:\n{error}", communicators.len());
    }
}

/// Every collective that moves data, with every root among `rank_count` ranks.
pub(crate) fn collectives(rank_count: usize) -> Vec<Collective> {
    let roots = || (0..rank_count as u32).map(Rank);
    [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather]
        .into_iter()
        .chain(roots().map(|root| Collective::Broadcast { root }))
        .chain(roots().map(|root| Collective::Reduce { root }))
        .collect()
}

/// The reductions that make a difference to a collective of elements of a type.
pub(crate) fn reductions(collective: Collective, dtype: DType) -> Vec<Reduction> {
    if collective.reduces() { dtype.reductions().collect() } else { vec![Reduction::Sum] }
}

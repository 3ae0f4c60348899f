//! One call as every rank makes it, in all its forms: its inputs, how it is made, and whether what came out is right.

use tutti::{Algorithm, Collective, Communicator, DType, Group, Rank, Reduction};

use super::buffers::Guarded;
use super::number::{Number, for_dtype};
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

    /// Rank `rank`'s element `index`, before the call.
    fn input<T: Number>(&self, rank: usize, index: usize) -> T {
        let random = mix(mix(self.salt ^ (rank as u64) << 40) ^ index as u64);
        let sign = if random >> 63 == 1 { -1.0 } else { 1.0 };
        let product = self.collective.reduces() && self.reduction == Reduction::Prod;
        T::exact(match self.values {
            Values::Exact if product => sign * 2.0_f64.powi((random % 3) as i32 - 1),
            Values::Exact => (random % 29) as f64 - 14.0,
            Values::Rough => {
                let fraction = (random & ((1 << (T::PRECISION - 1)) - 1)) as f64 / 2.0_f64.powi(T::PRECISION - 1);
                let binade = if product { -((random >> 40 & 1) as i32) } else { (random >> 40) as i32 % 7 - 3 };
                sign * (1.0 + fraction) * 2.0_f64.powi(binade)
            }
        })
    }

    /// All ranks' inputs.
    pub(crate) fn inputs<T: Number>(&self, rank_count: usize) -> Vec<Vec<T>> {
        let count = self.input_count(rank_count);
        (0..rank_count).map(|rank| (0..count).map(|index| self.input(rank, index)).collect()).collect()
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
        let output = $buffers.output.slice_mut();
        match (&$buffers.input, $case.collective) {
            (None, Collective::AllReduce) => call.all_reduce_in_place(output, reduction),
            (None, Collective::ReduceScatter) => call.reduce_scatter_in_place(output, reduction),
            (None, Collective::AllGather) => call.all_gather_in_place(output),
            (None, Collective::Broadcast { .. }) => call.broadcast_in_place(output, root),
            (None, Collective::Reduce { .. }) => call.reduce_in_place(output, reduction, root),
            (Some(input), Collective::AllReduce) => call.all_reduce(input.slice(), output, reduction),
            (Some(input), Collective::ReduceScatter) => call.reduce_scatter(input.slice(), output, reduction),
            (Some(input), Collective::AllGather) => call.all_gather(input.slice(), output),
            (Some(input), Collective::Broadcast { .. }) => call.broadcast(input.slice(), output, root),
            (Some(input), Collective::Reduce { .. }) => call.reduce(input.slice(), output, reduction, root),
            (_, Collective::Barrier) => call.barrier(),
        }
    }};
}

/// One rank's buffers of a call.
#[derive(Clone, Debug)]
pub(crate) struct Buffers<T> {
    /// None where the output is the input too.
    input: Option<Guarded<T>>,
    output: Guarded<T>,
}

impl<T: Number> Buffers<T> {
    /// What `rank` passes to the call, given its input.
    pub(crate) fn new(case: &Case, rank: usize, rank_count: usize, input: &[T]) -> Buffers<T> {
        let in_place = case.in_place >> (rank % 64) & 1 == 1;
        let is_root = case.root() == rank;
        let offset = (case.offset + 5 * rank) % 16;
        let output_offset = (case.offset + 11 * rank + 7) % 16;
        let total = rank_count * case.count;
        if in_place {
            let mut output = match case.collective {
                Collective::AllGather => Guarded::new(total, offset),
                Collective::ReduceScatter => Guarded::new(total, offset),
                Collective::Barrier => Guarded::new(0, offset),
                _ => Guarded::new(case.count, offset),
            };
            match case.collective {
                Collective::AllGather => {
                    output.slice_mut()[rank * case.count..(rank + 1) * case.count].copy_from_slice(input);
                }
                // What a rank other than the root holds before a broadcast is of no account.
                Collective::Broadcast { .. } if !is_root => {}
                _ => output.slice_mut().copy_from_slice(input),
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
        let input = Guarded::holding(if has_input { input } else { &[] }, offset);
        Buffers { input: Some(input), output: Guarded::new(output_count, output_offset) }
    }

    /// The result.
    pub(crate) fn output(&self) -> &[T] {
        self.output.slice()
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
pub(crate) fn check<T: Number>(case: &Case, inputs: &[Vec<T>], all: &[Buffers<T>]) -> Result<(), String> {
    let rank_count = inputs.len();
    let is_direct = matches!(case.algorithm, Some(Algorithm::Direct | Algorithm::OneShot));
    let mut elements = Vec::with_capacity(rank_count);
    let mut check_reduced = |rank: usize, index: usize, came: T| {
        elements.clear();
        elements.extend(inputs.iter().map(|input| input[index]));
        let expected = reduced(&elements, case.reduction);
        let right = expected.accepts(came);
        // Where the order is known, so are the bits.
        let right =
            right && (!is_direct || came.value().is_nan() || came.bits() == in_rank_order(&elements, case.reduction));
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
    let check_same = |rank: usize, index: usize, expected: T, came: T| {
        if expected.bits() == came.bits() {
            return Ok(());
        }
        Err(format!("rank {rank}: element {index}: expected the bits {:#x}, came {:#x}", expected.bits(), came.bits()))
    };
    for (rank, buffers) in all.iter().enumerate() {
        if let Some(place) = buffers.output.written_beside() {
            return Err(format!("rank {rank}: wrote beside the output, at element {place}"));
        }
        if let Some(input) = &buffers.input {
            if let Some(place) = input.written_beside() {
                return Err(format!("rank {rank}: wrote beside the input, at element {place}"));
            }
            for (index, (after, before)) in input.slice().iter().zip(&inputs[rank]).enumerate() {
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
                        check_same(rank, index, all[0].output()[index], *came)
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
pub(crate) fn make_call<T: Number>(
    communicators: &[Communicator],
    case: &Case,
    drive: Drive,
    inputs: &[Vec<T>],
) -> Result<Vec<Buffers<T>>, String> {
    let rank_count = communicators.len();
    let mut all: Vec<Buffers<T>> =
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
            let taken: Vec<std::sync::Mutex<&mut Buffers<T>>> =
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
    fn typed<T: Number>(communicators: &[Communicator], case: &Case, drive: Drive) -> Result<(), String> {
        let inputs = case.inputs::<T>(communicators.len());
        check(case, &inputs, &make_call(communicators, case, drive, &inputs)?)
    }
    for_dtype!(case.dtype, typed, communicators, case, drive)
        .map_err(|error| format!("{} ranks, {drive:?}, {case:?}:\n{error}", communicators.len()))
}

/// As [`try_call`]; fails the test if anything is wrong.
pub(crate) fn call(communicators: &[Communicator], case: &Case, drive: Drive) {
    if let Err(error) = try_call(communicators, case, drive) {
        panic!("{error}");
    }
}

/// As [`call`], with inputs of the caller's.
pub(crate) fn call_with<T: Number>(communicators: &[Communicator], case: &Case, drive: Drive, inputs: &[Vec<T>]) {
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

/// The reductions that make a difference to a collective.
pub(crate) fn reductions(collective: Collective) -> &'static [Reduction] {
    if collective.reduces() { Reduction::ALL } else { &[Reduction::Sum] }
}

//! From typed arguments to a call without types: the one place where arguments are checked.

use crate::buffer::{Buffer, BufferMut, Memory};
use crate::core::Request;
use crate::dtype::{DType, Element, Reduction};
use crate::error::{Error, Result};
use crate::fingerprint::Purpose;
use crate::options::Overrides;
use crate::plan::{Collective, PlanError, Rank};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) rank: usize,
    pub(crate) rank_count: usize,
}

/// A buffer to read, without its type.
#[derive(Clone, Copy)]
pub(crate) struct In {
    address: *const u8,
    count: usize,
    memory: Memory,
}

/// A buffer to write, without its type.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    address: *mut u8,
    count: usize,
    dtype: DType,
    memory: Memory,
}

impl In {
    pub(crate) fn of<B: Buffer + ?Sized>(buffer: &B) -> In {
        In { address: buffer.as_ptr().cast(), count: buffer.len(), memory: buffer.memory() }
    }
}

impl Out {
    pub(crate) fn of<B: BufferMut + ?Sized>(buffer: &mut B) -> Out {
        let count = buffer.len();
        Out {
            address: buffer.as_mut_ptr().cast(),
            count,
            dtype: <B::Element as Element>::DTYPE,
            memory: buffer.memory(),
        }
    }

    fn as_in(self) -> In {
        In { address: self.address, count: self.count, memory: self.memory }
    }

    /// The block of `count` elements that belongs to `rank`.
    fn block(self, rank: usize, count: usize) -> Out {
        let address = self.address.wrapping_add(rank * count * self.dtype.bytes());
        Out { address, count, ..self }
    }
}

fn request(collective: Collective, reduction: Option<Reduction>, count: usize, input: In, output: Out) -> Request {
    Request {
        purpose: Purpose::Collective,
        collective,
        dtype: Some(output.dtype),
        reduction,
        scale: 0,
        count: count as u64,
        input: input.address,
        output: output.address,
        memory: [input.memory, output.memory],
    }
}

impl Request {
    /// The request with the settings of its call, if they go together: the algorithm offers the collective, the elements offer
    /// the reduction, and there is a scale where one is needed and nowhere else.
    pub(crate) fn with(mut self, overrides: &Overrides) -> Result<Request> {
        let (collective, call) = (self.collective, self.collective.name());
        if let Some(algorithm) = overrides.algorithm.filter(|algorithm| !algorithm.offers(collective)) {
            return Err(Error::Plan { call, source: PlanError::NotOffered { algorithm, collective } });
        }
        if let (Some(dtype), Some(reduction)) = (self.dtype, self.reduction)
            && let Some(refusal) = dtype.refusal(reduction)
        {
            return Err(argument(call, "reduction", refusal.expected, refusal.came));
        }
        let none = || "none".to_owned();
        match (self.reduction, self.dtype, overrides.scale) {
            (Some(Reduction::ScaledSum), Some(dtype), Some(scale)) => {
                let bits = scale.bits(dtype);
                self.scale = bits.map_err(|expected| argument(call, "scale", expected, scale.to_string()))?;
            }
            (Some(Reduction::ScaledSum), _, None) => {
                let expected = "one, as in communicator.call().scale(0.5), for a scaled_sum".to_owned();
                return Err(argument(call, "scale", expected, none()));
            }
            (_, _, Some(scale)) => {
                let expected = "none: only a scaled_sum scales".to_owned();
                return Err(argument(call, "scale", expected, scale.to_string()));
            }
            (_, _, None) => {}
        }
        Ok(self)
    }
}

fn argument(call: &'static str, what: &'static str, expected: String, came: String) -> Error {
    Error::Argument { call, what, expected, came }
}

/// That `came` elements are what the other argument asks for.
fn check_count(call: &'static str, what: &'static str, expected: usize, came: usize, why: &str) -> Result<()> {
    if came == expected {
        return Ok(());
    }
    Err(argument(call, what, format!("{expected} elements ({why})"), format!("{came}")))
}

impl Asker {
    fn check_root(self, call: &'static str, root: usize) -> Result<Rank> {
        if root < self.rank_count {
            return Ok(Rank(root as u32));
        }
        Err(argument(call, "root", format!("a rank below {}", self.rank_count), root.to_string()))
    }

    /// One rank's share of a buffer that holds a block for every rank.
    fn share(self, call: &'static str, what: &'static str, total: usize) -> Result<usize> {
        if total.is_multiple_of(self.rank_count) {
            return Ok(total / self.rank_count);
        }
        let expected = format!("a multiple of {} elements, one block for each rank", self.rank_count);
        Err(argument(call, what, expected, total.to_string()))
    }

    /// `count` elements for each rank.
    fn total(self, call: &'static str, count: usize) -> Result<usize> {
        count.checked_mul(self.rank_count).ok_or_else(|| {
            argument(call, "count", "a count whose total fits the address space".to_owned(), count.to_string())
        })
    }

    pub(crate) fn all_reduce(self, input: In, output: Out, reduction: Reduction) -> Result<Request> {
        check_count("all_reduce", "output", input.count, output.count, "as many as the input")?;
        Ok(request(Collective::AllReduce, Some(reduction), output.count, input, output))
    }

    pub(crate) fn all_reduce_in_place(self, buffer: Out, reduction: Reduction) -> Result<Request> {
        self.all_reduce(buffer.as_in(), buffer, reduction)
    }

    pub(crate) fn reduce_scatter(self, input: In, output: Out, reduction: Reduction) -> Result<Request> {
        let expected = self.total("reduce_scatter", output.count)?;
        check_count("reduce_scatter", "input", expected, input.count, "the output's count for each rank")?;
        Ok(request(Collective::ReduceScatter, Some(reduction), output.count, input, output))
    }

    pub(crate) fn reduce_scatter_in_place(self, buffer: Out, reduction: Reduction) -> Result<Request> {
        let count = self.share("reduce_scatter_in_place", "buffer", buffer.count)?;
        self.reduce_scatter(buffer.as_in(), buffer.block(self.rank, count), reduction)
    }

    pub(crate) fn all_gather(self, input: In, output: Out) -> Result<Request> {
        let expected = self.total("all_gather", input.count)?;
        check_count("all_gather", "output", expected, output.count, "the input's count for each rank")?;
        Ok(request(Collective::AllGather, None, input.count, input, output))
    }

    pub(crate) fn all_gather_in_place(self, buffer: Out) -> Result<Request> {
        let count = self.share("all_gather_in_place", "buffer", buffer.count)?;
        self.all_gather(buffer.block(self.rank, count).as_in(), buffer)
    }

    pub(crate) fn broadcast(self, input: In, output: Out, root: usize) -> Result<Request> {
        let rank = self.check_root("broadcast", root)?;
        if root == self.rank || input.count != 0 {
            check_count("broadcast", "input", output.count, input.count, "as many as the output")?;
        }
        Ok(request(Collective::Broadcast { root: rank }, None, output.count, input, output))
    }

    pub(crate) fn broadcast_in_place(self, buffer: Out, root: usize) -> Result<Request> {
        self.broadcast(buffer.as_in(), buffer, root)
    }

    pub(crate) fn reduce(self, input: In, output: Out, reduction: Reduction, root: usize) -> Result<Request> {
        let rank = self.check_root("reduce", root)?;
        if root == self.rank || output.count != 0 {
            check_count("reduce", "output", input.count, output.count, "as many as the input")?;
        }
        Ok(request(Collective::Reduce { root: rank }, Some(reduction), input.count, input, output))
    }

    pub(crate) fn reduce_in_place(self, buffer: Out, reduction: Reduction, root: usize) -> Result<Request> {
        self.reduce(buffer.as_in(), buffer, reduction, root)
    }

    pub(crate) fn barrier(self) -> Request {
        Request {
            purpose: Purpose::Collective,
            collective: Collective::Barrier,
            dtype: None,
            reduction: None,
            scale: 0,
            count: 0,
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
            memory: [Memory::Host; 2],
        }
    }

    /// An all-gather of some bytes of each rank, by which a communicator is split.
    pub(crate) fn split(self, input: &[u8], output: &mut [u8]) -> Request {
        debug_assert_eq!(input.len() * self.rank_count, output.len());
        Request {
            purpose: Purpose::Split,
            collective: Collective::AllGather,
            dtype: None,
            reduction: None,
            scale: 0,
            count: input.len() as u64,
            input: input.as_ptr(),
            output: output.as_mut_ptr(),
            memory: [Memory::Host; 2],
        }
    }
}

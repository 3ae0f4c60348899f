//! Calls laid out in the memory of a GPU in software, as `tutti_kernels::layout` says, and the images that run them.

use std::cell::RefCell;
use std::mem::offset_of;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use softgpu::{Arguments, LaunchError, LaunchOptions, Machine, MemoryKind, Module, Running};
use tutti::ptx::{self, Image};
use tutti::{DType, Reduction};
use tutti_codegen::{DTYPES, Entry, REDUCTIONS, Slots};
use tutti_kernels::layout::{
    BlockView, Fingerprint, ISSUE_WORDS, LINE_BYTES, NO_PROGRAM, RankState, Report, SLOT_HEADER_BYTES, slot_format,
    step_flag,
};

/// An image, parsed once for all tests.
pub(crate) fn module(image: &Image) -> Arc<Module> {
    static MODULES: OnceLock<Vec<OnceLock<Arc<Module>>>> = OnceLock::new();
    let images = ptx::images().expect("there is one");
    let modules = MODULES.get_or_init(|| images.iter().map(|_| OnceLock::new()).collect());
    let place = images.iter().position(|other| other == image).expect("it is one of the images");
    modules[place].get_or_init(|| parsed(image, image.text())).clone()
}

/// An image whose text has been changed.
pub(crate) fn parsed(image: &Image, text: &str) -> Arc<Module> {
    Arc::new(Module::parse(text).unwrap_or_else(|error| panic!("{}: {error}", image.file_name())))
}

/// The entry point of a type and a reduction, with every image that has it.
pub(crate) fn entries(
    slots: Slots,
    dtype: DType,
    reduction: Reduction,
) -> impl Iterator<Item = (&'static Image, Entry)> {
    let rows = (&DTYPES[dtype as usize], &REDUCTIONS[reduction as usize]);
    having(tutti_codegen::entry_for(slots, rows.0, rows.1).expect("the type offers the reduction"))
}

/// The entry point that only copies, with every image that has it.
pub(crate) fn copy_entries(slots: Slots) -> impl Iterator<Item = (&'static Image, Entry)> {
    having(tutti_codegen::copy_entry(slots))
}

fn having(entry: Entry) -> impl Iterator<Item = (&'static Image, Entry)> {
    let has_it = move |image: &&Image| image.slots() == entry.slots && image.dtype() == entry.dtype.name;
    super::images().iter().filter(has_it).map(move |image| (image, entry))
}

/// A machine, and what was allocated on it, which ends with this.
pub(crate) struct Bench<'a> {
    pub(crate) machine: &'a Machine,
    allocations: RefCell<Vec<u64>>,
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        for address in self.allocations.take() {
            self.machine.free(address).expect("it was allocated");
        }
    }
}

impl<'a> Bench<'a> {
    pub(crate) fn new(machine: &'a Machine) -> Bench<'a> {
        Bench { machine, allocations: RefCell::default() }
    }

    /// Memory of which nobody has written anything.
    pub(crate) fn allocate(&self, bytes: usize, device: u32) -> u64 {
        let address = self.machine.allocate(bytes as u64, MemoryKind::Device, device).expect("there is memory");
        self.allocations.borrow_mut().push(address);
        address
    }

    /// Memory that holds these bytes.
    pub(crate) fn holding(&self, bytes: &[u8], device: u32) -> u64 {
        let address = self.allocate(bytes.len(), device);
        self.write(address, bytes);
        address
    }

    /// Memory that holds these words.
    pub(crate) fn words(&self, words: &[u64], device: u32) -> u64 {
        self.holding(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>(), device)
    }

    /// A multicast address of the same place in all of these.
    pub(crate) fn multicast(&self, bytes: usize, members: &[u64]) -> u64 {
        let address = self.machine.multicast(bytes as u64, members).expect("there is memory");
        self.allocations.borrow_mut().push(address);
        address
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.machine.write(address, bytes).expect("the memory is there, and nobody uses it");
    }

    pub(crate) fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut came = vec![0; bytes];
        self.machine.read(address, &mut came).expect("the memory is there, and nobody uses it");
        came
    }

    pub(crate) fn word(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.read(address, 8).try_into().expect("it is 8 bytes"))
    }
}

/// Two 32-bit fields beside each other.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// A source or a destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    /// One of `operand_kind`.
    pub(crate) kind: u32,
    pub(crate) index: u32,
    pub(crate) buffer: u32,
    pub(crate) offset: u64,
    pub(crate) is_scaled: bool,
}

impl Operand {
    pub(crate) fn new(kind: u32, index: u32) -> Operand {
        Operand { kind, index, buffer: 0, offset: 0, is_scaled: false }
    }

    pub(crate) fn at(self, offset: u64) -> Operand {
        Operand { offset, ..self }
    }

    pub(crate) fn scaled(self, is_scaled: bool) -> Operand {
        Operand { is_scaled, ..self }
    }
}

/// One step; bits of `step_flag`.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) bytes: u64,
    pub(crate) sources: Vec<Operand>,
    pub(crate) destinations: Vec<Operand>,
    pub(crate) flags: u32,
}

/// Steps over chunks.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    pub(crate) iterations: u64,
    pub(crate) chunk_bytes: u32,
    pub(crate) steps: Vec<Step>,
}

/// One side of a connection: `moved` messages have gone through it before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) slots: u64,
    pub(crate) stride_bytes: u64,
    pub(crate) slot_count: u32,
    pub(crate) empty: u64,
    pub(crate) moved: u64,
}

/// The words of a fingerprint as a kernel posts it, which makes the last of these calls and remembers nothing of those before.
pub(crate) fn as_posted([sequence, call, count, plan, scale]: [u64; 5]) -> [u64; 5] {
    let last = Fingerprint { sequence: sequence.saturating_sub(1), ..Fingerprint::default() };
    let Fingerprint { sequence, call, count, plan, scale } =
        Fingerprint { sequence: 0, call, count, plan, scale }.after(&last);
    [sequence, call, count, plan, scale]
}

/// What the programs of one rank share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    pub(crate) device: u32,
    pub(crate) fingerprint: [u64; 5],
    pub(crate) buffers: [u64; 3],
    /// Each rank's buffers.
    pub(crate) windows: Vec<[u64; 3]>,
    /// Input and output of all ranks, through a switch.
    pub(crate) multicast: [u64; 2],
    pub(crate) sends: Vec<End>,
    pub(crate) receives: Vec<End>,
    pub(crate) abort: u64,
    pub(crate) touching: u64,
    pub(crate) scale: u64,
    pub(crate) finish: u64,
    pub(crate) slot_format: u32,
    pub(crate) programs: Vec<Vec<Loop>>,
}

/// A call in a device's memory, to be launched with one block for each program.
pub(crate) struct Launch {
    issue: [u64; ISSUE_WORDS],
    state: u64,
    report: u64,
    device: u32,
    blocks: u32,
    pub(crate) sends: u64,
    pub(crate) receives: u64,
}

impl Call {
    pub(crate) fn lay_out(&self, bench: &Bench) -> Launch {
        let device = self.device;
        let put = |words: &[u64]| if words.is_empty() { 0 } else { bench.words(words, device) };
        let window = |[input, output, scratch]: &[u64; 3]| [*input, *output, *scratch, 0, 0, 0, 0, 0];
        let windows = put(&self.windows.iter().flat_map(window).collect::<Vec<_>>());
        let send = |end: &End| {
            let credit = end.moved;
            [end.slots, end.stride_bytes, end.empty, end.moved, credit, pair(end.slot_count, 0), 0, 0]
        };
        let receive = |end: &End| [end.slots, end.stride_bytes, end.empty, end.moved, pair(end.slot_count, 0), 0, 0, 0];
        let sends = put(&self.sends.iter().flat_map(send).collect::<Vec<_>>());
        let receives = put(&self.receives.iter().flat_map(receive).collect::<Vec<_>>());
        let completed = put(&vec![0; 8 * self.programs.len()]);
        let mut programs = Vec::new();
        for (index, loops) in self.programs.iter().enumerate() {
            let (mut loop_words, mut steps, mut operands, mut longest) = (Vec::new(), Vec::new(), Vec::new(), 0);
            let mut steps_before = 0;
            for looped in loops {
                let first_step = steps.len() as u32 / 6;
                loop_words.extend([
                    looped.iterations,
                    pair(looped.chunk_bytes, first_step),
                    pair(looped.steps.len() as u32, 0),
                    steps_before,
                ]);
                steps_before += looped.iterations * looped.steps.len() as u64;
                for step in &looped.steps {
                    let first = operands.len() as u32 / 3;
                    let (sources, destinations) = (step.sources.len() as u32, step.destinations.len() as u32);
                    steps.extend([step.bytes, 0, 0, pair(first, sources), pair(destinations, step.flags)]);
                    steps.push(pair(NO_PROGRAM, 0));
                    for operand in step.sources.iter().chain(&step.destinations) {
                        let kind = pair(operand.kind, operand.is_scaled.into());
                        operands.extend([kind, pair(operand.index, operand.buffer), operand.offset]);
                    }
                    longest = longest.max(sources + destinations);
                }
            }
            let resolved = put(&vec![0; longest as usize]);
            let loop_count = loops.len() as u32;
            programs.extend([put(&loop_words), put(&steps), put(&operands), resolved, pair(loop_count, index as u32)]);
        }
        // What differs from call to call is not in the launch; the kernel must not look for it there.
        const ELSEWHERE: u64 = 0xdead_beef_dead_beef;
        let blocks = self.programs.len() as u32;
        let views = bench.allocate(size_of::<BlockView>() * blocks as usize, device);
        let [sequence, call, count, plan, scale] = self.fingerprint;
        // The only report that anybody looks at is this rank's own.
        let report = bench.words(&[0; size_of::<Report>() / 8], device);
        let abort = if self.abort == 0 { bench.words(&[0], device) } else { self.abort };
        let state = bench.words(
            &[&[sequence.saturating_sub(1), 0, 0, 0, 0][..], &[sends, receives, report, 0, pair(0, 1), 0, 0], &[0; 4]]
                .concat(),
            device,
        );
        let mut launch = vec![ELSEWHERE; 7];
        launch.extend([self.buffers[2], windows, ELSEWHERE, ELSEWHERE, ELSEWHERE, completed, abort, self.touching, 0]);
        launch.extend([ELSEWHERE, ELSEWHERE, pair(self.slot_format, 0), put(&programs), views, state]);
        launch.push(pair(blocks, 0));
        let launch = put(&launch);
        let [input, output, _] = self.buffers;
        let [input_of_all, output_of_all] = self.multicast;
        let issue = [
            launch,
            input,
            output,
            input_of_all,
            output_of_all,
            0,
            call,
            count,
            plan,
            scale,
            self.scale,
            self.finish,
            0,
            0,
        ];
        Launch { issue, state, report, device, blocks, sends, receives }
    }
}

impl Launch {
    /// Begins it.
    pub(crate) fn begin(&self, bench: &Bench, module: &Arc<Module>, entry: &Entry, threads: u32) -> Running {
        self.begin_with(bench, module, entry, threads, LaunchOptions::default())
    }

    /// Begins it with options of the machine's.
    pub(crate) fn begin_with(
        &self,
        bench: &Bench,
        module: &Arc<Module>,
        entry: &Entry,
        threads: u32,
        options: LaunchOptions,
    ) -> Running {
        let loaded = bench.machine.load(module, self.device).expect("the module loads");
        let options = LaunchOptions {
            grid: self.blocks.into(),
            block: threads.into(),
            arguments: self.issue.iter().fold(Arguments::new(), |words, word| words.u64(*word)).into_bytes(),
            deadline: Some(Duration::from_secs(60)),
            ..options
        };
        bench.machine.launch(&loaded, &entry.name(), options).expect("it launches")
    }

    /// One of `launch_status`; what the rank's own memory says and what it lets others see is the same.
    pub(crate) fn status(&self, bench: &Bench) -> u32 {
        let status = bench.word(self.state + offset_of!(RankState, status) as u64 / 8 * 8) >> 32;
        assert_eq!(bench.word(self.report + offset_of!(Report, status) as u64), status);
        status as u32
    }

    /// How many messages an end that sends (or receives) has moved.
    pub(crate) fn moved(&self, bench: &Bench, sends: bool, end: usize) -> u64 {
        bench.word(if sends { self.sends } else { self.receives } + 64 * end as u64 + 24)
    }
}

/// Waits for launches that wait for each other; `ended` hears of each that has ended by itself. If one fails, the others are ended,
/// and this is what it says.
pub(crate) fn all(running: Vec<Running>, ended: impl Fn(usize)) -> Result<(), LaunchError> {
    let mut running: Vec<Option<Running>> = running.into_iter().map(Some).collect();
    while running.iter().any(Option::is_some) {
        for (index, launch) in running.iter_mut().enumerate() {
            if let Some(finished) = launch.take_if(|launch| launch.is_finished()) {
                // Those that are dropped end.
                finished.wait()?;
                ended(index);
            }
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// A connection's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotFormat {
    /// Data, then a flag; the slots begin at this distance from a multiple of 64.
    Simple(u64),
    Ll,
    Ll128,
}

impl SlotFormat {
    pub(crate) fn code(self) -> u32 {
        match self {
            SlotFormat::Simple(_) => slot_format::SIMPLE,
            SlotFormat::Ll => slot_format::LL,
            SlotFormat::Ll128 => slot_format::LL128,
        }
    }

    pub(crate) fn slots(self) -> Slots {
        if matches!(self, SlotFormat::Simple(_)) { Slots::Simple } else { Slots::LowLatency }
    }

    /// Bytes in front of the data.
    pub(crate) fn header_bytes(self) -> u64 {
        match self {
            SlotFormat::Simple(_) => SLOT_HEADER_BYTES as u64,
            SlotFormat::Ll => 80,
            SlotFormat::Ll128 => 128,
        }
    }

    /// Bytes of a slot that holds so many bytes of data.
    pub(crate) fn stride_bytes(self, data_bytes: u64) -> u64 {
        match self {
            SlotFormat::Simple(_) => (self.header_bytes() + data_bytes).next_multiple_of(LINE_BYTES as u64),
            SlotFormat::Ll => self.header_bytes() + 16 * data_bytes.div_ceil(8),
            SlotFormat::Ll128 => self.header_bytes() + 128 * data_bytes.div_ceil(120),
        }
    }

    /// The lines of a message: its fingerprint or its data, with its number beside.
    pub(crate) fn lines(self, words: &[u64], number: u64) -> Vec<u64> {
        match self {
            SlotFormat::Simple(_) => panic!("there are no lines in this format"),
            SlotFormat::Ll => {
                let halves = |word: &u64| [word & 0xffff_ffff | number << 32, word >> 32 | number << 32];
                words.iter().flat_map(halves).collect()
            }
            SlotFormat::Ll128 => words
                .chunks(15)
                .flat_map(|line| {
                    let mut line = line.to_vec();
                    line.resize(15, 0);
                    line.push(number);
                    line
                })
                .collect(),
        }
    }
}

/// Flags that say that a step finishes its result.
pub(crate) fn finish_flag(is_finished: bool) -> u32 {
    if is_finished { step_flag::FINISH } else { 0 }
}

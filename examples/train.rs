//! Data-parallel training: each rank sees a part of every batch, and all of them hold the same model.
//!
//! A small network learns to judge red wines (1599 wines, 11 measurements each; they lie inside the crate `linfa-datasets`,
//! nothing is downloaded). The ranks are threads; candle computes on the CPU. On two cores that others were using too:
//!
//! ```text
//! $ cargo run --release --example train -- --ranks 2
//! 747 weights, 100 steps of 256 wines
//! ranks: 2, loss: 3.0247 to 0.9000, samples/s: 40966, communicating: [84, 80] %
//! ranks: 1, loss: 3.0247 to 0.9000, samples/s: 64360, communicating: [0] %
//! largest difference between weights: 3.6e-7 (allowed: 1e-5)
//! ```
//!
//! What there is to see, in [`train_rank`]:
//!
//! - **The ranks start equal**: rank 0 draws the weights and broadcasts them.
//! - **One call per step**: all gradients go into one flat buffer, a *bucket*, so that a step pays a collective's latency
//!   once and not once per layer. (A large network has several: the first travel while the backward pass fills the last.)
//! - **Uneven parts are weighed**: the mean of the ranks' mean gradients is the batch's gradient only where all parts are
//!   equally large. So each rank divides its sum by the size of the *whole* batch, and the ranks add up.
//! - **`--sharded`**: each rank looks after one block of the weights. Reduce-scatter leaves it with the gradients of its
//!   block, it steps on that block alone, and all-gather puts the weights together again. That sends as many bytes as
//!   all-reduce, and the optimizer's state exists once and not once per rank (ZeRO, Rajbhandari et al. 2020, stage 1).
//!
//! Then one rank trains alone on the same batches. It must come to the same weights, but for rounding: a sum over ranks adds
//! in another order than a sum over one batch. So small a network has ranks mostly wait for each other.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::thread;
use std::time::Instant;

use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{Sequential, VarBuilder, VarMap, linear, loss, seq};
use clap::{Parser, builder::RangedU64ValueParser};
use tutti::{Communicator, Reduction};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const HIDDEN_UNITS: usize = 32;
const MOMENTUM: f32 = 0.9;
/// How far a weight of many ranks may be from that of one rank.
pub(crate) const TOLERANCE: f32 = 1e-5;

/// Trains a small network on real data, with the batch spread over ranks, and compares the result with one rank's.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Settings {
    /// Ranks (threads) that share the work.
    #[arg(long, default_value_t = 2, value_parser = from_1_to(64))]
    pub(crate) ranks: usize,
    /// Steps to train.
    #[arg(long, default_value_t = 100, value_parser = from_1_to(1_000_000))]
    pub(crate) steps: usize,
    /// Wines per step, over all ranks together.
    #[arg(long, default_value_t = 256, value_parser = from_1_to(2047))]
    pub(crate) batch: usize,
    /// Reduce-scatter the gradients, step on one shard per rank, all-gather the weights.
    #[arg(long)]
    pub(crate) sharded: bool,
    /// Decides the first weights and the wines of each batch.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Step size of gradient descent, at most 1.
    #[arg(long, default_value_t = 0.05, value_parser = rate)]
    pub(crate) learning_rate: f32,
    /// Leave out the training on one rank.
    #[arg(long)]
    pub(crate) skip_comparison: bool,
}

fn from_1_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

fn rate(text: &str) -> std::result::Result<f32, &'static str> {
    text.parse().ok().filter(|rate| *rate > 0.0 && *rate <= 1.0).ok_or("expected a number above 0, at most 1")
}

/// What a training leaves behind.
pub(crate) struct Outcome {
    pub(crate) weights: Vec<f32>,
    /// The mean loss over all wines, before the first step and after the last.
    pub(crate) losses: [f32; 2],
    training_s: f64,
    /// The part of `training_s` spent in tutti's calls, waiting for slower ranks included.
    communicating_s: f64,
}

fn main() {
    if let Err(error) = run(&Settings::parse()) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn run(settings: &Settings) -> Result<()> {
    let wines = Wines::load()?;
    let outcomes = train(settings, &wines)?;
    println!("{} weights, {} steps of {} wines", outcomes[0].weights.len(), settings.steps, settings.batch);
    report(settings, &outcomes);
    if settings.skip_comparison {
        return Ok(());
    }
    let alone = train(&Settings { ranks: 1, sharded: false, ..settings.clone() }, &wines)?;
    report(settings, &alone);
    let differences = outcomes.iter().map(|outcome| largest_difference(&outcome.weights, &alone[0].weights));
    let difference = differences.max_by(f32::total_cmp).unwrap_or_default();
    println!("largest difference between weights: {difference:.1e} (allowed: {TOLERANCE:.0e})");
    // Over thousands of steps, or with a high learning rate, rounding alone may grow beyond it.
    if difference <= TOLERANCE { Ok(()) } else { Err("the ranks did not learn what one rank learns".into()) }
}

fn report(settings: &Settings, outcomes: &[Outcome]) {
    let [first_loss, last_loss] = outcomes[0].losses;
    let slowest_s = outcomes.iter().map(|outcome| outcome.training_s).fold(0.0, f64::max);
    let samples_per_s = (settings.steps * settings.batch) as f64 / slowest_s;
    let percents = outcomes.iter().map(|outcome| 100.0 * outcome.communicating_s / outcome.training_s);
    print!("ranks: {}, loss: {first_loss:.4} to {last_loss:.4}, ", outcomes.len());
    println!("samples/s: {samples_per_s:.0}, communicating: {:.0?} %", percents.collect::<Vec<_>>());
}

/// The largest distance between two weights at the same place; NaN where one of them is.
pub(crate) fn largest_difference(left: &[f32], right: &[f32]) -> f32 {
    let distances = left.iter().zip(right).map(|(left, right)| (left - right).abs());
    distances.max_by(f32::total_cmp).unwrap_or_default()
}

/// Trains with one thread per rank. Gives what each rank ended with.
pub(crate) fn train(settings: &Settings, wines: &Wines) -> Result<Vec<Outcome>> {
    let Settings { batch, ranks, .. } = *settings;
    if batch < ranks {
        return Err(format!("a batch of {batch} leaves ranks without a wine: expected at least {ranks}").into());
    }
    let communicators = tutti::local(ranks)?;
    thread::scope(|scope| {
        let rank = |communicator| scope.spawn(move || single_threaded(|| train_rank(&communicator, settings, wines)));
        let threads: Vec<_> = communicators.into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a rank panicked")?).collect()
    })
}

/// Trains one of the ranks.
fn train_rank(communicator: &Communicator, settings: &Settings, wines: &Wines) -> Result<Outcome> {
    let (rank, rank_count) = (communicator.rank(), communicator.rank_count());
    let model = Model::new()?;
    // Flat vectors end in zeros that make them divide into one shard per rank. `mine` is what this rank steps on.
    let shard_len = model.weight_count.div_ceil(rank_count);
    let padded_len = shard_len * rank_count;
    let mine = if settings.sharded { rank * shard_len..(rank + 1) * shard_len } else { 0..padded_len };
    let mut weights = vec![0.0; padded_len];
    let mut gradients = vec![0.0; padded_len];
    let mut velocity = vec![0.0; mine.len()];

    if rank == 0 {
        weights[..model.weight_count].copy_from_slice(&model.draw_weights(settings.seed));
    }
    communicator.broadcast_in_place(&mut weights, 0)?;
    model.load(&weights)?;
    let first_loss = model.loss(wines)?.to_scalar()?;

    // The parts differ by at most one wine; together they are the batch.
    let part = rank * settings.batch / rank_count..(rank + 1) * settings.batch / rank_count;
    let part_of_batch = part.len() as f64 / settings.batch as f64;
    let mut communicating_s = 0.0;
    let start = Instant::now();
    for step in 0..settings.steps {
        model.gradients(&wines.draw(settings, step, part.clone())?, part_of_batch, &mut gradients)?;
        if settings.sharded {
            timed(&mut communicating_s, || communicator.reduce_scatter_in_place(&mut gradients, Reduction::Sum))?;
            descend(&mut weights[mine.clone()], &gradients[mine.clone()], &mut velocity, settings.learning_rate);
            timed(&mut communicating_s, || communicator.all_gather_in_place(&mut weights))?;
        } else {
            timed(&mut communicating_s, || communicator.all_reduce_in_place(&mut gradients, Reduction::Sum))?;
            descend(&mut weights, &gradients, &mut velocity, settings.learning_rate);
        }
        model.load(&weights)?;
    }
    let training_s = start.elapsed().as_secs_f64();
    let losses = [first_loss, model.loss(wines)?.to_scalar()?];
    weights.truncate(model.weight_count);
    Ok(Outcome { weights, losses, training_s, communicating_s })
}

/// Makes a call and adds the time it took to `total_s`.
fn timed<T>(total_s: &mut f64, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    *total_s += start.elapsed().as_secs_f64();
    result
}

/// One step of gradient descent with momentum. Each weight moves by itself, so any shard of the weights will do.
pub(crate) fn descend(weights: &mut [f32], gradients: &[f32], velocity: &mut [f32], learning_rate: f32) {
    for ((weight, gradient), velocity) in weights.iter_mut().zip(gradients).zip(velocity) {
        *velocity = MOMENTUM * *velocity + gradient;
        *weight -= learning_rate * *velocity;
    }
}

/// Runs `work` in a rayon pool of its own with one thread. candle spreads large matrix products over the pool it runs in,
/// and ranks that shared one would fight over its threads. (From 65536 elements on it also spreads sums and the like, over
/// threads that no rank has to itself: hence the largest batch. CANDLE_NUM_THREADS=1 prevents that too.)
pub(crate) fn single_threaded<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    rayon::ThreadPoolBuilder::new().num_threads(1).build()?.install(work)
}

/// A network of two layers: measurements in, one score per quality out.
pub(crate) struct Model {
    network: Sequential,
    /// All that is trained, in the order in which it lies in the flat vectors.
    variables: Vec<Var>,
    weight_count: usize,
}

impl Model {
    pub(crate) fn new() -> Result<Model> {
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
        let hidden = linear(Wines::MEASUREMENTS, HIDDEN_UNITS, builder.pp("hidden"))?;
        let scores = linear(HIDDEN_UNITS, Wines::QUALITIES, builder.pp("scores"))?;
        // tanh, because a kink (as in relu) could make a difference in rounding a large one.
        let network = seq().add(hidden).add_fn(|hidden| hidden.tanh()).add(scores);
        // Sorted by name: `VarMap` is a hash map, and each rank's would give another order.
        let by_name: BTreeMap<String, Var> = variables.data().lock().unwrap().clone().into_iter().collect();
        let variables: Vec<Var> = by_name.into_values().collect();
        let weight_count = variables.iter().map(|variable| variable.elem_count()).sum();
        Ok(Model { network, variables, weight_count })
    }

    /// First weights: small, on both sides of zero. (candle's own generator cannot be seeded on a CPU.)
    pub(crate) fn draw_weights(&self, seed: u64) -> Vec<f32> {
        (0..self.weight_count).map(|index| random(!seed, index) as f32 / u64::MAX as f32 - 0.5).collect()
    }

    /// Takes the variables from a flat vector; what lies behind the last one is padding.
    pub(crate) fn load(&self, mut weights: &[f32]) -> Result<()> {
        for variable in &self.variables {
            let values = weights.split_off(..variable.elem_count()).ok_or("too few weights")?;
            variable.set(&Tensor::from_slice(values, variable.shape(), &Device::Cpu)?)?;
        }
        Ok(())
    }

    pub(crate) fn loss(&self, wines: &Wines) -> Result<Tensor> {
        Ok(loss::cross_entropy(&self.network.forward(&wines.measurements)?, &wines.qualities)?)
    }

    /// Writes the gradients of `scale` × the mean loss into a flat vector, with zeros in the padding.
    pub(crate) fn gradients(&self, wines: &Wines, scale: f64, mut gradients: &mut [f32]) -> Result<()> {
        let by_variable = (self.loss(wines)? * scale)?.backward()?;
        for variable in &self.variables {
            let values = gradients.split_off_mut(..variable.elem_count()).ok_or("too few gradients")?;
            let gradient = by_variable.get(variable).ok_or("a variable has no gradient")?;
            values.copy_from_slice(&gradient.flatten_all()?.to_vec1()?);
        }
        gradients.fill(0.0);
        Ok(())
    }
}

/// Wines, and how good they were found to be.
pub(crate) struct Wines {
    /// `[wine, measurement]`; over all wines each measurement has mean 0 and deviation 1.
    measurements: Tensor,
    qualities: Tensor, // `[wine]`
}

impl Wines {
    const MEASUREMENTS: usize = 11;
    const QUALITIES: usize = 11; // 0 to 10

    pub(crate) fn load() -> Result<Wines> {
        let wines = linfa_datasets::winequality();
        let measured = wines.records.iter().map(|&value| value as f32).collect();
        let measured = Tensor::from_vec(measured, wines.records.dim(), &Device::Cpu)?;
        let centred = measured.broadcast_sub(&measured.mean_keepdim(0)?)?;
        let measurements = centred.broadcast_div(&centred.sqr()?.mean_keepdim(0)?.sqrt()?)?;
        let qualities: Vec<u32> = wines.targets.iter().map(|&quality| quality as u32).collect();
        Ok(Wines { measurements, qualities: Tensor::new(qualities, &Device::Cpu)? })
    }

    /// A part of a step's batch. Who draws does not matter: the seed decides.
    pub(crate) fn draw(&self, settings: &Settings, step: usize, part: Range<usize>) -> Result<Wines> {
        let wine_count = self.qualities.elem_count() as u64;
        let wine = |place| (random(settings.seed, step * settings.batch + place) % wine_count) as u32;
        let rows = Tensor::from_iter(part.map(wine), &Device::Cpu)?;
        let pick = |all: &Tensor| all.index_select(&rows, 0);
        Ok(Wines { measurements: pick(&self.measurements)?, qualities: pick(&self.qualities)? })
    }
}

/// The number at `index` of the sequence that SplitMix64 (Steele, Lea and Flood 2014) makes from `seed`.
fn random(seed: u64, index: usize) -> u64 {
    let state = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

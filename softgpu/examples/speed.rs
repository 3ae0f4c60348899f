//! How fast kernels run: `cargo run -p softgpu --release --example speed [IMAGE.ptx]`.
//!
//! Prints millions of thread instructions per second and core with the race detector off and on. Without an image it
//! runs a small reduction; with one of tutti's images, its two-source sum.

use std::sync::Arc;
use std::time::Instant;

use softgpu::{Arguments, LaunchOptions, Machine, MemoryKind, Module};

const SUM: &str = include_str!("../tests/sum.ptx");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => SUM.to_owned(),
    };
    let begin = Instant::now();
    let module = Arc::new(Module::parse(&text)?);
    println!("parsed {} KiB in {:.0} ms", text.len() / 1024, begin.elapsed().as_secs_f64() * 1e3);
    let wanted = |name: &&str| name.contains("reduce_copy") && name.ends_with("_sum");
    let kernel = module.kernel_names().find(wanted).or(module.kernel_names().next()).ok_or("no kernel")?.to_owned();
    let bytes = 4u64 << 20;
    for workers in [1, 2] {
        for races in [false, true] {
            let machine = Machine::with_workers(workers);
            let loaded = machine.load(&module, 0)?;
            let data = vec![0x3cu8; bytes as usize];
            let (a, b, c) = (
                machine.allocate(bytes, MemoryKind::Device, 0)?,
                machine.allocate(bytes, MemoryKind::Device, 0)?,
                machine.allocate(bytes, MemoryKind::Device, 0)?,
            );
            machine.write(a, &data)?;
            machine.write(b, &data)?;
            let lists = machine.allocate(64, MemoryKind::Device, 0)?;
            let list: Vec<u8> = [a, b, c].iter().flat_map(|address| address.to_le_bytes()).collect();
            machine.write(lists, &list)?;
            let arguments = if module.parameters(&kernel).is_some_and(|parameters| parameters.len() == 8) {
                Arguments::new().u64(lists).u32(2).u64(lists + 16).u32(1).u64(bytes).f32(1.0).f32(1.0).u32(0)
            } else {
                Arguments::new().u64(a).u64(b).u64(c).u64(bytes)
            };
            for run in 0..2 {
                let options = LaunchOptions {
                    grid: 8.into(),
                    block: 256.into(),
                    arguments: arguments.clone().into_bytes(),
                    races,
                    ..LaunchOptions::default()
                };
                let begin = Instant::now();
                let statistics = machine.run(&loaded, &kernel, options)?;
                let seconds = begin.elapsed().as_secs_f64();
                println!(
                    "{kernel}, {workers} workers, races {}, run {run}: {} thread instructions in {:.1} ms: {:.1} million per second and core",
                    if races { "on " } else { "off" },
                    statistics.thread_instructions,
                    seconds * 1e3,
                    statistics.thread_instructions as f64 / seconds / 1e6 / workers as f64,
                );
            }
        }
    }
    Ok(())
}

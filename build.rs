//! Compiles `kernels/` to PTX, one image for each element type, kind of slots and architecture of the kernel table, and leaves in
//! `OUT_DIR` what the library includes: `images.rs` (the images, or why there are none) and `types.rs` (the table's types).
//!
//! PTX needs a rustc that has its library's sources beside it, since `core` is compiled for the GPU too. Candidates, the
//! first that works: `TUTTI_NVPTX_RUSTC`; the rustc that runs this build; rustup's nightly; the distribution's. Without one
//! the build succeeds, with a warning that names the command which mends it. Environment:
//!
//! - `TUTTI_NVPTX_RUSTC=path`: this compiler and no other, unless it is empty;
//! - `TUTTI_REQUIRE_PTX=1`: no PTX is an error;
//! - `TUTTI_PTX=off`: no PTX, on purpose, for quick builds of everything else.
//!
//! The compiler is called directly rather than through a nested cargo: `kernels/` depends on nothing, `core` is one crate
//! that needs neither its manifest nor the network, and so nothing of this build's environment can leak into that one.
//! Only `core`'s metadata is made: every function of it that the kernels use is compiled into the kernels, which call nothing.
//!
//! Compiled `core` and images are kept in the target directory under a digest of all that they are made from: the profiles
//! (and the test profile beside them) have an `OUT_DIR` each but want the same PTX.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use std::{env, thread};

use tutti_codegen::{ARCHITECTURES, Architecture, DTYPES, DType, Slots, generate, image_file_name};

const TARGET: &str = "nvptx64-nvidia-cuda";

/// The hot loops move one address for each operand. Left to itself, the compiler would move one offset for all of them and add
/// it to each address in every trip, which takes more instructions and more registers.
const LLVM_ARGUMENTS: &str = "-disable-lsr";

/// A pack of 8-bit floats is many numbers, and where no instruction converts them each takes many: the compiler would keep the
/// loops over them, and with these the numbers in memory.
const LLVM_ARGUMENTS_OF_8_BIT_FLOATS: &str = "-disable-lsr -unroll-threshold=1000";

fn llvm_arguments(dtype: &DType) -> &'static str {
    if dtype.is_float8() { LLVM_ARGUMENTS_OF_8_BIT_FLOATS } else { LLVM_ARGUMENTS }
}

/// How long files of other builds stay in the cache.
const KEEP: Duration = Duration::from_secs(24 * 60 * 60);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("cargo::error={}", one_line(&reason));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=TUTTI_PTX");
    println!("cargo::rerun-if-env-changed=TUTTI_NVPTX_RUSTC");
    println!("cargo::rerun-if-changed=kernels/src");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: cargo sets it for build scripts")?);

    write(&out.join("types.rs"), &generate::types())?;
    let required = env::var_os("TUTTI_REQUIRE_PTX").is_some_and(|value| value != "0" && !value.is_empty());
    let images = match env::var("TUTTI_PTX").as_deref() {
        Ok("off") => Err("this build was told to leave it out (TUTTI_PTX=off)".to_owned()),
        Ok(other) if other != "on" && !other.is_empty() => {
            return Err(format!("TUTTI_PTX is {other:?}: expected \"on\" or \"off\""));
        }
        _ => images(&out).inspect_err(|reason| {
            if !required {
                println!("cargo::warning=tutti is built without PTX, so it cannot use GPUs: {}", one_line(reason));
            }
        }),
    };
    if images.is_err() {
        // With PTX it makes no difference.
        println!("cargo::rerun-if-env-changed=TUTTI_REQUIRE_PTX");
    }
    match images {
        Err(reason) if required => Err(format!("TUTTI_REQUIRE_PTX is set, but there is no PTX: {reason}")),
        images => write(&out.join("images.rs"), &images_source(&images)),
    }
}

/// What the library includes as `images.rs`.
fn images_source(images: &Result<Vec<Image>, String>) -> String {
    match images {
        Err(reason) => format!("const IMAGES: Result<&[Image], NoPtx> = Err(NoPtx {{ reason: {reason:?} }});\n"),
        Ok(images) => {
            let rows: Vec<String> = images
                .iter()
                .map(|image| {
                    let (slots, path) = (image.slots, &image.path);
                    let dtype = match DTYPES.iter().position(|row| row == image.dtype) {
                        Some(index) => format!("&tutti_codegen::DTYPES[{index}]"),
                        None => "tutti_codegen::BYTES".to_owned(),
                    };
                    let architecture = ARCHITECTURES.iter().position(|row| row == image.architecture);
                    let architecture = architecture.expect("the image's architecture is a row of the table");
                    format!(
                        "    Image {{ slots: Slots::{slots:?}, dtype: {dtype}, \
                         architecture: &tutti_codegen::ARCHITECTURES[{architecture}], text: include_str!({path:?}) }},\n"
                    )
                })
                .collect();
            format!("const IMAGES: Result<&[Image], NoPtx> = Ok(&[\n{}]);\n", rows.concat())
        }
    }
}

/// An image that lies in `OUT_DIR`.
struct Image {
    dtype: &'static DType,
    slots: Slots,
    architecture: &'static Architecture,
    path: PathBuf,
}

/// Builds all images with the first compiler that can.
fn images(out: &Path) -> Result<Vec<Image>, String> {
    let cache = cache_directory(out);
    fs::create_dir_all(&cache).map_err(|error| format!("cannot create {}: {error}", cache.display()))?;
    // The build scripts of two profiles may run at the same time.
    let lock_path = cache.join("lock");
    let lock = fs::File::create(&lock_path).map_err(|error| format!("cannot open {}: {error}", lock_path.display()))?;
    lock.lock().map_err(|error| format!("cannot lock {}: {error}", lock_path.display()))?;

    let mut refusals = Vec::new();
    for candidate in candidates() {
        let built = candidate.compiler.and_then(|rustc| {
            let compiler = Compiler::check(&rustc)?;
            let images = compiler.images(&cache, out)?;
            println!("cargo::rerun-if-changed={}", compiler.core_source.display());
            Ok(images)
        });
        match built {
            Ok(images) => return Ok(images),
            Err(refusal) => {
                eprintln!("{}: {refusal}", candidate.name);
                let refusal = one_line(&refusal);
                refusals.push(match named_compiler() {
                    Some(_) => refusal,
                    None => format!("{}: {refusal}", candidate.name),
                });
            }
        }
    }
    watch_for_compilers();
    if let Some(path) = named_compiler() {
        // Whoever names a compiler wants to hear of that one, not how to install another.
        return Err(format!(
            "the compiler that TUTTI_NVPTX_RUSTC names, {}, cannot make it: {}; name another, or unset the variable and \
             the build looks for one",
            path.display(),
            refusals.join("; ")
        ));
    }
    let command = if Path::new("/usr/bin/apt-get").exists() {
        "apt-get install rustc-web rust-web-src"
    } else {
        "rustup toolchain install nightly --component rust-src"
    };
    Err(format!("no Rust compiler here can make it; to mend that: {command} ({})", refusals.join("; ")))
}

/// A compiler to try.
struct Candidate {
    name: &'static str,
    compiler: Result<PathBuf, String>,
}

/// The compiler that the user wants and no other.
fn named_compiler() -> Option<PathBuf> {
    env::var_os("TUTTI_NVPTX_RUSTC").filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn candidates() -> Vec<Candidate> {
    if let Some(path) = named_compiler() {
        return vec![Candidate { name: "TUTTI_NVPTX_RUSTC", compiler: Ok(path) }];
    }
    let running = env::var_os("RUSTC").map(PathBuf::from).ok_or_else(|| "RUSTC is not set".to_owned());
    let nightly = output(Command::new("rustup").args(["which", "--toolchain", "nightly", "rustc"])).map(PathBuf::from);
    let distribution = PathBuf::from("/usr/bin/rustc");
    let distribution = if distribution.exists() { Ok(distribution) } else { Err("there is none".to_owned()) };
    vec![
        Candidate { name: "the rustc that runs this build", compiler: running },
        Candidate { name: "rustup's nightly", compiler: nightly },
        Candidate { name: "the distribution's rustc", compiler: distribution },
    ]
}

/// Makes cargo ask again when a compiler may have come: where one would be, what changes when it is installed. Only paths
/// that exist, since cargo takes a missing one for a change.
fn watch_for_compilers() {
    let mut paths = vec![PathBuf::from("/usr/bin")];
    if let Some(home) =
        env::var_os("RUSTUP_HOME").map(PathBuf::from).or_else(|| env::home_dir().map(|home| home.join(".rustup")))
    {
        paths.push(home.join("update-hashes"));
    }
    for candidate in candidates() {
        if let Ok(rustc) = candidate.compiler
            && let Ok(sysroot) = output(clean(&mut Command::new(rustc)).args(["--print", "sysroot"]))
        {
            paths.push(Path::new(&sysroot).join("lib/rustlib/components"));
        }
    }
    for path in paths.iter().filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// A compiler that has what PTX needs.
struct Compiler {
    rustc: PathBuf,
    /// What it says about itself.
    version: String,
    /// `core`'s root.
    core_source: PathBuf,
}

impl Compiler {
    fn check(rustc: &Path) -> Result<Compiler, String> {
        let version = output(clean(&mut Command::new(rustc)).arg("-vV"))?;
        let sysroot = output(clean(&mut Command::new(rustc)).args(["--print", "sysroot"]))?;
        let core_source = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core/src/lib.rs");
        if !core_source.exists() {
            return Err(format!("it has no library sources ({} is missing)", core_source.display()));
        }
        Ok(Compiler { rustc: rustc.to_owned(), version, core_source })
    }

    /// A command that compiles for the GPU.
    fn compile(&self, edition: &str, crate_name: &str, source: &Path) -> Command {
        let mut command = Command::new(&self.rustc);
        clean(&mut command)
            // `core` and the kernels use unstable features; this lets a stable compiler have them.
            .env("RUSTC_BOOTSTRAP", "1")
            .args(["--edition", edition, "--crate-name", crate_name, "--crate-type", "lib", "--target", TARGET])
            .args(["-Cpanic=abort", "-Copt-level=3", "-Ccodegen-units=1", "--cap-lints=allow"])
            .arg(source);
        command
    }

    /// Makes what is not in the cache, and copies all images to `out`.
    fn images(&self, cache: &Path, out: &Path) -> Result<Vec<Image>, String> {
        let kernels = Path::new("kernels/src");
        let sysroot = self.core(cache)?;
        let sources = self.sources(kernels, &sysroot, cache)?;
        let kernels_digest = digest_of_files(&sources)?;
        let mut jobs = Vec::new();
        let mut images = Vec::new();
        for (slots, dtype, architecture) in tutti_codegen::images() {
            let entries = generate::entry_points(slots, dtype, architecture);
            let file_name = image_file_name(slots, dtype.name, architecture.name);
            let entries_path = out.join(format!("{file_name}.rs"));
            write(&entries_path, &entries)?;
            let arguments = llvm_arguments(dtype);
            let made_from = (&self.version, kernels_digest, &entries, architecture.name, architecture.ptx, arguments);
            let cached = cache.join(format!("{:016x}.{file_name}", digest(&made_from)));
            if !cached.exists() {
                jobs.push(Job { dtype, architecture, entries: entries_path, cached: cached.clone() });
            }
            images.push((cached, Image { dtype, slots, architecture, path: out.join(file_name) }));
        }
        if !jobs.is_empty() {
            let made = in_parallel(&jobs, |job| self.image(job, kernels, &sysroot));
            // Images of sources that changed under the compiler would be found under the digest of the old ones.
            if digest_of_files(&sources)? != kernels_digest {
                for job in &jobs {
                    let _ = fs::remove_file(&job.cached);
                }
                return Err("the kernels' sources changed while they were compiled; build again".to_owned());
            }
            made?;
        }
        let used: Vec<&PathBuf> = images.iter().map(|(cached, _)| cached).collect();
        prune(cache, &used);
        for (cached, image) in &images {
            fs::copy(cached, &image.path)
                .map_err(|error| format!("cannot copy {} to {}: {error}", cached.display(), image.path.display()))?;
        }
        Ok(images.into_iter().map(|(_, image)| image).collect())
    }

    /// The files that images are made of; what only the host compiles is not among them. (The newest architecture has modules
    /// that older ones lack, and none lacks one of theirs.)
    fn sources(&self, kernels: &Path, sysroot: &Path, cache: &Path) -> Result<Vec<PathBuf>, String> {
        let newest = ARCHITECTURES.last().ok_or("the kernel table has no architectures")?;
        let list = cache.join("sources.d");
        let no_entries = cache.join("no_entries.rs");
        write(&no_entries, "")?;
        output(
            self.compile("2024", "tutti_kernels", &kernels.join("lib.rs"))
                .env("TUTTI_ENTRIES", &no_entries)
                .arg(format!("-Ctarget-cpu={}", newest.name))
                .arg("--sysroot")
                .arg(sysroot)
                .arg(format!("--emit=dep-info={}", list.display())),
        )?;
        let text = fs::read_to_string(&list).map_err(|error| format!("cannot read {}: {error}", list.display()))?;
        // As a Makefile: each file has a line of its own, that says that nothing makes it.
        let files = text.lines().filter_map(|line| line.strip_suffix(':')).map(PathBuf::from);
        let mut files: Vec<PathBuf> = files.filter(|path| path.starts_with(kernels)).collect();
        files.sort();
        if files.len() < 2 {
            return Err(format!("{} lists no sources of the kernels", list.display()));
        }
        Ok(files)
    }

    /// A sysroot that holds `core`'s metadata, and an empty `compiler_builtins` because the compiler asks for one.
    fn core(&self, cache: &Path) -> Result<PathBuf, String> {
        let sysroot = cache.join(format!("core-{:016x}", digest(&(&self.version, LLVM_ARGUMENTS))));
        let libraries = Path::new("lib/rustlib").join(TARGET).join("lib");
        if sysroot.exists() {
            return Ok(sysroot);
        }
        // Made beside its place and then renamed, so that an interrupted build leaves nothing that looks whole.
        let unfinished = cache.join("core-unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)
                .map_err(|error| format!("cannot remove {}: {error}", unfinished.display()))?;
        }
        let into = unfinished.join(&libraries);
        fs::create_dir_all(&into).map_err(|error| format!("cannot create {}: {error}", into.display()))?;
        let manifest = self.core_source.with_file_name("../Cargo.toml");
        let edition = fs::read_to_string(&manifest)
            .ok()
            .and_then(|text| {
                Some(text.lines().find_map(|line| line.strip_prefix("edition = "))?.trim_matches('"').to_owned())
            })
            .ok_or_else(|| format!("{} states no edition", manifest.display()))?;
        output(
            self.compile(&edition, "core", &self.core_source)
                .args(["--emit=metadata", "-Zalways-encode-mir", "--out-dir"])
                .arg(&into),
        )?;
        let builtins = unfinished.join("compiler_builtins.rs");
        write(&builtins, "#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n")?;
        output(
            self.compile("2024", "compiler_builtins", &builtins)
                .args(["--emit=metadata", "--out-dir"])
                .arg(&into)
                .arg("--sysroot")
                .arg(&unfinished),
        )?;
        fs::rename(&unfinished, &sysroot).map_err(|error| format!("cannot make {}: {error}", sysroot.display()))?;
        Ok(sysroot)
    }

    /// Makes one image.
    fn image(&self, job: &Job, kernels: &Path, sysroot: &Path) -> Result<(), String> {
        // The compiler leaves files beside its output while it works, under names that other images' would share.
        let workplace = job.cached.with_extension("unfinished");
        fs::create_dir_all(&workplace).map_err(|error| format!("cannot create {}: {error}", workplace.display()))?;
        let ptx = job.architecture.ptx;
        output(
            self.compile("2024", "tutti_kernels", &kernels.join("lib.rs"))
                .env("TUTTI_ENTRIES", &job.entries)
                .arg(format!("-Ctarget-cpu={}", job.architecture.name))
                .arg(format!("-Ctarget-feature=+ptx{}{}", ptx.major, ptx.minor))
                .arg(format!("-Cllvm-args={}", llvm_arguments(job.dtype)))
                .arg("--sysroot")
                .arg(sysroot)
                .arg("--emit=asm")
                .arg("--out-dir")
                .arg(&workplace),
        )
        .map_err(|error| format!("{} for {}: {error}", job.dtype.name, job.architecture.name))?;
        let finish = || {
            let text = fs::read_to_string(workplace.join("tutti_kernels.s"))?;
            let whole = workplace.join("whole");
            fs::write(&whole, without_comments(&text))?;
            fs::rename(whole, &job.cached)?;
            fs::remove_dir_all(&workplace)
        };
        finish().map_err(|error| format!("cannot make {}: {error}", job.cached.display()))
    }
}

/// An image to make.
struct Job {
    dtype: &'static DType,
    architecture: &'static Architecture,
    entries: PathBuf,
    cached: PathBuf,
}

/// The compiler marks each line of `asm!` before and after: a third of the text, which the driver would read each time.
fn without_comments(ptx: &str) -> String {
    let lines = ptx.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Does all jobs, as many at a time as cargo allows; the first error, if there is one.
fn in_parallel<T: Sync>(jobs: &[T], run: impl Fn(&T) -> Result<(), String> + Sync) -> Result<(), String> {
    let workers = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1).clamp(1, jobs.len());
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            run(job).inspect_err(|_| next.store(jobs.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a worker panicked".to_owned())))
    })
}

/// A place that all profiles of one target directory share: beside them, where cargo's layout is the one that is known, and
/// otherwise this profile's own.
fn cache_directory(out: &Path) -> PathBuf {
    let profile =
        out.ancestors().find(|path| path.file_name().is_some_and(|name| name == "build")).and_then(Path::parent);
    profile.and_then(Path::parent).unwrap_or(out).join("tutti-ptx")
}

/// Removes what interrupted builds left (no other build is at work, we hold the lock), and images that this build does not use
/// and that are old enough for no other branch to want them back. What cannot be removed costs some space and nothing else.
fn prune(cache: &Path, used: &[&PathBuf]) {
    let Ok(files) = fs::read_dir(cache) else { return };
    for path in files.flatten().map(|file| file.path()) {
        let old = fs::metadata(&path)
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|modified| SystemTime::now().duration_since(modified).is_ok_and(|age| age > KEEP));
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("unfinished") => drop(fs::remove_dir_all(&path)),
            Some("ptx") if old && !used.contains(&&path) => drop(fs::remove_file(&path)),
            _ => {}
        }
    }
}

/// Takes from the command what cargo and the user have set for this build.
fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO") || name_text.starts_with("RUSTFLAGS") || name_text.starts_with("RUSTC") {
            command.env_remove(&name);
        }
    }
    command
}

/// What the command prints, or why it failed.
fn output(command: &mut Command) -> Result<String, String> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    eprintln!("{stderr}");
    let first = stderr.lines().find(|line| line.contains("error")).unwrap_or("it says nothing about why");
    Err(format!("{program} failed ({}): {first}", output.status))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A digest of files, by name and content.
fn digest_of_files(paths: &[PathBuf]) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    for path in paths {
        path.hash(&mut hasher);
        fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Cargo's messages end with their line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

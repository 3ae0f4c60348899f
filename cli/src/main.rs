//! The `tutti` command: measures collectives, reduces files, shows devices, prints plans and kernels.
//!
//! One file holds one command. Everything the commands say about failures is printed here, and the exit code is made here:
//! 0 when all is well, 1 when data, results or the machine are wrong, 2 when the command line is, 3 when a check was asked for
//! and could not be made.

#![forbid(unsafe_code)]

mod advise;
mod cluster;
mod failure;
mod guarded;
mod inputs;
mod machine;
mod names;
mod output;
mod perf;
mod plan;
mod ptx;
mod ranks;
mod reduce;
mod shown;
mod simulate;
mod size;
mod table;
mod tensors;
mod topo;
mod train_cost;

use clap::{CommandFactory, FromArgMatches, Parser};
use failure::Failure;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// Collectives as verified plans: measure them, reduce files with them, look into them
#[derive(Debug, Parser)]
#[command(name = "tutti", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Perf(Box<perf::PerfArgs>),
    Reduce(reduce::ReduceArgs),
    Topo(topo::TopoArgs),
    Plan(plan::PlanArgs),
    Simulate(Box<simulate::SimulateArgs>),
    Advise(advise::AdviseArgs),
    TrainCost(train_cost::TrainCostArgs),
    Ptx(ptx::PtxArgs),
}

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(answer) => return refuse(&answer),
    };
    let result = match cli.command {
        Command::Perf(args) => perf::run(&args),
        Command::Reduce(args) => reduce::run(&args),
        Command::Topo(args) => topo::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::TrainCost(args) => train_cost::run(&args),
        Command::Ptx(args) => ptx::run(&args),
    };
    match result {
        Ok(()) | Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(Failure::Failed(reason)) => {
            tell("error", &reason);
            ExitCode::from(1)
        }
        Err(Failure::Unchecked(reason)) => {
            tell("error", &reason);
            ExitCode::from(3)
        }
        Err(Failure::Usage(reason)) => {
            tell("error", &reason);
            tell("help", "see tutti --help, or tutti COMMAND --help");
            ExitCode::from(2)
        }
    }
}

/// The command line. A number below zero is a wrong value of the flag before it, not a flag of its own.
fn parse() -> Result<Cli, clap::Error> {
    let is_flag = |arg: &clap::Arg| !arg.is_positional() && arg.get_action().takes_values();
    let command = Cli::command().mut_subcommands(|command| {
        command.mut_args(|arg| if is_flag(&arg) { arg.allow_negative_numbers(true) } else { arg })
    });
    Cli::from_arg_matches(&command.try_get_matches()?)
}

/// What clap has to say about the command line: help and version, or what is wrong with it.
fn refuse(answer: &clap::Error) -> ExitCode {
    // With its colours, unless there is something of the caller's that must not reach a terminal.
    let harmless = |arg: OsString| arg.to_str().is_some_and(|arg| shown::harmless(arg) == arg);
    let printed = if std::env::args_os().all(harmless) {
        answer.print()
    } else {
        write!(io::stderr(), "{}", shown::harmless(&answer.render().to_string()))
    };
    match (answer.use_stderr(), printed) {
        (true, _) => ExitCode::from(2),
        (false, Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
            tell("error", &format!("cannot write to standard output: {error}"));
            ExitCode::from(1)
        }
        (false, _) => ExitCode::SUCCESS,
    }
}

/// Says what is doubtful but no failure.
fn warn(text: &str) {
    tell("warning", text);
}

/// A line on standard error, as clap writes its own; if nobody reads it, there is nobody to tell.
fn tell(kind: &str, text: &str) {
    let _ = writeln!(io::stderr(), "{kind}: {}", shown::harmless(text));
}

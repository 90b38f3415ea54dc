//! The beginning and the end of a component's process: its command line, its log, its runtime, its exit code.

use std::ffi::OsString;
use std::future::Future;
use std::process::ExitCode;

use clap::Command;

use crate::Fault;
use crate::flags::{self, Exit, Flags};
use crate::shutdown::{self, Shutdown};

/// Runs a component to its end. The arguments start with the program's name. `run` gets the flags and a token that
/// SIGTERM and SIGINT cancel; it returns when all is put in order.
pub fn main<F, Fut>(command: Command, args: Vec<OsString>, run: F) -> ExitCode
where
    F: FnOnce(Flags, Shutdown) -> Fut,
    Fut: Future<Output = Result<(), Fault>>,
{
    let flags = match flags::parse(command, args.into_iter().skip(1)) {
        Ok(flags) => flags,
        Err(Exit::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Exit::Refuse(text)) => {
            eprintln!("Error: {text}");
            return ExitCode::FAILURE;
        }
    };
    crate::logging::init(flags.logging());
    crate::tls::install();
    match start(flags, run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!(%why, "command failed");
            eprintln!("Error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn start<F, Fut>(flags: Flags, run: F) -> Result<(), Fault>
where
    F: FnOnce(Flags, Shutdown) -> Fut,
    Fut: Future<Output = Result<(), Fault>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let shutdown = shutdown::on_signals()?;
        run(flags, shutdown).await
    });
    // What still blocks a thread (a name look-up, a file) does not hold up the end.
    runtime.shutdown_background();
    outcome
}

//! The beginning and the end of a component's process: its command line, its log, its runtime, its exit code.

use std::ffi::OsString;
use std::future::Future;
use std::process::ExitCode;

use clap::Command;
use tokio::runtime::{Builder, Runtime};

use crate::Fault;
use crate::flags::{self, Exit, Flags};
use crate::shutdown::{self, Shutdown};

/// How many threads run a component's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One, for what waits most of its time: a wake-up that a second thread has to be told of costs twice.
    One,
    /// One per processor, for what others wait for.
    PerProcessor,
}

impl Threads {
    /// A runtime with so many threads.
    ///
    /// # Errors
    /// When the system has no threads or descriptors left for it.
    pub fn runtime(self) -> std::io::Result<Runtime> {
        let mut builder = match self {
            Self::One => Builder::new_current_thread(),
            Self::PerProcessor => Builder::new_multi_thread(),
        };
        builder.enable_all().build()
    }
}

/// Runs a component to its end. The arguments start with the program's name. `run` gets the flags and a token that
/// SIGTERM and SIGINT cancel; it returns when all is put in order.
pub fn main<F, Fut>(command: Command, args: Vec<OsString>, threads: Threads, run: F) -> ExitCode
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
    for what in flags.idle() {
        tracing::warn!(what, "this has no effect here");
    }
    match start(flags, threads, run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!(%why, "command failed");
            eprintln!("Error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn start<F, Fut>(flags: Flags, threads: Threads, run: F) -> Result<(), Fault>
where
    F: FnOnce(Flags, Shutdown) -> Fut,
    Fut: Future<Output = Result<(), Fault>>,
{
    let runtime = threads.runtime()?;
    let outcome = runtime.block_on(async {
        let shutdown = shutdown::on_signals()?;
        run(flags, shutdown).await
    });
    // What still blocks a thread (a name look-up, a file) does not hold up the end.
    runtime.shutdown_background();
    outcome
}

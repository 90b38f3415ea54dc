//! Takes the figures that the project promises, and says how each was taken.
//!
//! ```text
//!   main ─► TABLE: a row per bench ─► start, rest, load, control-plane, up, idle ─► Figures ─► lines, or JSON
//!                                       │
//!                                       └─► server (an API server on an empty etcd), process (what /proc says), http
//! ```
//!
//! Contract: a bench starts what it measures, in a directory of its own on ports that the system chose, and takes it
//! down again, also when it fails or is interrupted. Figures are printed, never asserted: time moves with the machine's
//! noise. What was measured, and on which machine, is kept in `README.md` beside this file.
//!
//! `--server` measures another kube-apiserver (upstream's) in the same way.

mod cluster;
mod etcd;
mod figure;
mod http;
mod idle;
mod load;
mod pki;
mod process;
mod server;
mod start;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use futures::future::BoxFuture;

use figure::Figure;

/// Why a figure could not be taken.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;
/// Result of a bench.
pub type Result<T> = std::result::Result<T, Fault>;

/// Takes figures of Navarch, or of another kube-apiserver.
#[derive(Debug, Clone, Parser)]
#[command(name = "bench", max_term_width = 120)]
pub struct Settings {
    /// What to take; without any, the list is printed.
    names: Vec<String>,
    /// The kube-apiserver to measure; a program called `navarch` is given the component's name.
    #[arg(long)]
    server: Option<PathBuf>,
    /// Further flags of that server, by spaces.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    server_flags: String,
    /// The program that brings clusters up: the one built beside this one.
    #[arg(long)]
    navarch: Option<PathBuf>,
    /// The etcd to run.
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// State directory of a cluster that runs already (for `idle`).
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A second kube-apiserver, measured in turn with the first (for `load`).
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Only the measures of `load` whose names hold one of these words, by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How often each measure of `load` is taken.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// How often what is short is repeated.
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// Seconds to wait before something counts as idle.
    #[arg(long, default_value_t = 30)]
    settle: u64,
    /// Seconds for which something idle is watched.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Print one JSON object per figure.
    #[arg(long)]
    json: bool,
}

impl Settings {
    /// The `navarch` program.
    fn navarch(&self) -> Result<PathBuf> {
        match &self.navarch {
            Some(path) => Ok(path.clone()),
            None => Ok(std::env::current_exe()?.with_file_name("navarch")),
        }
    }

    /// The program of the API server.
    fn server(&self) -> Result<PathBuf> {
        self.server.clone().map_or_else(|| self.navarch(), Ok)
    }
}

/// A bench: its name, what it takes, and how.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: for<'a> fn(&'a Settings) -> BoxFuture<'a, Result<Vec<Figure>>>,
}

const TABLE: &[Bench] = &[
    Bench {
        name: "start",
        about: "the API server alone: from exec to the first 200 of /readyz",
        run: |s| Box::pin(start::run(s)),
    },
    Bench {
        name: "rest",
        about: "the API server alone, idle: resident memory, CPU, requests to etcd",
        run: |s| Box::pin(idle::alone(s)),
    },
    Bench {
        name: "load",
        about: "the API server alone with 10,000 pods: CPU of reads, watches and writes, many at a time",
        run: |s| Box::pin(load::run(s)),
    },
    Bench {
        name: "control-plane",
        about: "navarch up --control-plane-only, from exec to its end, etcd included",
        run: |s| Box::pin(cluster::control_plane(s)),
    },
    Bench {
        name: "up",
        about: "navarch up: a whole cluster until node Ready and DNS answers (takes root; one on a machine)",
        run: |s| Box::pin(cluster::whole(s)),
    },
    Bench {
        name: "idle",
        about: "CPU of every component and requests to etcd: of the cluster of --dir, else of a control plane",
        run: |s| Box::pin(idle::cluster(s)),
    },
];

fn main() -> ExitCode {
    let settings = Settings::parse();
    let chosen: Vec<&Bench> = TABLE.iter().filter(|b| settings.names.iter().any(|n| n == b.name)).collect();
    if chosen.len() != settings.names.len() || chosen.is_empty() {
        eprintln!("Benches:");
        TABLE.iter().for_each(|b| eprintln!("  {:<14} {}", b.name, b.about));
        return if settings.names.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    // Both of rustls' users in this program must find the same provider.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match run(&settings, &chosen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings, chosen: &[&Bench]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        for bench in chosen {
            let figures = tokio::select! {
                figures = (bench.run)(settings) => figures.map_err(|why| format!("{}: {why}", bench.name))?,
                // Returning drops what the bench started, which ends it.
                interrupted = tokio::signal::ctrl_c() => return Err(interrupted.err().map_or("interrupted".into(), Into::into)),
            };
            for figure in figures {
                println!("{}", if settings.json { figure.json(bench.name) } else { figure.line(bench.name) });
            }
        }
        Ok(())
    })
}

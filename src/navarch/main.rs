//! The one binary: every component of the cluster under its upstream name, and the cluster's own life.
//!
//! ```text
//!   kube-apiserver --etcd-servers …            the name it is called by says which component it is
//!   navarch kube-apiserver --etcd-servers …    or the first argument does
//!   navarch up | down | certs | etcd …         the life of a cluster on this machine
//! ```

mod cluster;
mod life;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// A component: its upstream name, and what runs it. The arguments start with that name.
type Component = (&'static str, fn(Vec<OsString>) -> ExitCode);

/// Every component. Each crate's `main` parses its own flags, which are upstream's.
const COMPONENTS: &[Component] = &[
    ("kube-apiserver", apiserver::main),
    ("kube-controller-manager", controllers::main),
    ("kube-scheduler", scheduler::main),
    ("kubelet", kubelet::main),
    ("kube-proxy", proxy::main),
    ("dns", dns::main),
];

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn component(name: &str) -> Option<&'static Component> {
    COMPONENTS.iter().find(|(known, _)| *known == name)
}

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    let called = args.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    if let Some((_, main)) = component(&called.to_string_lossy()) {
        return main(args);
    }
    let first = args.get(1).map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
    match component(&first) {
        Some((_, main)) => {
            args.remove(0);
            main(args)
        }
        None => life::main(args),
    }
}

//! The API server alone: builds in a fraction of the time that the whole binary takes, for work on this room
//! (`BINARY=target/release/examples/kube-apiserver hack/golden`).

fn main() -> std::process::ExitCode {
    apiserver::main(std::env::args_os().collect())
}

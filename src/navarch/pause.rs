//! The program that holds a pod's namespaces: waits, reaps what is left to it, ends when asked to.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

fn main() {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGCHLD] {
        signals.add(signal);
    }
    // Blocked signals are kept for wait(), also those that the first process of a namespace would never see else.
    if signals.thread_block().is_err() {
        std::process::exit(1);
    }
    loop {
        match signals.wait() {
            Ok(Signal::SIGCHLD) => reap(),
            _ => return,
        }
    }
}

fn reap() {
    while let Ok(status) = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}

//! How the one binary is linked: its 130,000 relative relocations packed into a few kilobytes (DT_RELR) instead of three
//! megabytes that every process would read, and keep, at its start. glibc knows the form since 2.36 (Debian 12).

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if glibc().is_some_and(|version| version >= (2, 36)) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's C library, if it is that one.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

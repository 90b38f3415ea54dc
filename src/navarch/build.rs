//! How the one binary is linked: its 130,000 relative relocations packed into a few kilobytes (DT_RELR, which glibc
//! knows since 2.36) instead of three megabytes that every process would read, and keep, at its start.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}

//! What we say we are.

/// Version of Kubernetes whose behaviour this is.
pub const KUBERNETES: &str = "1.36.2";
/// Major and minor version of the API.
pub const MAJOR_MINOR: (u32, u32) = (1, 36);
/// `gitVersion`: the version of Kubernetes and our own as build metadata.
pub const GIT_VERSION: &str = concat!("v1.36.2+navarch.", env!("CARGO_PKG_VERSION"));

/// What `--version` prints.
pub fn line() -> String {
    format!("Kubernetes {GIT_VERSION}")
}

/// Operating system and architecture as Go names them (`linux/amd64`).
pub fn platform() -> String {
    format!("{}/{}", std::env::consts::OS, architecture())
}

/// Architecture as Go names it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

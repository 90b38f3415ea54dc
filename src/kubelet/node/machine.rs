//! Facts about the machine.

use std::fs;
use std::path::Path;

/// What does not change while the kubelet runs, and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Processors.
    pub cpus: i64,
    /// Memory in bytes.
    pub memory: i64,
    /// Swap in bytes.
    pub swap: i64,
    /// Id of the installation.
    pub machine_id: String,
    /// Id of the hardware.
    pub system_uuid: String,
    /// Id of this boot.
    pub boot_id: String,
    /// Version of the kernel.
    pub kernel: String,
    /// Name of the distribution.
    pub os_image: String,
    /// Huge pages by size in bytes: how many there are.
    pub huge_pages: Vec<(i64, i64)>,
}

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A field of /proc/meminfo in bytes.
pub fn memory_field(name: &str) -> i64 {
    let table = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<i64>().ok());
    kib.unwrap_or(0) * 1024
}

/// A number that is all of a file.
pub fn number(path: &str) -> Option<u64> {
    text(path)?.parse().ok()
}

/// How many processes and threads there are.
pub fn processes() -> Option<u64> {
    text("/proc/loadavg")?.split_whitespace().nth(3)?.split('/').nth(1)?.parse().ok()
}

impl Machine {
    /// Looks at the machine.
    pub fn read() -> Self {
        let first = |paths: &[&str]| paths.iter().find_map(|path| text(path)).unwrap_or_default();
        let uname = nix::sys::utsname::uname().ok();
        let kernel = uname.map(|uname| uname.release().to_string_lossy().into_owned()).unwrap_or_default();
        let machine_id = first(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
        let uuid = first(&["/sys/class/dmi/id/product_uuid", "/proc/device-tree/vm,uuid"]);
        Self {
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as i64),
            memory: memory_field("MemTotal"),
            swap: memory_field("SwapTotal"),
            system_uuid: if uuid.is_empty() { machine_id.clone() } else { uuid },
            machine_id,
            boot_id: first(&["/proc/sys/kernel/random/boot_id"]),
            kernel,
            os_image: os_image(),
            huge_pages: huge_pages(),
        }
    }

    /// Sizes of huge pages as the runtime names them (`2MB`, `1GB`).
    pub fn huge_page_names(&self) -> Vec<String> {
        let name = |size: i64| match size {
            size if size % (1 << 30) == 0 => format!("{}GB", size >> 30),
            size if size % (1 << 20) == 0 => format!("{}MB", size >> 20),
            size => format!("{}KB", size >> 10),
        };
        self.huge_pages.iter().map(|(size, _)| name(*size)).collect()
    }
}

fn os_image() -> String {
    let release = fs::read_to_string("/etc/os-release").or_else(|_| fs::read_to_string("/usr/lib/os-release"));
    let release = release.unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Unknown".into(), |name| name.trim_matches('"').to_owned())
}

fn huge_pages() -> Vec<(i64, i64)> {
    let entries = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let mut found: Vec<(i64, i64)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kib: i64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count = text(&entry.path().join("nr_hugepages").display().to_string())?.parse().ok()?;
            Some((kib * 1024, count))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Capacity and free bytes, inodes and free inodes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Bytes.
    pub capacity: u64,
    /// Bytes that are free.
    pub available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

impl Disk {
    /// Looks at the file system that holds `path`.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let stat = nix::sys::statvfs::statvfs(path)?;
        let unit = stat.fragment_size();
        Ok(Self {
            capacity: stat.blocks() * unit,
            available: stat.blocks_available() * unit,
            inodes: stat.files(),
            inodes_free: stat.files_available(),
        })
    }
}

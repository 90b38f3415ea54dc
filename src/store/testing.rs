//! An etcd of a test's own, for the tests of this and other rooms: free ports, a directory that goes away, and a
//! process that ends with the value that stands for it, also when the test fails.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long etcd may take to come up on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running etcd.
pub struct Server {
    directory: PathBuf,
    port: u16,
    peer: u16,
    process: Option<Child>,
}

impl Server {
    /// Starts an empty etcd; `None`, and a line that says so, where the program is missing.
    ///
    /// # Panics
    /// When etcd is there but does not come up.
    pub fn start() -> Option<Self> {
        if !Path::new("/usr/bin/etcd").exists() {
            println!("skipped: /usr/bin/etcd is not there (Debian's etcd-server)");
            return None;
        }
        // A port that was free a moment ago may be taken now: then another.
        for _ in 0..5 {
            let mut server = Self { directory: directory(), port: free_port(), peer: free_port(), process: None };
            if server.launch() {
                return Some(server);
            }
        }
        panic!("etcd did not come up");
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends the process at once, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself; either way it is gone after the wait.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it again on the same data and port.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.launch(), "etcd did not come up again");
    }

    /// Stops the process where it is (`SIGSTOP`), or lets it go on.
    pub fn pause(&self, paused: bool) {
        if let Some(process) = &self.process {
            let signal = if paused { "-STOP" } else { "-CONT" };
            let done = Command::new("kill").arg(signal).arg(process.id().to_string()).status();
            assert!(done.is_ok_and(|s| s.success()), "etcd could not be signalled");
        }
    }

    fn launch(&mut self) -> bool {
        let (client, peer) = (self.url(), format!("http://127.0.0.1:{}", self.peer));
        let log = std::fs::File::create(self.directory.join("log")).expect("a log file in the temporary directory");
        let process = Command::new("/usr/bin/etcd")
            .args(["--name", "t", "--logger", "zap", "--log-level", "warn"])
            .arg("--data-dir")
            .arg(self.directory.join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("t={peer}")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.process = Some(process);
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            match self.process.as_mut().map(Child::try_wait) {
                Some(Ok(None)) => std::thread::sleep(Duration::from_millis(5)),
                _ => break,
            }
        }
        self.kill();
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            println!("{}: {error}", self.directory.display());
        }
    }
}

/// A port that nobody listened on a moment ago.
///
/// # Panics
/// When there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

fn directory() -> PathBuf {
    let unique = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let path = std::env::temp_dir().join(format!("navarch-etcd-{}-{unique}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a temporary directory");
    path
}

//! Reads container logs as the runtime writes them: `<time> <stream> <P|F> <text>` per line, where P says that the line
//! goes on. A reader that follows stays with its file while it is rotated away, and then goes through every file that
//! came after it.

use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::Timestamp;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, BufReader};
use tokio::sync::mpsc;

/// What of a log is wanted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Go on when the end is reached, as long as the container runs.
    pub follow: bool,
    /// Only the last lines.
    pub tail: Option<u64>,
    /// Only what was written at or after this time.
    pub since: Option<Timestamp>,
    /// Put the time before each line.
    pub timestamps: bool,
    /// Stop after so many bytes.
    pub limit: Option<u64>,
    /// Only one stream: `stdout` or `stderr`.
    pub stream: Option<&'static str>,
}

/// One line of the file.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    time: &'a str,
    stream: &'a str,
    partial: bool,
    text: &'a [u8],
}

/// Takes a line apart; `None` when it is not in the runtime's format.
fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let mut word = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
    let (time, stream, tags) = (word()?, word()?, word()?);
    if !matches!(stream, "stdout" | "stderr") {
        return None;
    }
    let partial = tags.split(':').next() == Some("P");
    Some(Line { time, stream, partial, text: parts.next().unwrap_or_default() })
}

/// A time with nine digits after the point, as upstream prints it.
fn nine_digits(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string(),
        Err(_) => time.to_owned(),
    }
}

/// Picks lines and shapes them.
struct Shaper {
    options: Options,
    left: Option<u64>,
    in_line: bool,
}

impl Shaper {
    fn new(options: Options) -> Self {
        Self { left: options.limit, options, in_line: false }
    }

    fn full(&self) -> bool {
        self.left == Some(0)
    }

    /// What the reader gets for a line of the file.
    fn shape(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let raw = raw.strip_suffix(b"\n").unwrap_or(raw);
        let Some(line) = parse(raw) else {
            tracing::debug!("a line of a container log is not in the runtime's format");
            return;
        };
        if self.options.stream.is_some_and(|wanted| wanted != line.stream) {
            return;
        }
        if let Some(since) = self.options.since
            && line.time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return;
        }
        if self.options.timestamps && !self.in_line {
            out.extend_from_slice(nine_digits(line.time).as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(line.text);
        self.in_line = line.partial;
        if !line.partial {
            out.push(b'\n');
        }
        if let Some(left) = &mut self.left {
            let added = (out.len() - start) as u64;
            if added > *left {
                out.truncate(start + *left as usize);
            }
            *left -= added.min(*left);
        }
    }
}

/// Is the container still running? Asked at the end of the file.
pub type Running = Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// A log as a stream of bytes. Dropping the receiver ends the reading.
pub fn stream(path: PathBuf, options: Options, running: Running) -> mpsc::Receiver<io::Result<Bytes>> {
    let (send, receive) = mpsc::channel(16);
    tokio::spawn(async move {
        if let Err(error) = read(&path, options, running, &send).await {
            // The reader may be gone already; then nobody waits for the error.
            let _ = send.send(Err(error)).await;
        }
    });
    receive
}

/// Pieces are sent when they have grown to this.
const PIECE: usize = 32 * 1024;
/// How often the end of a followed file is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How often the container is asked about.
const ASK: u32 = 10;

async fn read(
    path: &Path, options: Options, running: Running, send: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let mut file = File::open(path).await?;
    if let Some(lines) = options.tail {
        let start = tail_start(&mut file, lines).await?;
        file.seek(io::SeekFrom::Start(start)).await?;
    }
    let follow = options.follow;
    let mut chain = Chain { path: path.to_owned(), inode: inode(&file).await?, reader: BufReader::new(file) };
    let mut shaper = Shaper::new(options);
    let (mut raw, mut out) = (Vec::new(), Vec::new());
    let (mut rounds, mut alive) = (0, true);
    loop {
        chain.reader.read_until(b'\n', &mut raw).await?;
        if raw.ends_with(b"\n") {
            shaper.shape(&raw, &mut out);
            raw.clear();
            if out.len() >= PIECE || shaper.full() {
                if !flush(&mut out, send).await || shaper.full() {
                    return Ok(());
                }
            }
            continue;
        }
        if !flush(&mut out, send).await {
            return Ok(());
        }
        if !follow {
            // A last line without an end is half written: it is not shown, as upstream has it.
            return Ok(());
        }
        match chain.advance().await? {
            // The writer went on in the old file: the half line that was read is the start of what comes.
            Step::Same => continue,
            Step::Next => {
                raw.clear();
                continue;
            }
            Step::Stay => {}
        }
        if !alive {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = send.closed() => return Ok(()),
        }
        rounds += 1;
        if rounds % ASK == 0 {
            // What was written between the last read and the end is read in one more round.
            alive = running().await;
        }
    }
}

async fn flush(out: &mut Vec<u8>, send: &mpsc::Sender<io::Result<Bytes>>) -> bool {
    out.is_empty() || send.send(Ok(std::mem::take(out).into())).await.is_ok()
}

async fn inode(file: &File) -> io::Result<u64> {
    Ok(file.metadata().await?.ino())
}

/// The file being read, and the way to the next after a rotation.
struct Chain {
    path: PathBuf,
    inode: u64,
    reader: BufReader<File>,
}

/// Where reading goes on.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Nowhere yet.
    Stay,
    /// In the present file, which has grown.
    Same,
    /// In the next file.
    Next,
}

impl Chain {
    /// At the end of the present file: goes to the one that follows it, if there is one.
    async fn advance(&mut self) -> io::Result<Step> {
        let current = match tokio::fs::metadata(&self.path).await {
            Ok(meta) => meta.ino(),
            // Moved away, and the new one is not there yet; or the log is gone for good.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Step::Stay),
            Err(error) => return Err(error),
        };
        if current == self.inode {
            return Ok(Step::Stay);
        }
        // The writer may have added to the old file between our read and the rotation.
        if !self.reader.fill_buf().await?.is_empty() {
            return Ok(Step::Same);
        }
        let next = self.successor().await?;
        let file = File::open(next).await?;
        self.inode = inode(&file).await?;
        self.reader = BufReader::new(file);
        Ok(Step::Next)
    }

    /// The oldest file that is younger than the present one.
    async fn successor(&self) -> io::Result<PathBuf> {
        let rotated = super::rotate::rotated(&self.path).await?;
        let mut after_ours = false;
        for path in rotated {
            if after_ours && path.extension().is_none_or(|end| end != "gz") {
                return Ok(path);
            }
            after_ours |= tokio::fs::metadata(&path).await.is_ok_and(|meta| meta.ino() == self.inode);
        }
        Ok(self.path.clone())
    }
}

/// Where the last `lines` lines begin.
async fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    const BLOCK: u64 = 64 * 1024;
    let length = file.metadata().await?.len();
    if lines == 0 {
        return Ok(length);
    }
    let (mut end, mut seen) = (length, 0);
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(io::SeekFrom::Start(start)).await?;
        let mut block = vec![0; (end - start) as usize];
        file.read_exact(&mut block).await?;
        for (at, byte) in block.iter().enumerate().rev() {
            // The newline at the very end closes the last line.
            if *byte == b'\n' && start + at as u64 + 1 < length {
                seen += 1;
                if seen == lines {
                    return Ok(start + at as u64 + 1);
                }
            }
        }
        end = start;
    }
    Ok(0)
}

/// The end of a log, at most so many lines and bytes: the message of a container that left none.
pub async fn last_lines(path: &Path, lines: usize, most: usize) -> String {
    let options = Options { tail: Some(lines as u64), ..Default::default() };
    let mut pieces = stream(path.to_owned(), options, Box::new(|| Box::pin(std::future::ready(false))));
    let mut all = Vec::new();
    while let Some(piece) = pieces.recv().await {
        match piece {
            Ok(bytes) => all.extend_from_slice(&bytes),
            Err(error) => return format!("Error on reading termination message from logs: {error}"),
        }
    }
    String::from_utf8_lossy(&all[all.len().saturating_sub(most)..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kubelet-logs-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    async fn all(path: &Path, options: Options) -> String {
        let mut pieces = stream(path.to_owned(), options, Box::new(|| Box::pin(std::future::ready(false))));
        let mut text = String::new();
        while let Some(piece) = pieces.recv().await {
            text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        text
    }

    const SAMPLE: &str = "2024-01-01T00:00:01.5Z stdout F one\n2024-01-01T00:00:02Z stderr F two\n\
        2024-01-01T00:00:03Z stdout P thr\n2024-01-01T00:00:03.1Z stdout F ee\n2024-01-01T00:00:04Z stdout F \nhalf";

    #[tokio::test]
    async fn options_pick_and_shape_lines() {
        let dir = dir("options");
        let path = dir.join("0.log");
        std::fs::write(&path, SAMPLE).unwrap();
        assert_eq!(all(&path, Options::default()).await, "one\ntwo\nthree\n\n");
        let stderr = Options { stream: Some("stderr"), ..Default::default() };
        assert_eq!(all(&path, stderr).await, "two\n");
        let since = Options { since: Some("2024-01-01T00:00:04Z".parse().unwrap()), ..Default::default() };
        assert_eq!(all(&path, since).await, "\n");
        let limit = Options { limit: Some(6), ..Default::default() };
        assert_eq!(all(&path, limit).await, "one\ntw");
        let stamped = Options { timestamps: true, limit: Some(68), ..Default::default() };
        assert_eq!(all(&path, stamped).await, "2024-01-01T00:00:01.500000000Z one\n2024-01-01T00:00:02.000000000Z tw");
        std::fs::write(&path, SAMPLE.trim_end_matches("half")).unwrap();
        let tail = |n| Options { tail: Some(n), ..Default::default() };
        assert_eq!(all(&path, tail(0)).await, "");
        assert_eq!(all(&path, tail(1)).await, "\n");
        assert_eq!(all(&path, tail(4)).await, "two\nthree\n\n");
        assert_eq!(all(&path, tail(99)).await, "one\ntwo\nthree\n\n");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test]
    async fn following_over_three_rotations_has_no_gap_and_no_repeat() {
        let dir = dir("follow");
        let path = dir.join("0.log");
        let append = |text: &str| {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
            file.write_all(format!("2024-01-01T00:00:01Z stdout F {text}\n").as_bytes()).unwrap();
        };
        append("0");
        let running = Arc::new(AtomicBool::new(true));
        let asked = running.clone();
        let options = Options { follow: true, ..Default::default() };
        let mut pieces =
            stream(path.clone(), options, Box::new(move || Box::pin(std::future::ready(asked.load(Ordering::SeqCst)))));
        assert_eq!(&pieces.recv().await.unwrap().unwrap()[..], b"0\n");
        // Three rotations happen at once, before the reader looks again.
        for number in 1..=3 {
            append(&format!("{number}"));
            std::fs::rename(&path, dir.join(format!("0.log.20240101-00000{number}"))).unwrap();
            append(&format!("{number}a"));
        }
        append("end");
        running.store(false, Ordering::SeqCst);
        let mut text = String::new();
        while let Some(piece) = pieces.recv().await {
            text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        assert_eq!(text, "1\n1a\n2\n2a\n3\n3a\nend\n");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

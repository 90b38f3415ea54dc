//! Two connections joined: what comes from one goes to the other, byte for byte, until either ends.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// How long the client may take to notice that the backend is done.
const LINGER: Duration = Duration::from_secs(5);

/// Copies until either side ends; each piece is flushed. Errors are ends too.
pub async fn pump(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) {
    let mut buffer = vec![0; 32 << 10];
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        if to.write_all(&buffer[..count]).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

/// Joins a client and a backend until one of them ends, then ends both. A client that leaves takes the backend's
/// connection with it; what the backend said before it left still arrives.
pub async fn join(client: impl AsyncRead + AsyncWrite, backend: impl AsyncRead + AsyncWrite) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_backend, mut to_backend) = tokio::io::split(backend);
    tokio::select! {
        () = pump(&mut from_client, &mut to_backend) => end(&mut to_backend).await,
        () = pump(&mut from_backend, &mut to_client) => {
            end(&mut to_client).await;
            // A socket that is closed with bytes unread cuts off what is still on its way.
            let mut nowhere = tokio::io::sink();
            // A client that does not leave is left alone.
            let _ = tokio::time::timeout(LINGER, pump(&mut from_client, &mut nowhere)).await;
        }
    }
}

/// Says that nothing more comes; an error says that nobody listens.
async fn end(to: &mut (impl AsyncWrite + Unpin)) {
    let _ = tokio::time::timeout(LINGER, to.shutdown()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_go_both_ways_until_the_backend_leaves() {
        let (mut client, front) = tokio::io::duplex(64);
        let (back, mut backend) = tokio::io::duplex(64);
        let joined = tokio::spawn(join(front, back));
        client.write_all(b"question").await.expect("written");
        let mut seen = [0; 8];
        backend.read_exact(&mut seen).await.expect("read");
        backend.write_all(b"answer").await.expect("written");
        drop(backend);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("read");
        assert_eq!((&seen, answer.as_str()), (b"question", "answer"));
        drop(client);
        joined.await.expect("ended");
    }

    #[tokio::test]
    async fn a_client_that_leaves_takes_the_backend_with_it() {
        let (client, front) = tokio::io::duplex(64);
        let (back, mut backend) = tokio::io::duplex(64);
        let joined = tokio::spawn(join(front, back));
        drop(client);
        let mut rest = Vec::new();
        backend.read_to_end(&mut rest).await.expect("read");
        assert!(rest.is_empty());
        joined.await.expect("ended");
    }
}

//! A bound on connections: more than so many wait in the kernel's queue, and a connection ends at the latest after a minute,
//! so that idle or slow clients cannot keep others out.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

const MAX_CONNECTIONS: usize = 128;
const MAX_LIFE: Duration = Duration::from_mins(1);

/// A listener with a bound on its open connections and on the life of each.
#[derive(Debug)]
pub(super) struct Bounded {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    life: Duration,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::with(listener, MAX_CONNECTIONS, MAX_LIFE)
    }

    fn with(listener: TcpListener, connections: usize, life: Duration) -> Self {
        Self { listener, permits: Arc::new(Semaphore::new(connections)), life }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = self.permits.clone().acquire_owned().await.ok();
        // Accepting of a TcpListener logs and retries what passes by itself (too many open files).
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let deadline = Box::pin(tokio::time::sleep(self.life));
        (Connection { stream, deadline, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that holds its place in the bound, and reads as ended when its time is up.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn an_idle_connection_cannot_keep_others_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let bounded = Bounded::with(listener, 1, Duration::from_millis(100));
        let router = Router::new().route("/", get(|| async { "here" }));
        let server = tokio::spawn(async move { axum::serve(bounded, router).await });

        let mut idle = TcpStream::connect(address).await.expect("accepted");
        let answer =
            reqwest::get(format!("http://{address}/")).await.expect("served after the idle one has ended");
        assert_eq!(answer.text().await.expect("a body"), "here");
        let read = tokio::time::timeout(Duration::from_secs(5), idle.read(&mut [0; 1])).await;
        assert!(matches!(read, Ok(Ok(0) | Err(_))), "the idle connection is still open: {read:?}");
        server.abort();
    }
}

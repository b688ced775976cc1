//! A TCP proxy in front of a service, which can refuse and fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What the proxy does with what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// Hands everything on.
    Pass,
    /// Ends every connection at once.
    Refuse,
    /// Takes everything and hands nothing on, in both directions.
    Silent,
}

/// A proxy on a port of its own.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    mode: AtomicU8,
    /// Woken when the mode changes.
    changed: Notify,
}

impl Shared {
    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::SeqCst) == mode as u8
    }

    /// Returns once the mode is `wanted`, or another than `unwanted`.
    async fn until(&self, reached: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            if reached(self) {
                return;
            }
            changed.await;
        }
    }
}

/// What a proxy changes in what the server says.
#[derive(Debug, Clone)]
enum Answers {
    Unchanged,
    /// A Kafka broker's: it tells its own address, which clients must not learn.
    WithAddress {
        from: Vec<u8>,
        to: Vec<u8>,
    },
}

impl Proxy {
    /// A proxy in front of `host:port`, which lets everything pass.
    pub(crate) async fn before(target: String) -> Self {
        Self::open(target, |_| Answers::Unchanged).await
    }

    /// A proxy in front of the only Kafka broker of a cluster, which advertises `host:port`: clients find the proxy instead.
    pub(crate) async fn before_broker(target: String) -> Self {
        let (host, number) = target.rsplit_once(':').expect("host:port");
        let number: i32 = number.parse().expect("a port");
        // As the protocol writes it: the host's text, then the port.
        let address = |number: i32| [host.as_bytes(), &number.to_be_bytes()].concat();
        let from = address(number);
        Self::open(target.clone(), |port| Answers::WithAddress { from, to: address(i32::from(port)) }).await
    }

    async fn open(target: String, answers: impl FnOnce(u16) -> Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let answers = answers(port);
        let shared = Arc::new(Shared { mode: AtomicU8::new(Mode::Pass as u8), changed: Notify::new() });
        tokio::spawn({
            let shared = shared.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if !shared.is(Mode::Refuse) {
                        tokio::spawn(carry(client, target.clone(), answers.clone(), shared.clone()));
                    }
                }
            }
        });
        Self { port, shared }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.shared.mode.store(mode as u8, Ordering::SeqCst);
        self.shared.changed.notify_waiters();
    }
}

async fn carry(client: TcpStream, target: String, answers: Answers, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(&target).await else { return };
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let cut = shared.until(|shared| shared.is(Mode::Refuse));
    let answered = async {
        match &answers {
            Answers::Unchanged => copy(server_read, client_write, &shared).await,
            Answers::WithAddress { from, to } => {
                let _ = copy_answers(server_read, client_write, from, to, &shared).await;
            }
        }
    };
    tokio::select! {
        () = copy(client_read, server_write, &shared) => {}
        () = answered => {}
        () = cut => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        shared.until(|shared| !shared.is(Mode::Silent)).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Copies a broker's answers one by one, each with its length before it, with another address in place of its own.
async fn copy_answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    address: &[u8],
    instead: &[u8],
    shared: &Shared,
) -> std::io::Result<()> {
    loop {
        let length = from.read_u32().await?;
        let mut answer = vec![0; usize::try_from(length).expect("a size")];
        from.read_exact(&mut answer).await?;
        let mut at = 0;
        while let Some(found) = answer[at..].windows(address.len()).position(|bytes| bytes == address) {
            at += found;
            answer[at..at + instead.len()].copy_from_slice(instead);
        }
        shared.until(|shared| !shared.is(Mode::Silent)).await;
        to.write_u32(length).await?;
        to.write_all(&answer).await?;
    }
}

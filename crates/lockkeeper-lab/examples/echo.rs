//! Upper bound by TCP over loopback: each client has a connection and exchanges messages of the size of an acquire and a
//! grant with an echo server. Two round trips correspond to a pair of acquire and release with an awaited release.
//!
//! ```sh
//! cargo run --release -p lockkeeper-lab --example echo -- 256 4
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

const ACQUIRE: [u8; 90] = [1; 90];
const GRANT: [u8; 40] = [2; 40];

/// One thread for each side, like a node and its client.
fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

async fn serve(listener: std::net::TcpListener) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut bytes = [0; 4096];
            while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {
                if stream.write_all(&GRANT).await.is_err() {
                    return;
                }
            }
        });
    }
}

async fn client(mut stream: TcpStream, done: Arc<AtomicU64>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; 4096];
    loop {
        stream.write_all(&ACQUIRE).await?;
        if stream.read(&mut bytes).await? == 0 {
            return Ok(());
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let clients: usize = words.next().map_or(Ok(256), |word| word.parse())?;
    let seconds: u64 = words.next().map_or(Ok(4), |word| word.parse())?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let server = runtime()?;
    std::thread::spawn(move || server.block_on(serve(listener)));
    runtime()?.block_on(async move {
        let done = Arc::new(AtomicU64::new(0));
        for _ in 0..clients {
            tokio::spawn(client(TcpStream::connect(address).await?, done.clone()));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (began, before) = (Instant::now(), done.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let trips = (done.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
        println!("{clients} connections: {trips:.0} round trips/s, {:.0} pairs/s at most", trips / 2.0);
        Ok(())
    })
}

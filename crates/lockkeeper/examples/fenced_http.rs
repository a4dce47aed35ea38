//! An HTTP service that refuses a stale holder.
//!
//! ```text
//! cargo run -p lockkeeper --example fenced_http --features embedded,gate-http
//! ```
//!
//! The service uses axum; the layer is one line. For a service that you cannot change, use
//! `lockkeeper proxy --upstream URL --fence-state DIR`.

use std::error::Error;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use lockkeeper::gates::http::{FenceLayer, FileTokens, HEADER, header_value};
use lockkeeper::prelude::*;

const LOCK: &str = "prices";

type Prices = Arc<Mutex<String>>;

fn service(tokens: FileTokens) -> Router {
    let read = async |State(prices): State<Prices>| prices.lock().expect("no writer panics").clone();
    let write = async |State(prices): State<Prices>, body: String| {
        *prices.lock().expect("no writer panics") = body;
    };
    Router::new()
        .route("/prices", get(read).put(write))
        .layer(FenceLayer::new(tokens).only_lock(LOCK))
        .with_state(Prices::default())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // In production, use a permanent folder, so that the tokens survive restarts.
    let folder = std::env::temp_dir().join(format!("fenced-http-{}", std::process::id()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/prices", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, service(FileTokens::open(&folder)?)).into_future());

    let keeper = Keeper::connect("embedded:").await?;
    let client = reqwest::Client::new();
    let put = async |guard: &Guard, prices: &'static str| {
        let request = client.put(&url).header(HEADER, header_value(LOCK, guard.token())).body(prices);
        request.send().await.map(|response| response.status().as_u16())
    };

    let old = keeper.lock(LOCK).acquire().await?;
    println!("PUT under token {}: {}", old.token(), put(&old, "bread 2.00").await?);
    keeper.force_release(LOCK, "its holder does not answer").await?;
    let new = keeper.lock(LOCK).acquire().await?;
    println!("PUT under token {}: {}", new.token(), put(&new, "bread 2.10").await?);
    let late = put(&old, "bread 1.90").await?;
    println!("PUT under token {} again: {late}", old.token());
    let without = client.put(&url).body("bread 0.00").send().await?.status().as_u16();
    println!("PUT without a token: {without}");
    let prices = client.get(&url).send().await?.text().await?;
    println!("the prices: {prices}");
    std::fs::remove_dir_all(&folder)?;
    if (late, without, prices.as_str()) != (412, 428, "bread 2.10") {
        return Err("the gate accepted a stale write".into());
    }
    Ok(())
}

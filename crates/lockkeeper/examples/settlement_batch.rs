//! A nightly batch that collects payments in an object store, from many machines, without losing one.
//!
//! ```text
//! cargo run -p lockkeeper --example settlement_batch --features embedded,gate-object-store
//! cargo run -p lockkeeper --example settlement_batch --features embedded,gate-object-store /tmp/settlement
//! ```
//!
//! Without a folder the store is in memory. For S3, pass `ObjectGate::new` a store built with the feature `aws` of the crate
//! `object_store`; the rest stays the same.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use lockkeeper::Token;
use lockkeeper::gates::object::ObjectGate;
use lockkeeper::prelude::*;
use object_store::memory::InMemory;
use object_store::path::Path;

const LOCK: &str = "settlement";

/// Appends a line to the batch. Called again if another writer was faster.
fn add(line: &'static str) -> impl FnMut(Option<Bytes>) -> Bytes + Send + 'static {
    move |batch| [batch.unwrap_or_default().as_ref(), line.as_bytes(), b"\n"].concat().into()
}

async fn settle(
    gate: &ObjectGate,
    path: &Path,
    line: &'static str,
    token: Token,
) -> Result<(), lockkeeper::Error> {
    gate.update(path, token, add(line)).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let gate = match std::env::args().nth(1) {
        Some(folder) => ObjectGate::local(folder),
        None => ObjectGate::new(Arc::new(InMemory::new())),
    };
    // Does this store really refuse stale writes? Some accept conditional puts but ignore the condition.
    gate.probe(&Path::from("settlement")).await?;
    let path = Path::from("settlement/2026-11-16.csv");

    // Each run of this example starts with token 1 again; the tokens of a cell never restart.
    let keeper = Keeper::connect("embedded:").await?;
    let before = gate.get(&path).await?.map_or(Token(0), |object| object.token);
    let from_here = |token: Token| Token(before.0 + token.0);

    let first = keeper.lock(LOCK).acquire().await?;
    settle(&gate, &path, "4472,30.00", from_here(first.token())).await?;
    println!("the first machine settled an order under token {}, and is paused", first.token());
    keeper.force_release(LOCK, "its machine does not answer").await?;

    let second = keeper.lock(LOCK).acquire().await?;
    settle(&gate, &path, "4473,12.50", from_here(second.token())).await?;
    println!("the second machine continued under token {}", second.token());

    let late = settle(&gate, &path, "4472,30.00", from_here(first.token())).await;
    match late {
        Err(lockkeeper::Error::StaleToken { .. }) => println!("the first machine woke up and was refused"),
        other => return Err(format!("the gate accepted a stale write: {other:?}").into()),
    }
    second.release().await?;
    let object = gate.get(&path).await?.ok_or("the batch is gone")?;
    let text = String::from_utf8(object.bytes.to_vec())?;
    print!("the batch:\n{text}");
    if !text.ends_with("4472,30.00\n4473,12.50\n") {
        return Err("an order was settled twice or not at all".into());
    }
    Ok(())
}

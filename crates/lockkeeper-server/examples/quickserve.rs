//! throwaway
use lockkeeper_server::*;
#[tokio::main(flavor="current_thread")]
async fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut config = NodeConfig::durable(&a[1]);
    if a.get(3).is_some_and(|m| m == "thread") { config.log.sync = raft::log::SyncMode::Thread; }
    let mut node = Node::start(config).await.unwrap();
    println!("{}", node.listen(&a[2]).await.unwrap());
    println!("{}", node.ended().await);
}

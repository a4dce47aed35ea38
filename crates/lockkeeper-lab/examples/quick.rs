//! throwaway
use lockkeeper_lab::bench::*;
#[tokio::main(flavor="current_thread")]
async fn main() {
    let a: Vec<String> = std::env::args().collect();
    let o = Options { engine: a[1].clone(), workload: if a[2]=="handoff" {Workload::Handoff} else {Workload::Uncontended}, clients: a[3].parse().unwrap(), connections: if a[4]=="shared" {Connections::Shared} else {Connections::Each}, duration: std::time::Duration::from_secs(a[5].parse().unwrap()), scratch_dir: ".".into() };
    println!("{}", run(&o, |_, _| {}).await.unwrap());
}

//! Generates the wire types. protox reads the .proto files, so no protoc has to be installed.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let source = root.join("lockkeeper/v1/lockkeeper.proto");
    println!("cargo:rerun-if-changed={}", source.display());

    let descriptors = protox::compile([&source], [&root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("lockkeeper.v1.bin"), descriptors.encode_to_vec())?;
    let grpc = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure().build_client(grpc).build_server(grpc).compile_fds(descriptors)?;
    Ok(())
}

//! Generates the wire types. protox reads the .proto files, so no protoc has to be installed.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let grpc = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    for (source, name) in [
        ("lockkeeper/v1/lockkeeper.proto", "lockkeeper.v1.bin"),
        ("lockkeeper/peer/v1/peer.proto", "lockkeeper.peer.v1.bin"),
    ] {
        let source = root.join(source);
        println!("cargo:rerun-if-changed={}", source.display());
        let descriptors = protox::compile([&source], [&root])?;
        std::fs::write(out.join(name), descriptors.encode_to_vec())?;
        // Entries and snapshots are not copied out of what was read.
        tonic_prost_build::configure()
            .bytes(".lockkeeper.peer.v1")
            .build_client(grpc)
            .build_server(grpc)
            .compile_fds(descriptors)?;
    }
    Ok(())
}

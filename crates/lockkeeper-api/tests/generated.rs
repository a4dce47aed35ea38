//! The generated code is checked in, so that users of the library build no compiler of protobuf. It is what the `.proto`
//! files say: after a change to them, `LOCKKEEPER_REGENERATE=1 cargo test -p lockkeeper-api --test generated` writes it.

use std::fs;
use std::path::Path;

use prost::Message as _;

const CONTRACTS: [&str; 2] = ["lockkeeper/v1/lockkeeper.proto", "lockkeeper/peer/v1/peer.proto"];
const GENERATED: [&str; 4] =
    ["lockkeeper.v1.rs", "lockkeeper.v1.bin", "lockkeeper.peer.v1.rs", "lockkeeper.peer.v1.bin"];

/// Generates all files into `out`.
fn generate(out: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    for contract in CONTRACTS {
        let descriptors = protox::compile([root.join(contract)], [&root]).expect("the contract compiles");
        let package = Path::new(contract).parent().expect("a contract is in a folder");
        let name = format!("{}.bin", package.to_str().expect("ASCII").replace('/', "."));
        fs::write(out.join(name), descriptors.encode_to_vec()).expect("written");
        tonic_prost_build::configure()
            // Entries and snapshots are not copied out of what was read.
            .bytes(".lockkeeper.peer.v1")
            .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
            .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
            .out_dir(out)
            .compile_fds(descriptors)
            .expect("the code is generated");
    }
}

#[test]
fn checked_in_code_is_what_the_contract_generates() {
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    if std::env::var_os("LOCKKEEPER_REGENERATE").is_some() {
        generate(&checked_in);
    }
    let out = tempfile::tempdir().expect("a folder");
    generate(out.path());
    for name in GENERATED {
        let (fresh, kept) = (fs::read(out.path().join(name)), fs::read(checked_in.join(name)));
        assert!(
            fresh.expect("generated") == kept.expect("checked in"),
            "src/generated/{name} is not what the .proto files say: run this test with LOCKKEEPER_REGENERATE=1"
        );
    }
}

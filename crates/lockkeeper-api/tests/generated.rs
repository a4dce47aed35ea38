//! Checks that the checked-in generated code is up to date. It is checked in so that users need no protobuf compiler. After a
//! change of the `.proto` files, `LOCKKEEPER_REGENERATE=1 cargo test -p lockkeeper-api --test generated` updates it.

use std::fs;
use std::path::Path;

use prost::Message as _;

const CONTRACTS: [&str; 2] = ["lockkeeper/v1/lockkeeper.proto", "lockkeeper/peer/v1/peer.proto"];
const GENERATED: [&str; 2] = ["lockkeeper.v1.rs", "lockkeeper.peer.v1.rs"];

/// Generates all files into `out`.
fn generate(out: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    for contract in CONTRACTS {
        let descriptors = protox::compile([root.join(contract)], [&root]).expect("the contract compiles");
        let encoded = descriptors.encode_to_vec();
        let unary_calls = unary_calls(
            &descriptors
                .file
                .iter()
                .flat_map(|file| &file.service)
                .flat_map(|it| {
                    it.method.iter().filter(|method| !method.client_streaming() && !method.server_streaming())
                })
                .map(|method| (method.name(), method.input_type(), method.output_type()))
                .collect::<Vec<_>>(),
        );
        tonic_prost_build::configure()
            // Use `Bytes` so that entries and snapshots are not copied out of the read buffer.
            .bytes(".lockkeeper.peer.v1")
            .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
            .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
            .out_dir(out)
            .compile_fds(descriptors)
            .expect("the code is generated");
        if contract == CONTRACTS[0] {
            let path = out.join("lockkeeper.v1.rs");
            let code = fs::read_to_string(&path).expect("generated");
            fs::write(path, code + &unary_calls + &descriptor_set(&encoded)).expect("written");
        }
    }
}

/// Generates a macro that lists all unary calls, from which the server implements the service.
fn unary_calls(methods: &[(&str, &str, &str)]) -> String {
    let mut text = String::from(
        "/// Hands all unary calls to another macro, as `name(Request) -> Answer;`.\n\
         #[cfg(feature = \"grpc\")]\n\
         #[macro_export]\n\
         macro_rules! unary_calls {\n    ($with:ident) => {\n        $with! {\n",
    );
    for (name, input, output) in methods {
        let message = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
        text += &format!("            {}({}) -> {};\n", snake_case(name), message(input), message(output));
    }
    text + "        }\n    };\n}\n"
}

/// Generates the descriptors of the contract, for reflection.
fn descriptor_set(encoded: &[u8]) -> String {
    format!(
        "/// The encoded `FileDescriptorSet` of `lockkeeper.v1`, for gRPC reflection.\n\
         pub const FILE_DESCRIPTOR_SET: &[u8] = b\"{}\";\n",
        encoded.escape_ascii()
    )
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[test]
fn checked_in_code_is_up_to_date() {
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
            "src/generated/{name} is out of date: run this test with LOCKKEEPER_REGENERATE=1"
        );
    }
}

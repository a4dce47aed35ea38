//! What the contract contains, from its own descriptions: a new operation without an attack fails the test.

use lockkeeper_api::FILE_DESCRIPTOR_SET;
use prost::Message;

use crate::fixture::Caller;

#[derive(Clone, PartialEq, Message)]
struct FileSet {
    #[prost(message, repeated, tag = "1")]
    files: Vec<File>,
}

#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(message, repeated, tag = "4")]
    messages: Vec<Described>,
    #[prost(message, repeated, tag = "6")]
    services: Vec<Described>,
}

/// A message with its fields, or a service with its methods: both have these numbers.
#[derive(Clone, PartialEq, Message)]
struct Described {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Message)]
struct Part {
    #[prost(string, tag = "1")]
    name: String,
}

fn files() -> Vec<File> {
    FileSet::decode(FILE_DESCRIPTOR_SET).unwrap().files
}

fn parts(all: impl Iterator<Item = Described>, name: &str) -> Vec<String> {
    let found = all.into_iter().find(|found| found.name == name).unwrap();
    found.parts.into_iter().map(|part| part.name).collect()
}

/// The unary and streaming methods of the service for clients, in the case of Rust's functions.
pub fn methods() -> Vec<String> {
    let names = parts(files().into_iter().flat_map(|file| file.services), "Lockkeeper");
    names.iter().map(|name| snake_case(name)).collect()
}

/// The operations of a stream.
pub fn stream_operations() -> Vec<String> {
    let mut fields = parts(files().into_iter().flat_map(|file| file.messages), "Operation");
    fields.retain(|name| name != "id");
    fields
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

/// The calls of the node's OpenAPI document, as `POST /v1/lock/acquire`.
pub async fn http_calls(caller: &Caller) -> Vec<String> {
    let document = caller.read("/openapi.json").await.ok();
    let paths = document["paths"].as_object().unwrap();
    let calls = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap();
        methods.keys().map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    calls.collect()
}

#[test]
fn descriptions_of_the_contract_are_read() {
    assert!(methods().contains(&"acquire_all".to_owned()), "{:?}", methods());
    assert!(stream_operations().contains(&"hand_over".to_owned()), "{:?}", stream_operations());
}

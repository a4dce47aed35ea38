//! The table of engines in the documentation matches the code.
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper::{Capabilities, Class, TokenKind};

const BEGIN: &str = "--test engines_table` -->\n";
const END: &str = "<!-- end -->";

#[test]
fn table_in_the_documentation_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/engines.md");
    let text = std::fs::read_to_string(path).unwrap();
    let start = text.find(BEGIN).unwrap() + BEGIN.len();
    let end = text.find(END).unwrap();
    let table = Capabilities::table();
    if text[start..end] == table {
        return;
    }
    if std::env::var_os("LOCKKEEPER_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{}{table}{}", &text[..start], &text[end..])).unwrap();
        return;
    }
    panic!("docs/engines.md is not up to date: run this test with LOCKKEEPER_WRITE_DOCS=1");
}

#[test]
fn capabilities_of_each_engine_are_consistent() {
    for engine in Capabilities::all() {
        assert!(engine.ttl_min < engine.ttl_max, "{}", engine.engine);
        assert_eq!(engine.token == TokenKind::None, engine.token_source.is_empty(), "{}", engine.engine);
        // Only a durable token protects the resource from a stale holder.
        if engine.class == Class::Correctness {
            assert_eq!(engine.token, TokenKind::Durable, "{}", engine.engine);
        }
    }
}

/// The `mod.rs` of each engine documents its recipe, and what it does not promise.
#[test]
fn each_engine_documents_its_guarantees() {
    for engine in Capabilities::all() {
        let path = format!("{}/src/engines/{}/mod.rs", env!("CARGO_MANIFEST_DIR"), engine.engine);
        let text = std::fs::read_to_string(&path).unwrap();
        let page: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
        // A heading, or bold text at the beginning of a paragraph.
        let has = |words: &str| {
            page.iter().any(|line| {
                let line = line.trim().trim_start_matches(['#', '*', ' ']).to_lowercase();
                line.strip_prefix("the ").unwrap_or(&line).starts_with(words)
            })
        };
        for heading in ["recipe", "token", "whose clock", "what it does not promise"] {
            assert!(has(heading), "{path} has no \"{heading}\"");
        }
        assert!(page.iter().any(|line| line.trim() == "```text"), "{path} shows no timeline of the failure");
    }
}

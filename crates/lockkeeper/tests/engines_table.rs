//! The table of engines in the documentation is the one in the code.
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper::{Capabilities, Class, TokenKind};

const BEGIN: &str = "--test engines_table` -->\n";
const END: &str = "<!-- end -->";

#[test]
fn the_table_in_the_documentation_is_up_to_date() {
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
fn what_an_engine_says_about_itself_makes_sense() {
    for engine in Capabilities::all() {
        assert!(engine.ttl_min < engine.ttl_max, "{}", engine.engine);
        assert_eq!(engine.token == TokenKind::None, engine.token_source.is_empty(), "{}", engine.engine);
        // Without a durable token nothing protects the resource from a stale holder.
        if engine.class == Class::Correctness {
            assert_eq!(engine.token, TokenKind::Durable, "{}", engine.engine);
        }
    }
}

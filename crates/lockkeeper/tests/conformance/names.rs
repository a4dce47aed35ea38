//! The names of locks.

use lockkeeper::prelude::*;

use crate::child::connect;
use crate::servers::Site;
use crate::support::soon;

pub(crate) async fn unusual_names_are_distinct_locks<S: Site>() {
    let site = S::start();
    let (keeper, _) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    let longest = "x".repeat(512);
    let names = [
        "a",
        "A",
        "a/b",
        "/a",
        "a/",
        "a//b",
        "a b",
        " a",
        "a ",
        ".",
        "..",
        "a.b",
        "-",
        "--help",
        "*",
        "a*",
        "?",
        "[a]",
        "{a}",
        "}{",
        "'",
        "\"",
        "`",
        "\\",
        "%",
        "%2F",
        "100%",
        "#",
        "a#b",
        "a?b=c&d",
        ":",
        "a:b",
        ";",
        ",",
        "$1",
        "$(x)",
        "ä",
        "größe",
        "日本語",
        "\u{1F512}",
        "e\u{301}",
        "\u{e9}",
        "\u{200b}",
        "null",
        "NULL",
        "0",
        "-1",
        "~",
        "^",
        "|",
        "<a>",
        "@",
        "!",
        "a=b",
        "+",
        longest.as_str(),
    ];
    // All are held at once: if two names were the same lock, the second would be busy.
    let mut guards = Vec::new();
    for name in names {
        let guard = soon(keeper.lock(name).ttl(60.secs()).no_wait().acquire()).await;
        guards.push(guard.unwrap_or_else(|error| panic!("{name:?}: {error}")));
    }
    for name in names {
        assert!(soon(other.lock(name).try_acquire()).await.unwrap().is_none(), "{name:?}");
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    for (name, code) in [
        ("", "invalid"),
        ("a\nb", "invalid"),
        ("a\0b", "invalid"),
        ("\u{7f}", "invalid"),
        (&"x".repeat(513), "too_large"),
    ] {
        let error = soon(keeper.lock(name).no_wait().acquire()).await.unwrap_err();
        assert_eq!(error.code(), code, "{name:?}: {error}");
    }
}

//! The console at `/`. Its files are part of the binary, it loads nothing from other origins, and it shows all data as text.

mod events;

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::response::{IntoResponse, Response};

pub(super) use self::events::{ViewQuery, events};
use super::error::Error;

/// The content security policy: only the console's own scripts and styles and calls to this node. No framing, and no text can
/// become a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($name:literal $kind:expr),* $(,)?) => {
        &[$(($name, $kind, include_str!(concat!("../../../../console/", $name)))),*]
    };
}

/// Every file with its type, by its path below `/console/`.
const FILES: &[(&str, &str, &str)] = files![
    "style.css" "text/css; charset=utf-8",
    "icon.svg" "image/svg+xml",
    "app.js" SCRIPT,
    "dom.js" SCRIPT,
    "format.js" SCRIPT,
    "stream.js" SCRIPT,
    "force.js" SCRIPT,
    "token.js" SCRIPT,
    "draw.js" SCRIPT,
    "cell.js" SCRIPT,
    "locks.js" SCRIPT,
    "lock.js" SCRIPT,
    "graph.js" SCRIPT,
    "sessions.js" SCRIPT,
    "top.js" SCRIPT,
    "elections.js" SCRIPT,
    "audit.js" SCRIPT,
];

pub(super) async fn page() -> impl IntoResponse {
    (
        [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, "no-referrer"),
        ],
        include_str!("../../../../console/index.html"),
    )
}

pub(super) async fn file(Path(wanted): Path<String>) -> Response {
    match FILES.iter().find(|(name, ..)| *name == wanted) {
        Some((_, kind, text)) => {
            ([(CONTENT_TYPE, *kind), (CONTENT_SECURITY_POLICY, POLICY)], *text).into_response()
        }
        None => Error::invalid(format!("unknown console file {wanted}"))
            .with_status(StatusCode::NOT_FOUND)
            .into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_loaded_from_elsewhere_and_no_text_becomes_markup() {
        let page = include_str!("../../../../console/index.html");
        for (name, text) in FILES.iter().map(|(name, _, text)| (*name, *text)).chain([("index.html", page)]) {
            for word in
                ["https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!text.contains(word), "{name} has {word}");
            }
            let addresses = text
                .match_indices("http://")
                .filter(|(at, _)| !text[*at..].starts_with("http://www.w3.org/"));
            assert_eq!(addresses.count(), 0, "{name} names an address");
        }
        for event in ["onclick=", "onload=", "style=", "javascript:"] {
            assert!(!page.contains(event), "the policy does not allow {event}");
        }
    }

    #[test]
    fn every_import_is_a_file() {
        for (name, _, text) in FILES.iter().filter(|(name, ..)| name.ends_with(".js")) {
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let target = line.split('"').nth(1).unwrap_or_default();
                let target = target.trim_start_matches("./");
                assert!(FILES.iter().any(|(known, ..)| *known == target), "{name} imports {target}");
            }
        }
    }
}

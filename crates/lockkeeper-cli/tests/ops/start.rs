//! The first page of the book, as a newcomer types it.

use std::path::Path;
use std::process::Command;

use crate::support::{BINARY, Server, text};

/// The first shell block below a heading of docs/start.md.
fn block(heading: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/start.md");
    let page = std::fs::read_to_string(page).unwrap();
    let below = page.split_once(heading).unwrap_or_else(|| panic!("there is no {heading}")).1;
    let code = below.split_once("```sh\n").unwrap().1;
    code.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_third_step_shows_a_stale_holder_refused() {
    let server = Server::start();
    let path =
        format!("{}:{}", Path::new(BINARY).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script = block("## 3.").replace("127.0.0.1:7420", &server.address);
    let output = Command::new("sh")
        .args(["-ec", &script])
        .env("PATH", path)
        .env("LOCKKEEPER_ENGINE", server.engine())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("\"code\":\"stale_token\""), "{output:?}");
}

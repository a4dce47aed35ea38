//! The quick start of the book, run as written.

use std::path::Path;
use std::process::Command;

use crate::deploy::block;
use crate::support::{BINARY, Server, text};

#[test]
fn quick_start_step_three_refuses_a_stale_holder() {
    let server = Server::start();
    let path =
        format!("{}:{}", Path::new(BINARY).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script = block("docs/start.md", "## 3.", "sh").replace("127.0.0.1:7420", &server.address);
    let output = Command::new("sh")
        .args(["-ec", &script])
        .env("PATH", path)
        .env("LOCKKEEPER_ENGINE", server.engine())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("\"code\":\"stale_token\""), "{output:?}");
}

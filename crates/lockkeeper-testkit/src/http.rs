//! The little HTTP that is needed to ask a server how it is.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The body of an answer; empty if there is none. One connection for each question.
pub fn get(address: SocketAddr, path: &str) -> String {
    ask(address, "GET", path, "")
}

/// The same for a question with a body.
pub fn post(address: SocketAddr, path: &str, body: &str) -> String {
    ask(address, "POST", path, body)
}

/// The same by any method.
pub fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let mut answer = Vec::new();
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else {
        return String::new();
    };
    // One that is just starting may take the question and never answer it.
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    if stream.write_all(request.as_bytes()).is_err() {
        return String::new();
    }
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

//! A minimal HTTP client for the status pages of servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Sends GET on a new connection and returns the body of the answer, empty without an answer.
pub fn get(address: SocketAddr, path: &str) -> String {
    request(address, "GET", path, "")
}

/// Sends POST with a body and returns the body of the answer.
pub fn post(address: SocketAddr, path: &str, body: &str) -> String {
    request(address, "POST", path, body)
}

/// Sends a request and returns the body of the answer.
pub fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let mut answer = Vec::new();
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else {
        return String::new();
    };
    // A server that is starting may accept the connection and never answer.
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

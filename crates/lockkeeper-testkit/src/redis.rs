//! A Redis server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tempfile::TempDir;

use crate::clock::MovedClock;
use crate::error::ServerError;
use crate::process::{Process, Program, find_program, first_line, folder};
use crate::{Servers, Signal, free_address};

const ADVICE: &str = "apt-get install redis-server";

/// Settings with which a crash loses nothing that was acknowledged.
pub const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// A Redis server.
#[derive(Debug)]
pub struct Redis {
    folder: TempDir,
    /// The address for clients.
    pub address: SocketAddr,
    settings: Vec<String>,
    clock: Option<MovedClock>,
    process: Option<Process>,
}

impl Redis {
    /// Starts a server with settings. It persists nothing unless they say so.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn with(settings: &[&str]) -> Result<Redis, ServerError> {
        Redis::build(settings, false)
    }

    /// Starts a server whose wall clock can be moved.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or libfaketime is missing.
    pub fn with_moved_clock(settings: &[&str]) -> Result<Redis, ServerError> {
        Redis::build(settings, true)
    }

    fn build(settings: &[&str], has_clock: bool) -> Result<Redis, ServerError> {
        let folder = folder()?;
        let clock = if has_clock { Some(MovedClock::new(folder.path())?) } else { None };
        let settings = settings.iter().map(|&word| word.to_owned()).collect();
        let mut redis = Redis { folder, address: free_address(6379), settings, clock, process: None };
        redis.restart()?;
        Ok(redis)
    }

    /// Name and version, as the program prints it.
    pub fn version() -> Option<String> {
        let line = first_line(&find_program("redis-server", &[], ADVICE).ok()?, &["--version"]);
        line.split_whitespace()
            .find_map(|word| word.strip_prefix("v="))
            .map(|version| format!("Redis {version}"))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Sets its wall clock ahead.
    ///
    /// # Errors
    ///
    /// If it was started without a clock that can be moved.
    pub fn move_clock(&self, by: Duration) -> Result<(), ServerError> {
        match &self.clock {
            Some(clock) => clock.set_ahead(by),
            None => Err(ServerError::Command {
                command: "moving the clock".to_owned(),
                words: "this Redis was started without a movable clock".to_owned(),
            }),
        }
    }

    /// Sends a command.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub fn command(&self, words: &[&str]) -> Result<String, ServerError> {
        command(self.address, words).map_err(ServerError::io("Redis did not answer"))
    }
}

impl Servers for Redis {
    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn restart(&mut self) -> Result<(), ServerError> {
        let path = find_program("redis-server", &[], ADVICE)?;
        let (port, host) = (self.address.port().to_string(), self.address.ip().to_string());
        let folder = self.folder.path().to_string_lossy().into_owned();
        let mut arguments = vec!["--port", &port, "--bind", &host, "--dir", &folder, "--save", ""];
        arguments.extend(self.settings.iter().map(String::as_str));
        let mut program = Program::new(path, &arguments, self.folder.path().join("log"));
        program.environment = self.clock.as_ref().map(MovedClock::environment).unwrap_or_default();
        let mut process = program.start()?;
        let address = self.address;
        // A server with a password answers NOAUTH: it is ready as well.
        process.wait_until(&format!("Redis at {address}"), || {
            command(address, &["PING"]).is_ok_and(|it| it == "PONG" || it.starts_with("NOAUTH"))
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Number of commands that it has processed.
    fn requests(&self) -> Option<u64> {
        let info = self.command(&["INFO", "stats"]).ok()?;
        info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"))?.trim().parse().ok()
    }

    fn request_unit(&self) -> &'static str {
        "commands, by Redis' INFO"
    }
}

/// The independent instances of Redlock.
impl Servers for Vec<Redis> {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.iter().map(|instance| instance.address).collect()
    }

    /// The default of 50 ms is too short for a machine that also runs other servers.
    fn url_parts(&self) -> (&'static str, &'static str) {
        ("", "?timeout_ms=300")
    }

    fn kill(&mut self) {
        self.iter_mut().for_each(Servers::kill);
    }

    fn restart(&mut self) -> Result<(), ServerError> {
        self.iter_mut().try_for_each(Servers::restart)
    }

    fn requests(&self) -> Option<u64> {
        self.iter().map(Servers::requests).sum()
    }

    fn request_unit(&self) -> &'static str {
        "commands on all instances, by Redis' INFO"
    }
}

/// Starts independent instances with the same settings, for Redlock.
///
/// # Errors
///
/// If one does not start.
pub fn instances(count: usize, settings: &[&str]) -> Result<Vec<Redis>, ServerError> {
    (0..count).map(|_| Redis::with(settings)).collect()
}

/// Sends a command on a new connection and returns the answer as text, the parts of an array as lines.
///
/// # Errors
///
/// If there is no answer.
pub fn command(address: SocketAddr, words: &[&str]) -> std::io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut stream = BufReader::new(stream);
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.get_mut().write_all(request.as_bytes())?;
    answer(&mut stream)
}

fn answer(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let invalid = || std::io::Error::other("Redis sent an invalid answer");
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(invalid)?;
    match (kind, rest) {
        ("$", "-1") => Ok(String::new()),
        ("$", length) => {
            let length: usize = length.parse().ok().filter(|it| *it < 64 << 20).ok_or_else(invalid)?;
            let mut text = vec![0; length + 2];
            stream.read_exact(&mut text)?;
            Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
        }
        ("*", count) => {
            let count: usize = count.parse().map_err(|_| invalid())?;
            let parts: Result<Vec<String>, _> = (0..count).map(|_| answer(stream)).collect();
            Ok(parts?.join("\n"))
        }
        (_, text) => Ok(text.to_owned()),
    }
}

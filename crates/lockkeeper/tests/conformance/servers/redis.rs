//! One Redis that keeps everything on disk.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use tempfile::TempDir;

use super::{Process, Site, free_address};

pub(crate) struct Redis {
    pub(crate) folder: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) process: Option<Process>,
    more: Vec<&'static str>,
}

impl Redis {
    pub(crate) fn with(more: Vec<&'static str>) -> Redis {
        let folder = tempfile::tempdir().unwrap();
        let mut redis = Redis { folder, address: free_address(), process: None, more };
        redis.restart();
        redis
    }

    /// One command, straight on the protocol; the answer as text, an array as its parts in lines.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let mut stream = BufReader::new(TcpStream::connect(self.address).unwrap());
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        answer(&mut stream)
    }
}

fn answer(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let (kind, rest) = line.trim_end().split_at(1);
    match (kind, rest) {
        ("$", "-1") => String::new(),
        ("$", length) => {
            let mut text = vec![0; length.parse::<usize>().unwrap() + 2];
            stream.read_exact(&mut text).unwrap();
            String::from_utf8_lossy(&text).trim_end().to_owned()
        }
        ("*", count) => {
            (0..count.parse::<usize>().unwrap()).map(|_| answer(stream)).collect::<Vec<_>>().join("\n")
        }
        (_, text) => text.to_owned(),
    }
}

impl Site for Redis {
    fn start() -> Redis {
        Redis::with(vec!["--appendonly", "yes", "--appendfsync", "always"])
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("redis://{}", addresses[0])
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn restart(&mut self) {
        let port = self.address.port().to_string();
        let folder = self.folder.path().to_string_lossy().into_owned();
        let mut arguments = vec!["--port", &port, "--bind", "127.0.0.1", "--dir", &folder, "--save", ""];
        arguments.extend(&self.more);
        let log = self.folder.path().join("log");
        self.process =
            Some(Process::start("redis-server", &arguments, &log).until_it_listens(self.address, &log));
        if !self.more.contains(&"--requirepass") {
            while self.command(&["PING"]).starts_with("LOADING") {}
        }
    }

    fn connections(&self) -> Option<usize> {
        // One of them is this one.
        Some(self.command(&["CLIENT", "LIST"]).lines().filter(|line| line.starts_with("id=")).count() - 1)
    }

    fn left_behind(&self) -> Vec<String> {
        let keys = self.command(&["KEYS", "*"]);
        keys.lines().filter(|key| *key != "lockkeeper:token").map(str::to_owned).collect()
    }
}

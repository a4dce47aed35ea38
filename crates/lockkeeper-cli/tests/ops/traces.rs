//! Spans as a collector receives them: OTLP over HTTP with protobuf.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use prost::Message;
use serde_json::{Value, json};

use crate::support::{BINARY, LONG, Process, until};

/// A span with the fields that the tests examine.
#[derive(Debug, Clone)]
struct RecordedSpan {
    name: String,
    service: String,
    trace: String,
    id: String,
    parent: String,
    links: Vec<String>,
    attributes: BTreeMap<String, String>,
}

/// Receives requests to /v1/traces.
struct Collector {
    address: String,
    seen: Arc<Mutex<Vec<RecordedSpan>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let all = all.clone();
                std::thread::spawn(move || receive(stream.unwrap(), &all));
            }
        });
        Collector { address, seen }
    }

    /// The first span that matches.
    fn until(&self, what: &str, matches: impl Fn(&RecordedSpan) -> bool) -> RecordedSpan {
        until(what, || self.seen.lock().unwrap().iter().find(|span| matches(span)).cloned())
    }

    /// A command that sends its spans here without delay.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command
            .args(words)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", self.address))
            .env("OTEL_BSP_SCHEDULE_DELAY", "50")
            .env_remove("LOCKKEEPER_ENGINE")
            .stdin(Stdio::null());
        command
    }
}

fn receive(stream: TcpStream, all: &Mutex<Vec<RecordedSpan>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        assert!(first.starts_with("POST /v1/traces "), "{first}");
        let sent = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
        for part in sent.resource_spans {
            let resource = attributes(part.resource.map(|resource| resource.attributes).unwrap_or_default());
            for span in part.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                all.lock().unwrap().push(RecordedSpan {
                    name: span.name,
                    service: resource["service.name"].clone(),
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
                    attributes: attributes(span.attributes),
                });
            }
        }
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(all: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Any| match value {
        Any::StringValue(text) => text,
        Any::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    all.into_iter().filter_map(|pair| Some((pair.key, text(pair.value?.value?)))).collect()
}

fn serve(command: &mut Command) -> (Process, String) {
    let mut process = Process::spawn(command.stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("lockkeeper serves on ").unwrap_or_else(|| panic!("{line}"));
    (process, address.split(' ').next().unwrap().to_owned())
}

fn post(address: &str, path: &str, headers: &str, body: &Value) -> Value {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let length = body.len();
    write!(stream, "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn open(address: &str, owner: &str) -> String {
    let opened = post(address, "/v1/session/open", "", &json!({"ttl_ms": 60_000, "owner": owner}));
    opened["session"].as_str().unwrap().to_owned()
}

fn until_waiting(address: &str, lock: &str) {
    let engine = format!("lockkeeper://{address}");
    until("a waiter", || {
        let output = Command::new(BINARY)
            .args(["who", lock, "--output", "json", "--engine", &engine])
            .output()
            .unwrap();
        let seen: Value = serde_json::from_slice(&output.stdout).ok()?;
        (seen["waiting"] == 1).then_some(())
    });
}

#[test]
fn wait_span_names_the_holder_and_joins_the_callers_trace() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const CALLER: &str = "00f067aa0ba902b7";
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let data = folder.path().join("data");
    let words = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    let (_process, address) = serve(collector.command(&words).current_dir(folder.path()));
    let (one, two) = (open(&address, "billing@host-1"), open(&address, "billing@host-2"));
    let held = post(&address, "/v1/lock/acquire", "", &json!({"session": one, "lock": "orders"}));

    let waiting = {
        let (address, two) = (address.clone(), two.clone());
        std::thread::spawn(move || {
            let headers = format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n");
            let body = json!({"session": two, "lock": "orders", "wait_ms": 30_000});
            post(&address, "/v1/lock/acquire", &headers, &body)
        })
    };
    until_waiting(&address, "orders");
    let release = json!({"session": one, "lock": "orders", "token": held["token"]});
    post(&address, "/v1/lock/release", "", &release);
    let granted = waiting.join().unwrap();

    let wait = collector.until("the span of the wait", |span| span.name == "wait");
    assert_eq!(wait.attributes["holder"], format!("billing@host-1 (token {})", held["token"]), "{wait:?}");
    assert_eq!(wait.attributes["lock"], "orders");
    assert_eq!(wait.attributes["session"], two[..8], "only the first digits of the session id");
    assert!(wait.attributes.contains_key("waited_ms"), "{wait:?}");
    assert_eq!((wait.service.as_str(), wait.trace.as_str()), ("lockkeeper", TRACE));
    let acquire = collector.until("the span around it", |span| span.id == wait.parent);
    assert_eq!(acquire.name, "acquire");
    assert_eq!(acquire.attributes["token"], granted["token"].to_string(), "{acquire:?}");
    assert_eq!(acquire.attributes["outcome"], "done");
    let call = collector.until("the span of the call", |span| span.id == acquire.parent);
    assert_eq!((call.name.as_str(), call.parent.as_str()), ("POST /v1/lock/acquire", CALLER));
    let batch = collector.until("the entry that carried it", |span| acquire.links.contains(&span.id));
    assert_eq!(batch.name, "batch");
    assert!(batch.attributes["commands"].parse::<u64>().unwrap() >= 1);
    let release = collector.until("the release", |span| span.name == "release");
    assert_ne!(release.trace, TRACE, "a request without a traceparent has its own trace");
}

#[test]
fn library_span_has_the_wait_and_the_holder() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let collector = Collector::start();
    // The node itself sends nothing.
    let mut node = Command::new(BINARY);
    node.args(["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()])
        .current_dir(folder.path());
    let (_process, address) = serve(&mut node);
    let session = open(&address, "importer@host-9");
    // The library's query for the holder is not observable, so the lock is held for increasing times until the query has
    // completed.
    for held_ms in [100, 500, 2_500, 12_500] {
        collector.seen.lock().unwrap().clear();
        let held = post(&address, "/v1/lock/acquire", "", &json!({"session": session, "lock": "import"}));
        let engine = format!("lockkeeper://{address}");
        let mut run = Process::spawn(
            collector
                .command(&["run", "import", "--engine", &engine, "--", "true"])
                .env("OTEL_SERVICE_NAME", "nightly"),
        );
        until_waiting(&address, "import");
        std::thread::sleep(Duration::from_millis(held_ms));
        let release = json!({"session": session, "lock": "import", "token": held["token"]});
        post(&address, "/v1/lock/release", "", &release);
        assert_eq!(run.code(), 0);
        let acquire = collector.until("the span of the acquire", |span| span.name == "acquire");
        let Some(holder) = acquire.attributes.get("holder") else { continue };
        assert_eq!(*holder, format!("importer@host-9 (token {})", held["token"]), "{acquire:?}");
        assert_eq!(acquire.service, "nightly");
        assert_eq!(acquire.attributes["lock"], "import");
        assert!(acquire.attributes["waited_ms"].parse::<u64>().unwrap() >= held_ms, "{acquire:?}");
        assert_eq!(acquire.attributes["outcome"], "granted");
        return;
    }
    panic!("no span named the holder");
}

#[test]
fn unsupported_exporters_are_reported_and_the_command_runs() {
    let folder = tempfile::tempdir().unwrap();
    let engine = format!("embedded:{}", folder.path().join("data").display());
    for (name, value, word) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318", "https"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
    ] {
        let output = Command::new(BINARY)
            .args(["run", "job", "--engine", &engine, "--", "echo", "done"])
            .env("OTEL_TRACES_EXPORTER", "otlp")
            .env(name, value)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{output:?}");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("traces are off") && said.contains(word), "{said}");
    }
}

#[test]
fn node_serves_and_stops_without_a_reachable_collector() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut node = Command::new(BINARY);
    node.args(["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()])
        .current_dir(folder.path())
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        .env("LOCKKEEPER_LOG", "error");
    let (mut process, address) = serve(&mut node);
    open(&address, "somebody");
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.code(), 0);
}

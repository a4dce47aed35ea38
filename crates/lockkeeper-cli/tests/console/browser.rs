//! A real Chromium, driven by the DevTools protocol over pipes. It needs nothing but the browser.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

/// Longer than any operation takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Variable with a folder: the tests save a screenshot of each view there.
const PICTURES: &str = "LOCKKEEPER_PICTURES";

/// A browser with one page.
pub struct Browser {
    session: String,
    input: tokio::sync::Mutex<ChildStdin>,
    shared: Arc<Shared>,
    numbers: AtomicU64,
    _process: Child,
    _folder: tempfile::TempDir,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    /// Errors of the page: exceptions, blocked content, missing files.
    errors: Mutex<Vec<String>>,
}

fn binary() -> PathBuf {
    let known = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
    let named = std::env::var_os("LOCKKEEPER_CHROMIUM").map(PathBuf::from);
    named
        .or_else(|| known.iter().map(PathBuf::from).find(|path| path.exists()))
        .expect("a Chromium: install the package chromium, or name one with LOCKKEEPER_CHROMIUM")
}

impl Browser {
    /// Starts a browser, which ends with the test.
    pub async fn start() -> Browser {
        let folder = tempfile::tempdir().expect("a folder");
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        let mut process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "sh", "-c"])
            // It reads commands from descriptor 3 and answers on descriptor 4.
            .arg("exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null")
            .arg(binary())
            .args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--mute-audio"])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("setpriv (util-linux) starts the browser");
        let shared = Arc::new(Shared::default());
        let input = process.stdin.take().expect("a pipe");
        tokio::spawn(listen(process.stdout.take().expect("a pipe"), Arc::clone(&shared)));
        let mut browser = Browser {
            session: String::new(),
            input: tokio::sync::Mutex::new(input),
            shared,
            numbers: AtomicU64::new(1),
            _process: process,
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser.size(1040, 780, false).await;
        browser
    }

    async fn call(&self, method: &str, parameters: Value) -> Value {
        let id = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.shared.waiting.lock().unwrap().insert(id, sender);
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.lock().await.write_all(&bytes).await.expect("the browser listens");
        let answer = tokio::time::timeout(TIMEOUT, answer).await.expect("an answer in time");
        let answer = answer.expect("the browser is there");
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Opens an address without waiting.
    pub async fn visit(&self, address: &str) {
        self.call("Page.navigate", json!({"url": address})).await;
    }

    /// Opens an address and waits for the first view. Returns how long that took.
    pub async fn open(&self, address: &str) -> Duration {
        self.call("Page.navigate", json!({"url": "about:blank"})).await;
        let began = Instant::now();
        self.call("Page.navigate", json!({"url": address})).await;
        self.until("document.querySelector('main')?.getAttribute('aria-busy') === 'false'").await;
        began.elapsed()
    }

    /// Switches to another view of the console and waits for it.
    pub async fn go(&self, hash: &str) {
        self.eval(&format!(
            "location.hash = {}; document.querySelector('main').setAttribute('aria-busy', 'true')",
            json!(hash)
        ))
        .await;
        self.until("document.querySelector('main').getAttribute('aria-busy') === 'false'").await;
    }

    /// Evaluates an expression in the page.
    pub async fn eval(&self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", parameters).await;
        let exception = &answer["exceptionDetails"];
        assert!(exception.is_null(), "{expression}: {exception}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page.
    pub async fn until(&self, expression: &str) {
        let began = Instant::now();
        loop {
            let parameters = json!({"expression": format!("!!({expression})"), "returnByValue": true});
            let answer = self.call("Runtime.evaluate", parameters).await;
            if answer["result"]["value"] == true {
                return;
            }
            if began.elapsed() > TIMEOUT {
                let text = self.eval("document.body?.innerText").await;
                panic!("timed out after {TIMEOUT:?} waiting for {expression}; the page: {text}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the page shows a text.
    pub async fn until_text(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text))).await;
    }

    /// The accessibility tree: everything on the page that a screen reader sees.
    pub async fn accessibility_tree(&self) -> Vec<Value> {
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().expect("a tree").iter();
        nodes.filter(|node| node["ignored"] == false).cloned().collect()
    }

    /// Presses and releases a key.
    pub async fn press(&self, key: &str, code: u64) {
        for kind in ["keyDown", "keyUp"] {
            let text = if key == "Enter" { "\r" } else { "" };
            let key =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", key).await;
        }
    }

    /// Types a text.
    pub async fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Sets the size of the window, and whether it is a phone.
    pub async fn size(&self, width: u32, height: u32, phone: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Sets the preferred colour scheme, light or dark.
    pub async fn scheme(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Saves a screenshot for the documentation if [`PICTURES`] is set.
    pub async fn screenshot(&self, name: &str) {
        let Some(folder) = std::env::var_os(PICTURES).map(PathBuf::from) else { return };
        let answer = self.call("Page.captureScreenshot", json!({"format": "webp", "quality": 75})).await;
        let data = answer["data"].as_str().expect("a picture");
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
        std::fs::create_dir_all(&folder).expect("a folder for pictures");
        std::fs::write(folder.join(format!("{name}.webp")), bytes).expect("the picture is written");
    }

    /// Errors of the page since the last call.
    pub fn errors(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.errors.lock().unwrap())
    }
}

async fn listen(output: ChildStdout, shared: Arc<Shared>) {
    let mut output = BufReader::new(output);
    let mut bytes = Vec::new();
    while output.read_until(0, &mut bytes).await.is_ok_and(|count| count > 0) {
        bytes.pop();
        let message: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        bytes.clear();
        if let Some(id) = message["id"].as_u64() {
            if let Some(waiting) = shared.waiting.lock().unwrap().remove(&id) {
                drop(waiting.send(message));
            }
            continue;
        }
        let parameters = &message["params"];
        let error = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => Some(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                Some(parameters["entry"].to_string())
            }
            _ => None,
        };
        shared.errors.lock().unwrap().extend(error);
    }
}

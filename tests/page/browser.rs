//! A headless Chromium, driven by its own protocol over a pipe: one JSON message after another, each ended by a zero byte
//! (`--remote-debugging-pipe`). So no crate of a driver is built for every other test.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

use crate::support::eventually;

/// The longest wait for an answer of the browser.
const TIMEOUT: Duration = Duration::from_secs(60);

/// As root in a container Chromium needs `--no-sandbox`. The others keep it from connecting anywhere by itself.
const ARGUMENTS: [&str; 13] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--remote-debugging-pipe",
];

/// A running Chromium. It is killed when dropped.
pub(crate) struct Browser {
    _process: Child,
    _profile: TempDir,
    connection: Connection,
}

#[derive(Clone)]
struct Connection {
    sender: mpsc::UnboundedSender<Value>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    next_id: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    /// Every event since the start: its session, name and parameters.
    events: Mutex<Vec<(String, String, Value)>>,
}

impl Connection {
    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Value {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        self.shared.waiting.lock().unwrap().insert(id, sender);
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        self.sender.send(message).unwrap();
        let answer = tokio::time::timeout(TIMEOUT, answer).await.unwrap_or_else(|_| panic!("{method}: no answer"));
        let answer = answer.unwrap_or_else(|_| panic!("{method}: the browser is gone"));
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }
}

impl Browser {
    pub(crate) fn start(program: &Path) -> Self {
        let profile = TempDir::new().unwrap();
        // The browser reads from descriptor 3 and writes to 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"]).arg(program).args(ARGUMENTS);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let (mut input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, mut messages) = mpsc::unbounded_channel::<Value>();
        tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                let mut bytes = serde_json::to_vec(&message).unwrap();
                bytes.push(0);
                if input.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        let shared = Arc::new(Shared::default());
        tokio::spawn(read(output, Arc::clone(&shared), sender.clone()));
        Self { _process: process, _profile: profile, connection: Connection { sender, shared } }
    }

    /// Opens an empty tab in a profile of its own.
    pub(crate) async fn tab(&self) -> Tab {
        let call = async |method, params| self.connection.call(None, method, params).await;
        let context = call("Target.createBrowserContext", json!({})).await["browserContextId"].clone();
        let target =
            call("Target.createTarget", json!({ "url": "about:blank", "browserContextId": context.clone() })).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = call("Target.attachToTarget", attach).await["sessionId"].as_str().unwrap().to_owned();
        let permissions =
            json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "browserContextId": context });
        call("Browser.grantPermissions", permissions).await;
        let tab = Tab { connection: self.connection.clone(), session };
        for domain in ["Page", "Network", "Runtime", "Log"] {
            tab.call(&format!("{domain}.enable"), json!({})).await;
        }
        tab
    }
}

async fn read(output: ChildStdout, shared: Arc<Shared>, sender: mpsc::UnboundedSender<Value>) {
    let mut output = BufReader::new(output);
    loop {
        let mut message = Vec::new();
        match output.read_until(0, &mut message).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let message: Value = serde_json::from_slice(message.strip_suffix(&[0]).unwrap_or(&message)).unwrap();
        if let Some(id) = message["id"].as_u64() {
            if let Some(waiting) = shared.waiting.lock().unwrap().remove(&id) {
                let _ = waiting.send(message);
            }
            continue;
        }
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let (session, name, params) = (text("sessionId"), text("method"), message["params"].clone());
        // Nobody waits for a request that the tab would hold.
        if name == "Fetch.requestPaused" {
            let params = json!({ "requestId": params["requestId"] });
            let _ = sender
                .send(json!({ "id": 0, "sessionId": session, "method": "Fetch.continueRequest", "params": params }));
        }
        shared.events.lock().unwrap().push((session, name, params));
    }
    // Whoever waits for an answer learns that there is none.
    shared.waiting.lock().unwrap().clear();
}

/// A tab.
pub(crate) struct Tab {
    connection: Connection,
    session: String,
}

impl Tab {
    pub(crate) async fn call(&self, method: &str, params: Value) -> Value {
        self.connection.call(Some(&self.session), method, params).await
    }

    /// The parameters of the events of this name.
    fn events(&self, name: &str) -> Vec<Value> {
        let events = self.connection.shared.events.lock().unwrap();
        let of_tab = events.iter().filter(|(session, event, _)| *session == self.session && event == name);
        of_tab.map(|(_, _, params)| params.clone()).collect()
    }

    /// Opens a URL, and waits until everything of it is loaded.
    pub(crate) async fn open(&self, url: &str) {
        let loaded = self.events("Page.loadEventFired").len();
        let answer = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        self.wait_for_load(loaded).await;
    }

    async fn wait_for_load(&self, before: usize) {
        eventually("the page is loaded", async || (self.events("Page.loadEventFired").len() > before).then_some(()))
            .await;
    }

    /// Does something that leads to another page, and waits for it.
    pub(crate) async fn leave_by(&self, action: impl AsyncFnOnce()) {
        let loaded = self.events("Page.loadEventFired").len();
        action().await;
        self.wait_for_load(loaded).await;
    }

    /// The value of a JavaScript expression, which may be a promise.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        let answer = self.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// The text of the first element that a CSS selector finds, as a person sees it; `None` without one.
    pub(crate) async fn text(&self, selector: &str) -> Option<String> {
        let text = self.value(&format!("document.querySelector({})?.innerText", json!(selector))).await;
        text.as_str().map(str::to_owned)
    }

    /// Waits until the text of an element contains a text.
    pub(crate) async fn wait_for_text(&self, selector: &str, expected: &str) {
        let awaited = format!("{selector} says {expected:?}");
        eventually(&awaited, async || self.text(selector).await.filter(|text| text.contains(expected))).await;
    }

    /// Clicks the middle of an element with the mouse.
    pub(crate) async fn click(&self, selector: &str) {
        let found = format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{ block: 'center', behavior: 'instant' }}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()",
            json!(selector)
        );
        let place = self.value(&found).await;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    /// Presses a key: `Tab`, `Enter`.
    pub(crate) async fn press(&self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            other => panic!("{other}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Types into the element that has the focus.
    pub(crate) async fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({ "text": text })).await;
    }

    /// Shows the page at this width in pixels, light or dark.
    pub(crate) async fn resize(&self, width: u32, height: u32, scheme: &str) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    pub(crate) async fn disable_scripts(&self) {
        self.call("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await;
    }

    /// Writes a picture of the page, from its top to its end or `max_height`.
    pub(crate) async fn picture(&self, file: &Path, max_height: u32) {
        self.picture_from(file, "html", max_height, 1.0).await;
    }

    /// Writes a picture of the page in this scale, from the top of an element to the end of the page or `max_height`.
    pub(crate) async fn picture_from(&self, file: &Path, selector: &str, max_height: u32, scale: f64) {
        let found = format!("document.querySelector({}).getBoundingClientRect().top + scrollY", json!(selector));
        let top = (self.value(&found).await.as_f64().unwrap() - 16.0).max(0.0);
        let size = self.call("Page.getLayoutMetrics", json!({})).await["cssContentSize"].clone();
        let height = (size["height"].as_f64().unwrap() - top).min(f64::from(max_height));
        let clip = json!({ "x": 0, "y": top, "width": size["width"], "height": height, "scale": scale });
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip, "optimizeForSpeed": false });
        let picture = self.call("Page.captureScreenshot", params).await;
        std::fs::write(file, STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()).unwrap();
    }

    /// Answers the next demand for a user name and a password.
    pub(crate) async fn sign_in(&self, url: &str, user: &str, password: &str) {
        self.call("Fetch.enable", json!({ "handleAuthRequests": true })).await;
        let loaded = self.events("Page.loadEventFired").len();
        let navigate = self.call("Page.navigate", json!({ "url": url }));
        let answer = async {
            let demand =
                eventually("the browser asks for a password", async || self.events("Fetch.authRequired").pop()).await;
            assert_eq!(demand["authChallenge"]["scheme"], "basic", "{demand}");
            let response = json!({ "response": "ProvideCredentials", "username": user, "password": password });
            let params = json!({ "requestId": demand["requestId"], "authChallengeResponse": response });
            self.call("Fetch.continueWithAuth", params).await;
        };
        tokio::join!(navigate, answer);
        self.wait_for_load(loaded).await;
        self.call("Fetch.disable", json!({})).await;
    }

    /// What must not happen on a page: errors on the console, exceptions, refusals of the content security policy, dialogs,
    /// and requests to another origin than this one.
    pub(crate) fn complaints(&self, origin: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        for event in self.events("Runtime.consoleAPICalled") {
            if event["type"] == "error" || event["type"] == "warning" {
                complaints.push(format!("console: {event}"));
            }
        }
        complaints.extend(self.events("Runtime.exceptionThrown").iter().map(|event| format!("exception: {event}")));
        for event in self.events("Log.entryAdded") {
            if event["entry"]["level"] == "error" || event["entry"]["level"] == "warning" {
                complaints.push(format!("log: {}", event["entry"]));
            }
        }
        complaints.extend(self.events("Page.javascriptDialogOpening").iter().map(|event| format!("dialog: {event}")));
        for event in self.events("Network.requestWillBeSent") {
            let url = event["request"]["url"].as_str().unwrap();
            if !url.starts_with(&format!("{origin}/")) && !url.starts_with("data:") && url != "about:blank" {
                complaints.push(format!("request: {url}"));
            }
        }
        complaints
    }

    /// What the accessibility rules find, each with the elements that it concerns. `axe` is the source of axe-core.
    pub(crate) async fn violations(&self, axe: &str) -> Vec<String> {
        self.value(&format!("{axe};0")).await;
        let run = "axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations.map((one) => \
                   `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html + ' ' + (node.any[0]?.message ?? '')).join(' ; ')}`))";
        let found = self.value(run).await;
        found.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
    }
}

//! Warm-up jobs over HTTP, and reading their reports.

use serde_json::Value;

use super::eventually;
use super::http::{Answer, client, send};
use super::larder::Larder;
use super::process::Process;
use super::reports::{JobItemReport, JobReport};
use super::upstream::Provider;

pub(crate) const PLATFORMS: [&str; 2] = ["linux_amd64", "darwin_arm64"];

/// A larder that takes warm-up orders, in this process or another.
#[derive(Debug, Clone)]
pub(crate) struct WarmFixture {
    admin: String,
    token: String,
}

impl WarmFixture {
    pub(crate) fn of(larder: &Larder) -> Self {
        Self { admin: larder.admin(), token: larder.token() }
    }

    pub(crate) fn at(larder: &Process, token: String) -> Self {
        Self { admin: larder.admin(), token }
    }

    pub(crate) async fn send(&self, method: &str, path: &str, kind: &str, body: impl Into<reqwest::Body>) -> Answer {
        let request = client().request(method.parse().unwrap(), format!("{}{path}", self.admin));
        let request = request.bearer_auth(&self.token).header("content-type", kind).body(body);
        send(request).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "application/json", body.to_string()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(client().get(format!("{}{path}", self.admin))).await.unwrap()
    }

    /// Takes a warm-up on, and gives the path of its job.
    pub(crate) async fn begin(&self, order: &Value) -> String {
        Self::taken_on(&self.post("/admin/v1/warm", order).await)
    }

    pub(crate) async fn begin_lock_file(&self, file: &str, query: &str) -> String {
        let path = format!("/admin/v1/warm?{query}");
        Self::taken_on(&self.send("POST", &path, "text/plain", file.to_owned()).await)
    }

    fn taken_on(answer: &Answer) -> String {
        assert_eq!(answer.status, 202, "{}", answer.text());
        let path = answer.header("location").to_owned();
        assert_eq!(path, format!("/admin/v1/jobs/{}", answer.json()["id"].as_str().unwrap()));
        path
    }

    pub(crate) async fn job(&self, path: &str) -> JobReport {
        JobReport::parse(self.get(path).await.expect(200).json())
    }

    /// The job once it is so.
    pub(crate) async fn once(&self, path: &str, is_so: impl Fn(&JobReport) -> bool) -> JobReport {
        eventually("the job comes so far", async || Some(self.job(path).await).filter(&is_so)).await
    }

    pub(crate) async fn ended(&self, path: &str) -> JobReport {
        self.once(path, |job| job.state != "running").await
    }

    pub(crate) async fn cancel(&self, path: &str) -> JobReport {
        JobReport::parse(self.send("DELETE", path, "application/json", "").await.expect(200).json())
    }

    pub(crate) async fn warm(&self, order: &Value) -> JobReport {
        let path = self.begin(order).await;
        self.ended(&path).await
    }
}

/// Each item as `TYPE@VERSION PLATFORM STATE`.
pub(crate) fn items(job: &JobReport) -> Vec<String> {
    let line = |item: &JobItemReport| {
        let name = item.name();
        let (short, platform) = (name.rsplit('/').next().unwrap(), item.package.platform.as_deref().unwrap());
        format!("{short} {platform} {}", item.state)
    };
    job.items.iter().map(line).collect()
}

pub(crate) fn both(provider: Provider) -> Provider {
    PLATFORMS.iter().fold(provider, |provider, platform| provider.platform(platform))
}

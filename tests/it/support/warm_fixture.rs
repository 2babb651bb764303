//! Warm-up jobs over HTTP, and reading their reports.

use serde_json::Value;

use super::eventually;
use super::http::{Answer, client, send};
use super::larder::Larder;
use super::process::Process;
use super::reports::{JobItemReport, JobReport};
use super::upstream::Provider;

pub(crate) const PLATFORMS: [&str; 2] = ["linux_amd64", "darwin_arm64"];

/// The admin API of a larder, in this process or another, for warm-up jobs.
#[derive(Debug, Clone)]
pub(crate) struct WarmFixture {
    admin: String,
    token: String,
}

impl WarmFixture {
    pub(crate) fn for_larder(larder: &Larder) -> Self {
        Self { admin: larder.admin(), token: larder.token() }
    }

    pub(crate) fn for_process(larder: &Process, token: String) -> Self {
        Self { admin: larder.admin(), token }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: impl Into<reqwest::Body>,
    ) -> Answer {
        let request = client().request(method.parse().unwrap(), format!("{}{path}", self.admin));
        let request = request.bearer_auth(&self.token).header("content-type", content_type).body(body);
        send(request).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "application/json", body.to_string()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(client().get(format!("{}{path}", self.admin))).await.unwrap()
    }

    /// Starts a warm-up; returns the path of its job.
    pub(crate) async fn start_job(&self, request: &Value) -> String {
        Self::job_path(&self.post("/admin/v1/warm", request).await)
    }

    /// Starts a warm-up of a lock file; returns the path of its job.
    pub(crate) async fn start_lock_file_job(&self, lock_file: &str, query: &str) -> String {
        let path = format!("/admin/v1/warm?{query}");
        Self::job_path(&self.send("POST", &path, "text/plain", lock_file.to_owned()).await)
    }

    /// The path of the job in a `202` response.
    fn job_path(answer: &Answer) -> String {
        assert_eq!(answer.status, 202, "{}", answer.text());
        let path = answer.header("location").to_owned();
        assert_eq!(path, format!("/admin/v1/jobs/{}", answer.json()["id"].as_str().unwrap()));
        path
    }

    pub(crate) async fn job(&self, path: &str) -> JobReport {
        JobReport::parse(self.get(path).await.expect(200).json())
    }

    /// Waits until the condition holds for the job; returns its report.
    pub(crate) async fn wait_for_job(&self, path: &str, condition: impl Fn(&JobReport) -> bool) -> JobReport {
        eventually("the job reaches the expected state", async || Some(self.job(path).await).filter(&condition)).await
    }

    /// Waits until the job has ended; returns its report.
    pub(crate) async fn finished_job(&self, path: &str) -> JobReport {
        self.wait_for_job(path, |job| job.state != "running").await
    }

    pub(crate) async fn cancel(&self, path: &str) -> JobReport {
        JobReport::parse(self.send("DELETE", path, "application/json", "").await.expect(200).json())
    }

    /// Runs a warm-up to its end.
    pub(crate) async fn warm(&self, request: &Value) -> JobReport {
        let path = self.start_job(request).await;
        self.finished_job(&path).await
    }
}

/// Each item as `TYPE@VERSION PLATFORM STATE`.
pub(crate) fn items(job: &JobReport) -> Vec<String> {
    let line = |item: &JobItemReport| {
        let name = item.name();
        let (type_and_version, platform) =
            (name.rsplit('/').next().unwrap(), item.package.platform.as_deref().unwrap());
        format!("{type_and_version} {platform} {}", item.state)
    };
    job.items.iter().map(line).collect()
}

/// A provider version for both `PLATFORMS`.
pub(crate) fn both_platforms(provider: Provider) -> Provider {
    PLATFORMS.iter().fold(provider, |provider, platform| provider.platform(platform))
}

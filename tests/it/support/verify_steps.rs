//! The steps of a verification walk.

use serde_json::Value;

use super::command_setup::json;
use super::http::{Answer, client, send};
use super::larder::Larder;

pub(crate) async fn verify(larder: &Larder) -> Vec<Value> {
    let answer = send(asking(larder)).await.unwrap().expect(200);
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    steps(&answer)
}

pub(crate) fn asking(larder: &Larder) -> reqwest::RequestBuilder {
    let request = client().post(format!("{}/admin/v1/verify", larder.admin())).bearer_auth(larder.token());
    request.header("content-type", "application/json").body("{}")
}

/// The steps of an answer but those of progress.
pub(crate) fn steps(answer: &Answer) -> Vec<Value> {
    let steps = answer.text().lines().map(json).collect::<Vec<_>>();
    steps.into_iter().filter(|step| step["step"] != "checked").collect()
}

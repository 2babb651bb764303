//! Runs `verify` over the admin API and reads its steps.

use serde_json::Value;

use super::command_setup::json;
use super::http::{Answer, client, send};
use super::larder::Larder;

/// Runs a verification of the whole store; returns its steps without the progress steps.
pub(crate) async fn verify(larder: &Larder) -> Vec<Value> {
    let answer = send(verify_request(larder)).await.unwrap().expect(200);
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    steps(&answer)
}

pub(crate) fn verify_request(larder: &Larder) -> reqwest::RequestBuilder {
    let request = client().post(format!("{}/admin/v1/verify", larder.admin())).bearer_auth(larder.token());
    request.header("content-type", "application/json").body("{}")
}

/// The steps in a response, without the progress steps.
pub(crate) fn steps(answer: &Answer) -> Vec<Value> {
    let steps = answer.text().lines().map(json).collect::<Vec<_>>();
    steps.into_iter().filter(|step| step["step"] != "checked").collect()
}

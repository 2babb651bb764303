//! The index of the admin API.

use std::collections::BTreeSet;

use larder::protocol::admin::PATHS;
use serde_json::Value;

use crate::support::http::{client, get, send};
use crate::support::larder::Larder;

/// Somebody who knows only the port finds everything.
#[tokio::test]
async fn the_index_lists_every_request_and_a_lost_caller_is_sent_there() {
    let larder = Larder::builder().start().await;
    let answer = get(&format!("{}/admin/v1", larder.admin())).await.expect(200);
    assert!(answer.text().lines().count() > PATHS.len(), "the index is for people, too: {}", answer.text());
    let index = answer.json();
    assert_eq!(index["larder"], env!("CARGO_PKG_VERSION"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let listed: BTreeSet<(String, String)> = index["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|request| {
            assert!(!text(&request["what"]).is_empty(), "{request}");
            (text(&request["method"]), text(&request["path"]))
        })
        .collect();
    for (method, path) in &listed {
        // With a method that no path has, larder names the methods of the path.
        let id = if path.contains("/runs/") { "00112233445566770011223344556677" } else { "0011223344556677" };
        let url = format!("{}{}", larder.admin(), path.replace("{id}", id));
        let request = client().request("PATCH".parse().unwrap(), url).bearer_auth(larder.token());
        let allowed = send(request).await.unwrap().expect(405).header("allow").to_owned();
        assert!(allowed.split(", ").any(|allowed| allowed == method), "{method} {path}: {allowed}");
        assert_eq!(allowed.contains("HEAD"), allowed.contains("GET"), "{path}: {allowed}");
    }
    assert_eq!(listed.len(), PATHS.iter().map(|row| row.methods.len()).sum::<usize>());
    let lost = get(&format!("{}/admin/v1/nothing", larder.admin())).await.expect(404).text();
    assert!(lost.contains("GET /admin/v1 lists"), "{lost}");
}

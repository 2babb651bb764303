//! Times in JSON: in answers and printed reports each is written once, in RFC 3339; in files it is seconds since 1970.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::command_setup::{CommandSetup, json};
use crate::support::eventually;
use crate::support::http::get;
use crate::support::larder::Larder;
use crate::support::upstream::{FakeUpstream, Provider, SigningKey};

/// Collects the members with a time in RFC 3339. Asserts that no other member is a time in seconds.
fn collect_times(value: &Value, times: &mut BTreeSet<String>) {
    let Some(object) = value.as_object() else {
        value.as_array().into_iter().flatten().for_each(|element| collect_times(element, times));
        return;
    };
    for (name, member) in object {
        collect_times(member, times);
        // No duration, count or size is as large as the seconds until 2020, or as small as those until 2100.
        let seconds = member.as_u64().filter(|number| (1_577_836_800..4_102_444_800).contains(number));
        assert!(seconds.is_none() || name.contains("bytes"), "{name} of {value}");
        if member.as_str().is_some_and(|text| text.len() == 20 && humantime::parse_rfc3339(text).is_ok()) {
            times.insert(name.clone());
        }
    }
}

fn times(value: &Value) -> Vec<String> {
    let mut times = BTreeSet::new();
    collect_times(value, &mut times);
    times.into_iter().collect()
}

#[tokio::test]
async fn the_admin_api_says_each_time_in_rfc_3339() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let warm = "[[warm]]\nwhat = [\"acme/null\"]\nplatforms = [\"linux_amd64\"]\nevery = \"1d\"";
    let larder = Larder::mirroring(&upstream).always_revalidate().config_lines(warm).start().await;
    let admin = async |path: &str| get(&format!("{}{path}", larder.admin())).await.expect(200);
    let status = async || admin("/admin/v1/status").await.json();
    eventually("the recurring warm-up has run", async || {
        status().await["warm_ups"][0]["next"].as_str().filter(|_| larder_has_one_blob(&larder)).map(|_| ())
    })
    .await;
    upstream.publish(Provider::new("acme", "null").edition(2).signed_by(&SigningKey::new_key()));
    larder.document("null", "1.2.0").await.expect(200);
    assert_eq!(larder.alarms().await.len(), 1);

    let status = status().await;
    assert_eq!(times(&status), ["ended", "next", "served", "since", "started"], "{status}");
    let jobs = admin("/admin/v1/jobs").await.json();
    assert_eq!(times(&jobs), ["ended", "started"], "{jobs}");
    let path = format!("/admin/v1/jobs/{}", jobs["jobs"][0]["id"].as_str().unwrap());
    assert_eq!(times(&admin(&path).await.json()), ["ended", "started"]);
    let events = admin(&format!("{path}/events")).await.text();
    let events: Vec<Value> = events.lines().filter_map(|line| line.strip_prefix("data: ")).map(json).collect();
    assert_eq!(events.len(), 2, "{events:?}");
    events.iter().for_each(|event| assert_eq!(times(event), ["ended", "started"]));
    // An inventory is a file for another larder, which reads exactly these members.
    let inventory = admin("/admin/v1/inventory").await.json();
    assert!(inventory["made"].is_u64(), "{inventory}");
}

fn larder_has_one_blob(larder: &Larder) -> bool {
    larder.folder.blobs().len() == 1
}

#[tokio::test]
async fn commands_print_each_time_of_their_json_in_rfc_3339() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let setup = CommandSetup::new(&upstream);
    let bundle = setup.home.path().join("bundle.tar").display().to_string();
    let warm_up = ["warm", "acme/null", "--platform", "linux_amd64", "--json"];
    let create =
        ["bundle", "create", &bundle, "--for", "acme/null", "--platform", "linux_amd64", "--unsigned", "--json"];
    let apply = ["bundle", "apply", &bundle, "--unsigned", "--json"];
    for (arguments, expected) in [
        (&warm_up[..], &["ended", "started"][..]),
        (&create, &["created"]),
        (&apply, &["applied", "created"]),
        (&["status", "--json"], &["applied", "created"]),
    ] {
        let lines: Vec<Value> = setup.stdout_of(arguments).await.lines().map(json).collect();
        assert_eq!(times(&Value::from(lines.clone())), expected, "{arguments:?}: {lines:?}");
    }
    upstream.publish(Provider::new("acme", "null").edition(2).signed_by(&SigningKey::new_key()));
    setup.run(&["refresh", "acme/null"]).await;
    let findings = json(&setup.stdout_of(&["explain", "--json"]).await);
    assert_eq!(times(&findings), ["since"], "{findings}");
    // The receipt of that import is a file.
    let receipt = json(&std::fs::read_to_string(&setup.home.files("receipts")[0]).unwrap());
    assert!(receipt["applied"].is_u64() && receipt["created"].is_u64(), "{receipt}");
}

//! The changed and unchanged parts of a page.

use proptest::prelude::*;

use super::*;
use crate::upstream::providers::RawObject;

const FROM: &str = "https://registry.example/v1/modules?limit=2";

fn rewritten_of(body: &str) -> String {
    let page = UpstreamPage {
        body: body.to_owned().into(),
        url: Url::parse(FROM).unwrap(),
        bases: vec![Url::parse("https://registry.example/v1/modules/").unwrap()],
    };
    let host = Hostname::parse("registry.example").unwrap();
    String::from_utf8(with_links(&page, Service::Modules, &host, str::to_owned).unwrap()).unwrap()
}

#[test]
fn urls_of_other_pages_lead_back_here_and_every_other_stays() {
    let ours = "/registry/registry.example/v1/modules";
    for (given, rewritten) in [
        ("/v1/modules?limit=2&offset=2", Some(format!("{ours}?limit=2&offset=2"))),
        ("/v1/modules/?offset=2&limit=2", Some(format!("{ours}?limit=2&offset=2"))),
        ("?offset=4", Some(format!("{ours}?offset=4"))),
        ("https://registry.example/v1/modules/search?q=a+b&offset=2", Some(format!("{ours}/search?offset=2&q=a+b"))),
        ("modules/A/b/aws/1.0.0/download", Some(format!("{ours}/A/b/aws/1.0.0/download"))),
        ("/v1/modules?offset=2&utm_source=x", Some(format!("{ours}?offset=2"))),
        ("", None),
    ] {
        let body = format!(r#"{{ "meta" : {{"next_url":"{given}","x":1e400}},"modules":[ 1.50 ]}}"#);
        let expected = match rewritten {
            Some(rewritten) => body.replace(&format!("\"{given}\""), &format!("\"{rewritten}\"")),
            None => body.clone(),
        };
        assert_eq!(rewritten_of(&body), expected, "{given}");
    }
    // No URL bypasses larder, and an address that only larder reaches is not revealed.
    for further in [
        "/v1/modules?cursor=abc",
        "/v1/modules?offset=x",
        "http://10.0.0.1/v1/modules?token=secret",
        "https://elsewhere.example/v1/modules?offset=2",
        "/v1/modulesque?offset=2",
        "https://[",
    ] {
        for name in ["next_url", "prev_url"] {
            let body = format!(r#"{{ "meta" : {{"{name}":"{further}","next_offset":2}},"modules":[ 1.50 ]}}"#);
            assert_eq!(rewritten_of(&body), body.replace(&format!("\"{further}\""), "null"), "{further}");
        }
    }
    let below = r#"{"page_url":"/v1/modules?cursor=abc"}"#;
    assert_eq!(rewritten_of(below), r#"{"page_url":null}"#);
    let other = r#"{"logo_url":"/images/logo.png","page_url":"https://elsewhere.example/v1/modules?offset=2"}"#;
    assert_eq!(rewritten_of(other), other);
    let in_a_list = r#"{"modules":[{"x": 1e400,"page_url":"/v1/modules/a"},{"source":"/v1/modules/a"}]}"#;
    let expected_body = in_a_list.replace("\"page_url\":\"/v1/modules/a\"", &format!("\"page_url\":\"{ours}/a\""));
    assert_eq!(rewritten_of(in_a_list), expected_body);
    let twice = r#"{"next_url":"/v1/modules/a","x":{"y_url":"/v1/modules/b"},"next_url":"\/v1/modules/c"}"#;
    let expected_body =
        twice.replace("/v1/modules/b", &format!("{ours}/b")).replace("\\/v1/modules/c", &format!("{ours}/c"));
    assert_eq!(rewritten_of(twice), expected_body);
}

proptest! {
    #[test]
    fn foreign_pages_never_panic_and_only_urls_of_pages_change(
        members in prop::collection::btree_map("[a-z_\\\\\"é]{0,4}(_url)?", "null|1e400|\\[ *\\]|\"\\PC{0,20}\"|\"(https?:)?(//)?[a-z./?&=@:]{0,20}\"", 0..5),
        body in "\\PC{0,60}",
    ) {
        let page = |body: String| UpstreamPage { body: body.into(), url: Url::parse(FROM).unwrap(), bases: vec![Url::parse("https://registry.example/v1/modules/").unwrap()] };
        let host = Hostname::parse("registry.example").unwrap();
        let _ = with_links(&page(body), Service::Modules, &host, str::to_owned);
        let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let body = format!("{{\"meta\": {{{}}}}}", members.join(" , "));
        let Ok(before) = serde_json::from_str::<indexmap::IndexMap<String, RawObject>>(&body) else { return Ok(()) };
        let Ok(sent) = with_links(&page(body.clone()), Service::Modules, &host, str::to_owned) else { return Ok(()) };
        let after: indexmap::IndexMap<String, RawObject> = serde_json::from_slice(&sent).unwrap();
        for (name, value) in &before["meta"] {
            let now = after["meta"][name].get();
            let is_led = name.ends_with("_url") && (now.contains("/registry/registry.example/v1/") || now == "null");
            prop_assert!(now == value.get() || is_led, "{name}: {} became {now}", value.get());
        }
    }
}

/// The remaining versions of a details page.
fn only_versions(body: &str, versions: &[&str]) -> Result<String, String> {
    let versions: Vec<Version> = versions.iter().map(|version| Version::parse(version).unwrap()).collect();
    keep_versions(&Bytes::copy_from_slice(body.as_bytes()), &versions)
        .map(|left| String::from_utf8(left.to_vec()).unwrap())
}

#[test]
fn of_a_details_page_only_the_versions_change() {
    let stored = ["1.0.0", "1.1.0"];
    for (body, left) in [
        (
            r#"{ "a" : 1e400,"versions":[ "1.0","v1.1.0", "2.0.0" ] , "b":"ü"}"#,
            r#"{ "a" : 1e400,"versions":["1.0","v1.1.0"] , "b":"ü"}"#,
        ),
        (r#"{"versions":["2.0.0","no version"]}"#, r#"{"versions":[]}"#),
        (r#"{"versions":[]}"#, r#"{"versions":[]}"#),
        // No list of versions to choose from.
        (r#"{"versions":7,"x":[]}"#, r#"{"versions":7,"x":[]}"#),
        (r#"{"meta":{"versions":["2.0.0"]}}"#, r#"{"meta":{"versions":["2.0.0"]}}"#),
    ] {
        assert_eq!(only_versions(body, &stored), Ok(left.to_owned()));
    }
    assert!(only_versions("[]", &stored).is_err());
}

proptest! {
    #[test]
    fn the_versions_of_any_page_are_those_that_are_meant(text in "\\PC{0,60}|\\{\"versions\":\\[(\"[0-9.v]{0,6}\",?){0,4}\\](,\"x\":\\PC{0,9})?\\}") {
        if let Ok(left) = only_versions(&text, &["1.0.0"]) {
            let page: serde_json::Value = serde_json::from_str(&left).unwrap();
            let listed = page["versions"].as_array().into_iter().flatten().filter_map(|entry| entry.as_str());
            prop_assert!(page["versions"].as_array().is_none_or(|all| all.iter().any(|entry| !entry.is_string())) || listed.into_iter().all(|entry| Version::parse_lenient(entry).is_ok_and(|version| version.as_str() == "1.0.0")));
            prop_assert_eq!(only_versions(&left, &["1.0.0"]), Ok(left.clone()));
        }
    }
}

//! Tests of link rewriting and of version filtering: which bytes of a page change.

use proptest::prelude::*;

use super::*;
use crate::upstream::providers::RawObject;

const PAGE_URL: &str = "https://registry.example/v1/modules?limit=2";

fn rewrite_links(body: &str) -> String {
    let page = UpstreamPage {
        body: body.to_owned().into(),
        url: Url::parse(PAGE_URL).unwrap(),
        bases: vec![Url::parse("https://registry.example/v1/modules/").unwrap()],
    };
    let host = Hostname::parse("registry.example").unwrap();
    String::from_utf8(with_links(&page, Service::Modules, &host, str::to_owned).unwrap()).unwrap()
}

#[test]
fn page_urls_are_rewritten_or_nulled_and_other_urls_stay() {
    let larder_path = "/registry/registry.example/v1/modules";
    for (given, rewritten) in [
        ("/v1/modules?limit=2&offset=2", Some(format!("{larder_path}?limit=2&offset=2"))),
        ("/v1/modules/?offset=2&limit=2", Some(format!("{larder_path}?limit=2&offset=2"))),
        ("?offset=4", Some(format!("{larder_path}?offset=4"))),
        (
            "https://registry.example/v1/modules/search?q=a+b&offset=2",
            Some(format!("{larder_path}/search?offset=2&q=a+b")),
        ),
        ("modules/A/b/aws/1.0.0/download", Some(format!("{larder_path}/A/b/aws/1.0.0/download"))),
        ("/v1/modules?offset=2&utm_source=x", Some(format!("{larder_path}?offset=2"))),
        ("", None),
    ] {
        let body = format!(r#"{{ "meta" : {{"next_url":"{given}","x":1e400}},"modules":[ 1.50 ]}}"#);
        let expected = match rewritten {
            Some(rewritten) => body.replace(&format!("\"{given}\""), &format!("\"{rewritten}\"")),
            None => body.clone(),
        };
        assert_eq!(rewrite_links(&body), expected, "{given}");
    }
    // A `next_url` or `prev_url` that larder cannot serve becomes null: it would bypass larder, or reveal an address that
    // only larder reaches.
    for unservable_url in [
        "/v1/modules?cursor=abc",
        "/v1/modules?offset=x",
        "http://10.0.0.1/v1/modules?token=secret",
        "https://elsewhere.example/v1/modules?offset=2",
        "/v1/modulesque?offset=2",
        "https://[",
    ] {
        for name in ["next_url", "prev_url"] {
            let body = format!(r#"{{ "meta" : {{"{name}":"{unservable_url}","next_offset":2}},"modules":[ 1.50 ]}}"#);
            assert_eq!(
                rewrite_links(&body),
                body.replace(&format!("\"{unservable_url}\""), "null"),
                "{unservable_url}"
            );
        }
    }
    // Any other `_url` member becomes null if it points to a page of the API that larder cannot serve.
    let unservable_page = r#"{"page_url":"/v1/modules?cursor=abc"}"#;
    assert_eq!(rewrite_links(unservable_page), r#"{"page_url":null}"#);
    // URLs outside of the API stay.
    let outside = r#"{"logo_url":"/images/logo.png","page_url":"https://elsewhere.example/v1/modules?offset=2"}"#;
    assert_eq!(rewrite_links(outside), outside);
    let list = r#"{"modules":[{"x": 1e400,"page_url":"/v1/modules/a"},{"source":"/v1/modules/a"}]}"#;
    let expected_body = list.replace("\"page_url\":\"/v1/modules/a\"", &format!("\"page_url\":\"{larder_path}/a\""));
    assert_eq!(rewrite_links(list), expected_body);
    // Of two members with the same name the last counts.
    let duplicate = r#"{"next_url":"/v1/modules/a","x":{"y_url":"/v1/modules/b"},"next_url":"\/v1/modules/c"}"#;
    let expected_body = duplicate
        .replace("/v1/modules/b", &format!("{larder_path}/b"))
        .replace("\\/v1/modules/c", &format!("{larder_path}/c"));
    assert_eq!(rewrite_links(duplicate), expected_body);
}

proptest! {
    #[test]
    fn invalid_pages_do_not_panic_and_only_url_members_change(
        members in prop::collection::btree_map("[a-z_\\\\\"é]{0,4}(_url)?", "null|1e400|\\[ *\\]|\"\\PC{0,20}\"|\"(https?:)?(//)?[a-z./?&=@:]{0,20}\"", 0..5),
        body in "\\PC{0,60}",
    ) {
        let page = |body: String| UpstreamPage { body: body.into(), url: Url::parse(PAGE_URL).unwrap(), bases: vec![Url::parse("https://registry.example/v1/modules/").unwrap()] };
        let host = Hostname::parse("registry.example").unwrap();
        let _ = with_links(&page(body), Service::Modules, &host, str::to_owned);
        let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let body = format!("{{\"meta\": {{{}}}}}", members.join(" , "));
        let Ok(original) = serde_json::from_str::<indexmap::IndexMap<String, RawObject>>(&body) else { return Ok(()) };
        let Ok(rewritten_body) = with_links(&page(body.clone()), Service::Modules, &host, str::to_owned) else { return Ok(()) };
        let rewritten: indexmap::IndexMap<String, RawObject> = serde_json::from_slice(&rewritten_body).unwrap();
        for (name, value) in &original["meta"] {
            let new_value = rewritten["meta"][name].get();
            let is_rewritten = name.ends_with("_url") && (new_value.contains("/registry/registry.example/v1/") || new_value == "null");
            prop_assert!(new_value == value.get() || is_rewritten, "{name}: {} became {new_value}", value.get());
        }
    }
}

/// Reduces the versions of a details page to `versions`.
fn kept_versions(body: &str, versions: &[&str]) -> Result<String, String> {
    let versions: Vec<Version> = versions.iter().map(|version| Version::parse(version).unwrap()).collect();
    keep_versions(&Bytes::copy_from_slice(body.as_bytes()), &versions)
        .map(|page| String::from_utf8(page.to_vec()).unwrap())
}

#[test]
fn only_the_versions_of_a_details_page_change() {
    let stored = ["1.0.0", "1.1.0"];
    for (body, expected) in [
        (
            r#"{ "a" : 1e400,"versions":[ "1.0","v1.1.0", "2.0.0" ] , "b":"ü"}"#,
            r#"{ "a" : 1e400,"versions":["1.0","v1.1.0"] , "b":"ü"}"#,
        ),
        (r#"{"versions":["2.0.0","no version"]}"#, r#"{"versions":[]}"#),
        (r#"{"versions":[]}"#, r#"{"versions":[]}"#),
        // Without a top-level list of versions the page stays as it is.
        (r#"{"versions":7,"x":[]}"#, r#"{"versions":7,"x":[]}"#),
        (r#"{"meta":{"versions":["2.0.0"]}}"#, r#"{"meta":{"versions":["2.0.0"]}}"#),
    ] {
        assert_eq!(kept_versions(body, &stored), Ok(expected.to_owned()));
    }
    assert!(kept_versions("[]", &stored).is_err());
}

proptest! {
    #[test]
    fn filtering_versions_keeps_only_the_given_ones_and_is_idempotent(text in "\\PC{0,60}|\\{\"versions\":\\[(\"[0-9.v]{0,6}\",?){0,4}\\](,\"x\":\\PC{0,9})?\\}") {
        if let Ok(filtered) = kept_versions(&text, &["1.0.0"]) {
            let page: serde_json::Value = serde_json::from_str(&filtered).unwrap();
            let listed = page["versions"].as_array().into_iter().flatten().filter_map(|entry| entry.as_str());
            prop_assert!(page["versions"].as_array().is_none_or(|entries| entries.iter().any(|entry| !entry.is_string())) || listed.into_iter().all(|entry| Version::parse_lenient(entry).is_ok_and(|version| version.as_str() == "1.0.0")));
            prop_assert_eq!(kept_versions(&filtered, &["1.0.0"]), Ok(filtered.clone()));
        }
    }
}

//! The status page of the admin listener, without a browser: what it says, what its form does, and who may use it.

use std::time::Duration;

use larder::clock::Clock;
use serde_json::json;

use crate::alarms::{alarm, write_alarm_record};
use crate::support::command_setup::CommandSetup;
use crate::support::http::{Answer, client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::null_provider::{NULL, always_revalidating, edition, install, upstream_with, zip};
use crate::support::pages::{assert_self_contained, readable_text};
use crate::support::ports::free_port;
use crate::support::sealed::{store_archive, upstream_with_four_versions};
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};
use crate::support::warm_fixture::WarmFixture;

const FULL_NULL_120: &str = "registry.terraform.io/acme/null@1.2.0";

async fn open(larder: &Larder) -> Answer {
    get(&format!("{}/", larder.admin())).await.expect(200)
}

/// Presses a button of the page: sends its form with these fields and headers.
async fn press(admin: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Answer {
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let request = client().post(format!("{admin}/")).body(body);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await.unwrap()
}

/// The values of the buttons on a page.
fn buttons(page: &Answer) -> Vec<String> {
    let html = page.text();
    let values = html.split("name=\"do\" value=\"").skip(1);
    values.map(|rest| rest.split_once('"').unwrap().0.to_owned()).collect()
}

/// A larder that refuses other bytes for acme/null 1.2.0, which it has stored before.
async fn larder_with_refused_version() -> (FakeUpstream, Larder, SigningKey) {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    let key = SigningKey::new_key();
    upstream.publish(edition(2).signed_by(&key));
    larder.document("null", "1.2.0").await.expect(200);
    assert_eq!(larder.alarms().await.len(), 1);
    (upstream, larder, key)
}

/// A person who opens the page of a new larder sees what it is for, and no empty table.
#[tokio::test]
async fn a_new_larder_says_that_it_is_ready_and_empty() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let page = open(&larder).await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert_self_contained(&page);
    let text = readable_text(&page);
    for expected in ["Ready", "Nothing is stored yet", "No request came in", "No job has run", HOST, "not asked yet"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!page.text().contains("<svg viewBox"), "{text}");
    assert!(!page.text().contains("<form"), "{text}");
    // The page itself is not traffic.
    assert!(readable_text(&open(&larder).await).contains("No request came in"));
}

#[tokio::test]
async fn the_page_shows_what_is_stored_saved_and_asked() {
    let upstream = upstream_with(Provider::new("acme", "null").size(300_000)).await;
    let clock = Clock::frozen();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    for _ in 0..3 {
        install(&larder).await;
    }
    clock.advance(Duration::from_secs(120));
    let page = open(&larder).await;
    let text = readable_text(&page);
    for expected in [
        "All is well",
        "1 archive and ",
        "acme/null 1.2.0 (linux_amd64)",
        "2 min ago",
        "answers",
        "6 requests. ",
        // Two downloads of three, and of the documents.
        "66 %",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // What a chart shows can also be read, and heard.
    let html = page.text();
    assert!(html.contains("role=\"img\" aria-label=\"Sent to clients: "), "{html}");
    assert!(html.contains("aria-label=\"Requests: 4 from the store, 2 upstream was asked, "), "{html}");
    assert_eq!(html.matches("<table>").count(), 3, "{html}");
}

/// The verdict counts failed requests, and the page has the cause, the remedy, the client and the count of each. They are
/// over when their URL is answered.
#[tokio::test]
async fn failed_requests_are_told_until_their_url_is_answered() {
    let upstream = upstream_with(Provider::new("acme", "null")).await;
    let clock = Clock::frozen();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    install(&larder).await;
    assert!(readable_text(&open(&larder).await).contains("All is well"));
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    upstream.fault(Target::Everything, Fault::SignedByAnotherKey);
    let path = format!("/registry/{HOST}/v1/providers/acme/null/1.3.0/download/linux/amd64");
    clock.advance(Duration::from_secs(600));
    larder.versions("null").await.expect(200);
    for _ in 0..30 {
        larder.get(&path).await.expect(502);
    }
    let text = readable_text(&open(&larder).await);
    for expected in [
        "It works, and something needs a look",
        "30 requests of clients failed, the last within the hour, for 1 URL that larder has not answered since.",
        "30 requests in all, the last for 127.0.0.1",
        "signed by key",
        "use 1.2.0, which is stored, until its registry mends it",
        &format!("larder explain {path}"),
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("All is well"), "{text}");
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    let failures = &status["since_start"]["failures"];
    assert_eq!((&failures[0]["times"], &failures[0]["path"]), (&30.into(), &path.clone().into()), "{failures:#}");

    // A path is a client's text, and the command beside it is for a shell.
    upstream.fault(Target::Everything, Fault::Status(500));
    let archive = format!("/archive/{HOST}/providers/acme/null/1.3.0/linux_amd64/aaaaaaaaaaaaaaaa/x';id;'.zip");
    larder.get(&archive).await.expect(502);
    let text = readable_text(&open(&larder).await);
    assert!(text.contains(r"/x'\'';id;'\''.zip'"), "{text}");

    upstream.clear_faults();
    larder.clock.advance(Duration::from_secs(3600));
    larder.get(&path).await.expect(200);
    let text = readable_text(&open(&larder).await);
    assert!(text.contains("All is well") && text.contains("answered since"), "{text}");
}

/// Of many archives the page shows the ten largest, and the ten that are unused for the longest time, in order.
#[tokio::test]
async fn the_largest_and_the_oldest_archives_are_shown_in_order() {
    let (upstream, clock) = (FakeUpstream::start().await, Clock::frozen());
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    // The sizes go up and down, so that neither order is that of the versions.
    let sizes = (0..14).map(|minor: usize| 10_000 + 5_000 * (minor * 5 % 14));
    for (minor, size) in sizes.clone().enumerate() {
        upstream.publish(Provider::new("acme", "null").version(&format!("1.{minor}.0")).size(size));
    }
    for minor in 0..14 {
        store_archive(&larder, &format!("1.{minor}.0"), "linux_amd64").await;
        clock.advance(Duration::from_secs(60));
    }
    let text = readable_text(&open(&larder).await);
    let content = &text[text.find("Largest archives").unwrap()..];
    let (largest, oldest) = content.split_at(content.find("Longest unused").unwrap());
    let named = |part: &str| -> Vec<String> {
        let names = part.match_indices("acme/null 1.").map(|(at, _)| &part[at..]);
        names.map(|name| name.split(' ').nth(1).unwrap().to_owned()).collect()
    };
    let mut by_size: Vec<(usize, usize)> = sizes.enumerate().map(|(minor, size)| (size, minor)).collect();
    by_size.sort_unstable();
    let expected: Vec<String> = by_size.iter().rev().take(10).map(|(_, minor)| format!("1.{minor}.0")).collect();
    assert_eq!(named(largest), expected, "{text}");
    assert_eq!(named(oldest), (0..10).map(|minor| format!("1.{minor}.0")).collect::<Vec<_>>(), "{text}");
}

/// What is refused, why, and what to do about it is on the page.
#[tokio::test]
async fn a_refused_version_is_explained_with_the_command_that_resolves_it() {
    let (_upstream, larder, key) = larder_with_refused_version().await;
    let page = open(&larder).await;
    assert_self_contained(&page);
    let text = readable_text(&page);
    for expected in [
        "A version waits for your decision",
        "acme/null 1.2.0",
        "What happened",
        "The registry offers other files for this version",
        "Why it matters",
        "What clients get",
        &format!("larder accept {FULL_NULL_120}"),
        &format!("larder refresh {FULL_NULL_120}"),
        &key.fingerprint(),
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let [accept, refresh] = &buttons(&page)[..] else { panic!() };
    assert!(accept.starts_with("accept:") && accept.ends_with(&format!(" {FULL_NULL_120}")), "{accept}");
    assert_eq!(*refresh, format!("refresh {FULL_NULL_120}"));
}

/// The button does what the command does: it accepts the version, and says which key and files changed.
#[tokio::test]
async fn the_button_accepts_the_version() {
    let (upstream, larder, key) = larder_with_refused_version().await;
    let [accept, _] = &buttons(&open(&larder).await)[..] else { panic!() };
    let done = press(&larder.admin(), &[("token", &larder.token()), ("do", accept)], &[]).await.expect(200);
    assert_self_contained(&done);
    let text = readable_text(&done);
    for expected in ["Accepted", "acme/null 1.2.0 (linux_amd64): accepted", &key.fingerprint(), "was ", "is  "] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(larder.alarms().await.len(), 0);
    assert!(install(&larder).await.2 == zip(&upstream));
    assert!(!readable_text(&open(&larder).await).contains("What happened"));
}

/// A person accepts the evidence on the page. If it is other evidence by now, or more of it, the button does nothing.
#[tokio::test]
async fn the_button_accepts_only_what_the_page_showed() {
    let (upstream, larder, _) = larder_with_refused_version().await;
    let [accept, _] = &buttons(&open(&larder).await)[..] else { panic!() };
    let token = larder.token();
    let assert_refused = async |accept: &str, detail: &str| {
        let refused = press(&larder.admin(), &[("token", &token), ("do", accept)], &[]).await.expect(409);
        assert_self_contained(&refused);
        let text = readable_text(&refused);
        assert!(text.contains("has changed since the page was loaded") && text.contains("Nothing was done"), "{text}");
        assert_eq!(larder.alarms().await.len(), 1, "{detail}");
    };
    upstream.publish(edition(3).signed_by(&SigningKey::new_key()));
    larder.document("null", "1.2.0").await.expect(200);
    assert_refused(accept, "other evidence").await;
    assert_refused(&format!("accept {FULL_NULL_120}"), "no evidence").await;
    assert_refused(&format!("accept:0123 {FULL_NULL_120}"), "wrong evidence").await;
    assert_refused(&accept.replace("@1.2.0", ""), "more than the page showed").await;
    let [now, _] = &buttons(&open(&larder).await)[..] else { panic!() };
    assert_ne!(accept, now);
    press(&larder.admin(), &[("token", &token), ("do", now)], &[]).await.expect(200);
    assert_eq!(larder.alarms().await.len(), 0);
    assert!(install(&larder).await.2 == zip(&upstream));
    // The finding ended: the button of the old page does nothing.
    let nothing = press(&larder.admin(), &[("token", &token), ("do", now)], &[]).await.expect(200);
    assert!(readable_text(&nothing).contains("nothing to accept"));
}

/// Upstream may change between the page and the button, and larder has not asked it since: no alarm shows the change.
#[tokio::test]
async fn the_button_accepts_nothing_that_upstream_exchanged_after_the_page() {
    let (upstream, larder, shown) = larder_with_refused_version().await;
    let [accept, _] = &buttons(&open(&larder).await)[..] else { panic!() };
    let strange = SigningKey::new_key();
    upstream.publish(edition(3).signed_by(&strange));
    let fields = [("token", &*larder.token()), ("do", accept)];
    let refused = press(&larder.admin(), &fields, &[]).await.expect(409);
    assert!(readable_text(&refused).contains("Nothing was done"), "{}", refused.text());
    assert!(install(&larder).await.2 != zip(&upstream));
    let page = readable_text(&open(&larder).await);
    assert!(page.contains(&strange.fingerprint()) && !page.contains(&shown.fingerprint()), "{page}");
}

/// If upstream took the change back, asking again resolves it.
#[tokio::test]
async fn the_button_asks_upstream_again() {
    let (upstream, larder, _) = larder_with_refused_version().await;
    upstream.publish(edition(1));
    let [_, refresh] = &buttons(&open(&larder).await)[..] else { panic!() };
    let done = press(&larder.admin(), &[("token", &larder.token()), ("do", refresh)], &[]).await.expect(200);
    assert!(readable_text(&done).contains("The registry was asked again"), "{}", done.text());
    assert_eq!(larder.alarms().await.len(), 0);
}

/// An accept that fails says so, and the alarm stays.
#[tokio::test]
async fn a_button_that_fails_says_why() {
    let (upstream, larder, _) = larder_with_refused_version().await;
    upstream.fault(Target::Document, Fault::Status(503));
    let [accept, _] = &buttons(&open(&larder).await)[..] else { panic!() };
    let fields = [("token", &*larder.token()), ("do", accept)];
    let text = readable_text(&press(&larder.admin(), &fields, &[]).await.expect(200));
    assert!(text.contains("It did not work") && text.contains("not accepted: "), "{text}");
    assert_eq!(larder.alarms().await.len(), 1);
}

/// A form without the token changes nothing, on loopback too, and says where the token is.
#[tokio::test]
async fn a_form_without_the_token_is_refused() {
    let (_upstream, larder, _) = larder_with_refused_version().await;
    let order = format!("accept {FULL_NULL_120}");
    let token = larder.token();
    let bearer = format!("Bearer {token}");
    for given in [None, Some(""), Some("x"), Some(&token[1..])] {
        let token = given.map(|token| ("token", token));
        let fields: Vec<_> = token.into_iter().chain([("do", order.as_str())]).collect();
        // A browser would send a header by itself.
        for headers in [&[][..], &[("authorization", bearer.as_str())]] {
            let refused = press(&larder.admin(), &fields, headers).await.expect(403);
            assert_self_contained(&refused);
            let text = readable_text(&refused);
            let file = larder.folder.path().join("admin-token");
            assert!(text.contains("not the admin token") && text.contains(file.to_str().unwrap()), "{text}");
        }
    }
    assert_eq!(larder.alarms().await.len(), 1);
    assert!(larder.metric("larder_refusals_total").await >= 8.0);
}

/// Another site cannot press a button, even with the token, nor can a body that a page may send without asking first.
#[tokio::test]
async fn a_form_of_another_site_is_refused() {
    let (_upstream, larder, _) = larder_with_refused_version().await;
    let (admin, token, order) = (larder.admin(), larder.token(), buttons(&open(&larder).await).swap_remove(0));
    let fields = [("token", &*token), ("do", &*order)];
    let port = admin.rsplit_once(':').unwrap().1.to_owned();
    for headers in [
        &[("origin", "https://evil.example")][..],
        &[("origin", "null")],
        &[("origin", "http://127.0.0.1:1")],
        &[("sec-fetch-site", "cross-site")],
        &[("origin", &admin), ("sec-fetch-site", "same-site")],
        &[("host", "evil.example"), ("origin", "http://evil.example")],
        &[("host", &format!("evil.example:{port}"))],
    ] {
        let refused = press(&admin, &fields, headers).await.expect(403);
        assert!(refused.header("access-control-allow-origin").is_empty(), "{headers:?}");
    }
    for content_type in ["text/plain", "multipart/form-data; boundary=x", "application/json", ""] {
        let body = format!("token={token}&do={order}");
        let request = client().post(format!("{admin}/")).header("content-type", content_type).body(body);
        send(request).await.unwrap().expect(415);
    }
    press(&admin, &[("token", &token), ("do", &"a".repeat(70_000))], &[]).await.expect(413);
    for order in [
        "",
        "accept",
        "accept ",
        "accept:",
        "accept:0123",
        "verify x",
        "accept a/b/c/d/e",
        "purge ../..",
        "accept acme/null@~",
    ] {
        press(&admin, &[("token", &token), ("do", order)], &[]).await.expect(400);
    }
    assert_eq!(larder.alarms().await.len(), 1);
    // As a browser sends the form of the page itself.
    let own = [("origin", admin.as_str()), ("sec-fetch-site", "same-origin")];
    press(&admin, &fields, &own).await.expect(200);
    assert_eq!(larder.alarms().await.len(), 0);
}

/// A link in a wiki opens the page. A page of another site cannot embed it, or read it.
#[tokio::test]
async fn a_link_on_another_site_opens_the_page() {
    let larder = Larder::builder().start().await;
    let request_from = async |headers: &[(&str, &str)]| {
        let request = client().get(format!("{}/", larder.admin())).header("sec-fetch-site", "cross-site");
        send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await.unwrap()
    };
    request_from(&[("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]).await.expect(200);
    for destination in ["iframe", "empty", "script", "image"] {
        request_from(&[("sec-fetch-dest", destination)]).await.expect(403);
    }
    request_from(&[("sec-fetch-dest", "document"), ("host", "evil.example")]).await.expect(403);
    let page = open(&larder).await;
    assert!(page.header("content-security-policy").contains("frame-ancestors 'none'"));
}

/// Off loopback a browser asks for the token as a password, and shows nothing without it.
#[tokio::test]
async fn off_loopback_the_page_asks_for_the_token() {
    let upstream = FakeUpstream::start().await;
    let setup = CommandSetup::with_admin(&upstream, &format!("listen = \"0.0.0.0:{}\"", free_port()));
    let larder = setup.serve();
    let token = std::fs::read_to_string(setup.home.path().join("admin-token")).unwrap();
    let admin = larder.admin().replace("0.0.0.0", "127.0.0.1");
    let refused = get(&format!("{admin}/")).await.expect(401);
    assert!(refused.header("www-authenticate").starts_with("Basic realm="), "{:?}", refused.headers);
    assert!(!refused.text().contains(HOST), "{}", refused.text());
    for path in ["/", "/admin/v1/status", "/metrics"] {
        let url = format!("{admin}{path}");
        send(client().get(&url).basic_auth("admin", Some(&token[1..]))).await.unwrap().expect(401);
        send(client().get(&url).basic_auth(&token, Some(""))).await.unwrap().expect(401);
        send(client().get(&url).basic_auth("admin", Some(&token))).await.unwrap().expect(200);
    }
    // The browser sends the password with every request, so it proves nothing about a change.
    let purge = client().post(format!("{admin}/admin/v1/purge")).basic_auth("admin", Some(&token));
    let purge = purge.header("content-type", "application/json").body(r#"{"what":["acme/null"]}"#);
    let refused = send(purge).await.unwrap().expect(401);
    assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"larder\"");
    let fields = [("do", "purge acme/null")];
    let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let form = client().post(format!("{admin}/")).basic_auth("admin", Some(&token)).body(form);
    send(form.header("content-type", "application/x-www-form-urlencoded")).await.unwrap().expect(403);
    press(&admin, &[("token", &token), ("do", "purge acme/null")], &[("origin", &admin)]).await.expect(200);
}

/// Foreign text is text, whatever it looks like.
#[tokio::test]
async fn hostile_names_are_shown_as_text() {
    let hostile =
        "</dd><script>alert(1)</script><img src=x onerror=alert(2)>\" autofocus onfocus=alert(3) '\u{202e}gnp";
    let folder = Folder::new();
    let mut raised = alarm("republished", "null", "1.2.0");
    raised["detail"] = json!(hostile);
    raised["resolve"] = json!(format!("larder accept {hostile}"));
    write_alarm_record(&folder, "null", &[raised]);
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let lock_file = "provider \"registry.terraform.io/acme/null\" {\n  version = \"1.2.0\"\n}\n";
    let files = json!({ "lock_files": [{ "name": hostile, "text": lock_file }], "platforms": ["linux_amd64"] });
    let _ = fixture.post("/admin/v1/warm", &files).await;
    let page = open(&larder).await;
    assert_self_contained(&page);
    let html = page.text();
    for markup in ["<script>alert", "<img", "\" autofocus", "\u{202e}"] {
        assert!(!html.contains(markup), "{markup}: {html}");
    }
    assert!(readable_text(&page).contains("</dd><script>alert(1)</script>"), "{html}");
    assert!(html.contains("\\u{202e}gnp"), "{html}");
    // What a person types into the address bar or a form comes back as text, too.
    let order = format!("accept {hostile}");
    let refused = press(&larder.admin(), &[("token", &larder.token()), ("do", &order)], &[]).await.expect(400);
    assert_eq!(refused.header("content-type"), "application/json");
}

/// Promise 11: the page stays small, and says how much it leaves out.
#[tokio::test]
async fn ten_thousand_alarms_make_a_page_of_bounded_size() {
    let folder = Folder::new();
    for provider in 0..10 {
        let name = format!("p{provider}");
        let alarms: Vec<_> = (0..1000).map(|patch| alarm("dropped", &name, &format!("1.0.{patch}"))).collect();
        write_alarm_record(&folder, &name, &alarms);
    }
    write_alarm_record(&folder, "null", &[alarm("moved", "null", "1.2.0"), alarm("waits-for-accept", "null", "1.2.0")]);
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    let page = open(&larder).await;
    assert!(page.body.len() < 250_000, "{}", page.body.len());
    let text = readable_text(&page);
    assert!(text.contains("10,002") && text.contains("… and 9952 more."), "{text}");
    // What is refused comes first.
    assert!(text.find("the change is refused").unwrap() < text.find("The registry withdrew it").unwrap(), "{text}");
    assert!(text.contains("2 versions wait for your decision"), "{text}");
}

/// Offline, upstream cannot be asked: the page names the command that brings a bundle, and no button that would fail.
#[tokio::test]
async fn offline_the_page_lists_what_is_missing_and_how_to_bring_it() {
    let upstream = upstream_with_four_versions().await;
    let connected = Larder::mirroring(&upstream).start().await;
    store_archive(&connected, "1.0.0", "linux_amd64").await;
    connected.versions("null").await.expect(200);
    let folder = connected.stop().await;
    let mut refused = alarm("waits-for-accept", "null", "1.2.0");
    refused["resolve"] = json!(format!("larder bundle apply BUNDLE --accept {FULL_NULL_120}"));
    write_alarm_record(&folder, "null", &[refused]);
    let larder = Larder::mirroring(&upstream).store_at(&folder).network("offline = true").start().await;
    larder.document("null", "1.3.0").await;
    let page = open(&larder).await;
    let text = readable_text(&page);
    for expected in [
        "offline",
        "acme/null 1.3.0 (linux_amd64)",
        "larder missing --json > missing.json",
        &format!("larder bundle apply BUNDLE --accept {FULL_NULL_120}"),
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(buttons(&page), [""; 0]);
    assert!(!page.text().contains("<form"), "{text}");
}

/// A job is on the page with its progress, and one that failed with the reasons.
#[tokio::test]
async fn jobs_are_shown_with_their_progress_and_their_failures() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "slow").size(3_000_000));
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let gate = upstream.hold_after(Target::Archive, 100_000);
    let request = |name: &str| json!({ "what": [format!("acme/{name}@1.2.0")], "platforms": ["linux_amd64"] });
    let running = fixture.start_job(&request("slow")).await;
    upstream.wait_for(Target::Archive, 1).await;
    let failed = fixture.warm(&request("absent")).await;
    assert_eq!(failed.state, "failed");
    let page = open(&larder).await;
    let (html, text) = (page.text(), readable_text(&page));
    let id = running.rsplit('/').next().unwrap();
    assert!(html.contains(&format!("<tr data-job=\"{id}\">")), "{html}");
    assert!(html.contains("<progress value=\"0\" max=\"1\""), "{html}");
    assert!(text.contains("0 of 1") && text.contains("acme/slow@1.2.0"), "{text}");
    assert!(text.contains("acme/absent 1.2.0 (linux_amd64): "), "{text}");
    gate.open();
    fixture.finished_job(&running).await;
    let html = open(&larder).await.text();
    assert!(!html.contains("<tr data-job") && html.contains("1 of 1 stored, 1 fetched"), "{html}");
}

/// An upstream that fails, and a larder that can store nothing, are the first thing on the page.
#[tokio::test]
async fn an_upstream_that_does_not_answer_is_named() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    upstream.fault(Target::Everything, Fault::Status(503));
    larder.run_command("refresh", NULL).await;
    let text = readable_text(&open(&larder).await);
    assert!(text.contains("1 upstream does not answer as it should"), "{text}");
    assert!(text.contains("left alone") && text.contains("is asked again in"), "{text}");
}

#[tokio::test]
async fn the_page_answers_head_and_refuses_other_methods() {
    let larder = Larder::builder().start().await;
    let url = format!("{}/", larder.admin());
    let head = send(client().head(&url)).await.unwrap().expect(200);
    assert!(head.body.is_empty() && head.header("content-type").starts_with("text/html"));
    for method in ["PUT", "DELETE", "PATCH"] {
        let refused = send(client().request(method.parse().unwrap(), &url)).await.unwrap().expect(405);
        assert_eq!(refused.header("allow"), "GET, HEAD, POST");
    }
    for path in ["/index.html", "//", "/status"] {
        get(&format!("{}{path}", larder.admin())).await.expect(404);
    }
}

/// The traffic of before a restart is on the page of after it.
#[tokio::test]
async fn the_charts_survive_a_restart() {
    let upstream = upstream_with(edition(1)).await;
    let clock = Clock::frozen();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    install(&larder).await;
    let before = readable_text(&open(&larder).await);
    assert!(before.contains("2 requests. "), "{before}");
    let folder = larder.stop().await;
    clock.advance(Duration::from_secs(600));
    let larder = Larder::mirroring(&upstream).store_at(&folder).clock(&clock).start().await;
    let after = readable_text(&open(&larder).await);
    assert!(after.contains("2 requests. "), "{after}");
}

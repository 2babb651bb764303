//! Promise 8, for modules: each origin gets only its own credential, and secrets in locations appear nowhere.

use crate::support::git_module_fixture::{download_module, download_path};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::process::Process;
use crate::support::upstream::{FakeUpstream, Fault, Target};

const TOKEN: &str = "r3gistryS3cret";
const HOST_TOKEN: &str = "h0stS3cret";

/// A larder with a token for the registry, and one for the archive host that is for `upstreams` only.
fn with_credentials(fixture: &ModuleFixture, folder: &Folder, upstreams: &str) -> Builder {
    let file = |name: &str, secret: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, secret).unwrap();
        format!("token = {{ file = \"{}\" }}", path.display())
    };
    let larder = Larder::builder().store_at(folder).trusting(&fixture.ca).allow_private("127.0.0.1");
    let larder = larder.allow_private(&fixture.registry.origin());
    let url = format!("{}/", fixture.registry.origin());
    let credential = format!(
        "[[credential]]\nhost = \"{}\"\nupstreams = {upstreams}\n{}",
        fixture.archives.host(),
        file("host-token", HOST_TOKEN)
    );
    larder.upstream(HOST, &url, &file("registry-token", TOKEN)).upstream_lines(&credential)
}

fn sent_credentials(upstream: &FakeUpstream) -> Vec<Option<String>> {
    upstream.requests().iter().map(|request| request.header("authorization").map(str::to_owned)).collect()
}

/// The registry's token goes to the registry; the archive host's credential goes to that host, for its upstreams only.
#[tokio::test]
async fn each_credential_is_sent_to_its_own_origin_only() {
    for (upstreams, host_credential) in
        [(format!("[\"{HOST}\"]"), Some(format!("Bearer {HOST_TOKEN}"))), ("[]".to_owned(), None)]
    {
        let fixture = ModuleFixture::with_registry(FakeUpstream::builder().token(TOKEN).start().await).await;
        fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# one\n")]));
        let folder = Folder::new();
        let larder = with_credentials(&fixture, &folder, &upstreams).start().await;
        download_module(larder.base(), "one").await;
        assert!(
            sent_credentials(&fixture.registry)
                .iter()
                .all(|sent_credentials| *sent_credentials == Some(format!("Bearer {TOKEN}")))
        );
        assert_eq!(sent_credentials(&fixture.archives), [host_credential], "{upstreams}");
    }
}

/// A redirect between registry and archive host forwards no credential, in either direction.
#[tokio::test]
async fn a_redirect_does_not_forward_a_credential() {
    let fixture = ModuleFixture::with_registry(FakeUpstream::builder().token(TOKEN).start().await).await;
    let elsewhere = FakeUpstream::builder().tls_with(&fixture.ca).start().await;
    let bytes = tar_gz(&[("main.tf", b"# one\n")]);
    elsewhere.serve_file("/files/one.tar.gz", "application/octet-stream", bytes);
    let redirect = Fault::RedirectTo(302, format!("{}/files/one.tar.gz", elsewhere.origin()));
    // The redirect comes from the archive host, and from the registry's own origin.
    fixture.publish_archive("one", b"");
    fixture.archives.fault(Target::ModuleArchive, redirect.clone());
    fixture.publish("two", "/files/two.tar.gz");
    fixture.registry.fault(Target::ModuleArchive, redirect);
    let folder = Folder::new();
    let larder = with_credentials(&fixture, &folder, &format!("[\"{HOST}\"]")).start().await;
    for name in ["one", "two"] {
        download_module(larder.base(), name).await;
    }
    assert_eq!(sent_credentials(&elsewhere), [None, None]);
    assert!(!format!("{:?}", sent_credentials(&fixture.archives)).contains(TOKEN));
    assert!(!format!("{:?}", sent_credentials(&fixture.registry)).contains(HOST_TOKEN));
}

/// Whether a location with a secret succeeds or fails, the secret is in no log, response, metric or file name.
#[tokio::test]
async fn the_secrets_of_a_location_appear_nowhere() {
    const SECRET: &str = "s1gnatureS3cret";
    let fixture = ModuleFixture::with_one_module().await;
    let url = |name: &str| format!("{}?X-Sig={SECRET}", fixture.url(name));
    fixture.file("bad.tar.gz", b"no archive");
    let host = fixture.archives.host();
    let locations = [
        ("fine", url("one.tar.gz"), 204),
        ("gone", url("absent.tar.gz"), 502),
        ("bad", url("bad.tar.gz"), 502),
        ("userinfo", format!("https://u:{SECRET}@{host}/files/one.tar.gz"), 502),
        ("page", format!("{}/pages/absent?k={SECRET}", fixture.archives.origin()), 502),
        ("git", format!("git::{}/acme/net.git?ref=v1&sshkey={SECRET}", fixture.archives.origin()), 502),
        ("gituser", format!("git::https://u:{SECRET}@{host}/acme/net.git"), 502),
        ("odd", format!("https://{host}/files/one.tar.gz?checksum={SECRET}"), 502),
        ("cut", url("one.tar.gz?archive=zip"), 502),
    ];
    let folder = Folder::new();
    let larder = Process::start(&fixture.larder_on(&folder), folder.path());
    let mut seen_texts = String::new();
    for (name, location, status) in &locations {
        fixture.publish(name, location);
        let answer = larder.get(&download_path(name)).await;
        assert_eq!(answer.status, *status, "{name}: {}", answer.text());
        seen_texts.push_str(&format!("{:?} {}\n", answer.headers, answer.text()));
        let plain = format!("/archive/{HOST}/modules/acme/{name}/test/1.0.0/module.tar.gz");
        let answer = larder.get(&plain).await;
        let is_served = answer.status == 200;
        seen_texts.push_str(&format!(
            "{:?} {}\n",
            answer.headers,
            if is_served { String::new() } else { answer.text() }
        ));
    }
    for path in ["/metrics", "/admin/v1/status"] {
        seen_texts.push_str(&crate::support::http::get(&format!("{}{path}", larder.admin())).await.text());
    }
    // The file names are also checked while a partial download exists.
    fixture.archives.fault(Target::ModuleArchive, Fault::Truncated(50));
    fixture.publish("half", &url("one.tar.gz"));
    seen_texts.push_str(&larder.get(&download_path("half")).await.text());
    for subfolder in ["", "documents", "names", "seen", "staging", "blobs", "aside"] {
        seen_texts.push_str(&format!("{:?}", folder.files(subfolder)));
    }
    seen_texts.push_str(&larder.log().text());
    let leaks: Vec<_> = seen_texts.lines().filter(|line| line.contains(SECRET)).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
    for name in ["names", "seen", "staging"].into_iter().flat_map(|subfolder| folder.files(subfolder)) {
        assert!(!String::from_utf8_lossy(&std::fs::read(&name).unwrap()).contains(SECRET), "{}", name.display());
    }
}

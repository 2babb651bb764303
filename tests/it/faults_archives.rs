//! Faults of archives and of their origin: nothing wrong looks complete or is stored, the client gets an error, and the
//! next request succeeds.

use std::time::Duration;

use futures_util::future::join_all;

use crate::support::http::Received;
use crate::support::larder::{HOST, Larder};
use crate::support::package_fixture::{LARGE_BYTES, SMALL_BYTES};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

/// The result for a client of an archive that is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientResult {
    /// An error before the body.
    Status(u16),
    /// A body that ends early.
    Truncated,
}

const MAX_ARCHIVE_BYTES: u64 = 8 << 20;
const STALL_TIMEOUT: Duration = Duration::from_secs(3);

/// The faults, each with the results for a small and for a large archive.
fn archive_faults() -> Vec<(Vec<Fault>, ClientResult, ClientResult)> {
    use ClientResult::{Status, Truncated};
    // Without ranges: otherwise the download would be resumed repeatedly and complete in the end.
    let without_ranges = |fault| vec![Fault::RangeIgnored, fault];
    vec![
        (vec![Fault::Status(401)], Status(502), Status(502)),
        (vec![Fault::Status(403)], Status(502), Status(502)),
        (vec![Fault::Status(404)], Status(502), Status(502)),
        (vec![Fault::Status(410)], Status(502), Status(502)),
        (vec![Fault::RetryAfter(429, 3600)], Status(503), Status(503)),
        (vec![Fault::Status(451)], Status(502), Status(502)),
        (vec![Fault::Status(500)], Status(502), Status(502)),
        (vec![Fault::RetryAfter(503, 3600)], Status(503), Status(503)),
        (vec![Fault::Html], Status(502), Status(502)),
        (vec![Fault::WrongBytes], Status(502), Truncated),
        (without_ranges(Fault::Truncated(70_000)), Status(502), Truncated),
        (without_ranges(Fault::Reset(150_000)), Status(502), Truncated),
        (without_ranges(Fault::NoLengthTruncated(70_000)), Status(502), Status(502)),
        (vec![Fault::NeverAnswers], Status(504), Status(504)),
        (vec![Fault::Stalls(100_000)], Status(504), Truncated),
        (vec![Fault::Drips(20, Duration::from_millis(100))], Status(504), Truncated),
        (vec![Fault::RedirectLoop(307)], Status(502), Status(502)),
        (vec![Fault::HugeHeader], Status(502), Status(502)),
        // Archives are never decompressed, so this is only a file with wrong bytes.
        (vec![Fault::GzipBomb], Status(502), Status(502)),
        // Without a length the first 1 MiB is withheld, then the body streams until it is too large.
        (vec![Fault::GzipWithoutEnd], Truncated, Truncated),
        (vec![Fault::GzipOfNothing], Truncated, Truncated),
        (vec![Fault::Endless], Truncated, Truncated),
    ]
}

fn client_result(received: &Received) -> ClientResult {
    match received.status {
        200 => {
            assert!(!received.is_complete, "an archive with a fault looks complete");
            ClientResult::Truncated
        }
        status => ClientResult::Status(status),
    }
}

async fn check_each_fault(size: usize) {
    let cases = archive_faults();
    let upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..cases.len()).map(|number| format!("fault{number:02}")).collect();
    names.iter().for_each(|name| upstream.publish(Provider::new("acme", name).size(size)));
    let larder =
        Larder::mirroring(&upstream).stall_timeout(STALL_TIMEOUT).archive_bytes(MAX_ARCHIVE_BYTES).start().await;
    let paths = join_all(names.iter().map(|name| larder.archive_path(name, "1.2.0"))).await;
    for (name, (faults, ..)) in names.iter().zip(&cases) {
        faults.iter().for_each(|fault| upstream.fault(Target::Archive.with_path_part(name), fault.clone()));
    }
    let received = join_all(paths.iter().map(|path| larder.receive(path))).await;
    for ((received, name), (faults, small, large)) in received.iter().zip(&names).zip(&cases) {
        let expected = if size == SMALL_BYTES { *small } else { *large };
        let text = String::from_utf8_lossy(&received.body);
        assert_eq!(
            client_result(received),
            expected,
            "{faults:?} {size}: {}",
            text.chars().take(300).collect::<String>()
        );
        match expected {
            ClientResult::Status(_) => {
                assert!(text.contains(&format!("the archive of {HOST}/acme/{name} 1.2.0")), "{faults:?}: {text}");
                assert!(text.contains(&upstream.origin()) || text.contains(HOST), "{faults:?}: {text}");
                assert!(received.headers.get("retry-after").is_none(), "{faults:?}");
            }
            ClientResult::Truncated => {
                assert!(received.body.len() as u64 <= MAX_ARCHIVE_BYTES, "{faults:?} {}", received.body.len())
            }
        }
    }
    assert!(larder.folder.blobs().is_empty(), "{:?}", larder.folder.blobs());

    upstream.clear_faults();
    for ((path, name), (faults, ..)) in paths.iter().zip(&names).zip(&cases) {
        let zip = upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64");
        assert!(larder.get(path).await.expect(200).body == zip, "after {faults:?}");
    }
    assert_eq!((larder.folder.blobs().len(), larder.folder.partial_downloads().len()), (cases.len(), 0));
}

/// Promises 1, 3 and 11: a small archive is refused before its body, the body of a large one ends early.
#[tokio::test]
async fn no_broken_archive_is_stored() {
    tokio::join!(check_each_fault(SMALL_BYTES), check_each_fault(LARGE_BYTES));
}

/// The media type of these files does not matter, only their bytes.
#[tokio::test]
async fn archives_sums_and_signatures_of_any_media_type_are_accepted() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    for target in [Target::Archive, Target::Sums, Target::Signature] {
        upstream.fault(target, Fault::ContentType("text/html"));
    }
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let answer = larder.get(&path).await.expect(200);
    assert!(answer.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    assert_eq!(answer.header("content-type"), "application/zip", "larder passed on the wrong media type of upstream");
}

/// The error names the origin whose certificate is not trusted.
#[tokio::test]
async fn files_from_an_untrusted_origin_are_refused() {
    let (known, unknown) = (TestCa::new(), TestCa::new());
    let upstream = FakeUpstream::builder().tls_with(&known).releases_tls_with(&unknown).start().await;
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    let mirroring = || Larder::mirroring(&upstream).allow_private("127.0.0.0/8");
    let larder = mirroring().trusting(&known).start().await;
    let refused = larder.document("null", "1.2.0").await.expect(502).text();
    assert!(refused.contains("acme/null") && refused.contains("certificate"), "{refused}");
    assert!(refused.contains(&upstream.releases_origin()), "{refused}");
    assert_eq!((larder.folder.proof_sets().len(), upstream.count_of(Target::Sums)), (0, 0));

    let folder = larder.stop().await;
    let ca_bundle = folder.path().join("both.pem");
    std::fs::write(&ca_bundle, [known.pem(), unknown.pem()].concat()).unwrap();
    let trusting_both = mirroring().network(&format!("ca_file = \"{}\"", ca_bundle.display()));
    let larder = trusting_both.store_at(&folder).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let answer = larder.get(&path).await.expect(200);
    assert!(answer.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
}

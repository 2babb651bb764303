//! The bucket of a fleet: what it takes and gives, and what each of its failures is called.

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use larder::digest::Digest;
use larder::fleet::bucket::{Bucket, BucketError, ObjectName, PART_BYTES};
use larder::upstream::buckets::BucketTrouble;
use larder::verify::Verified;

use crate::support::bucket::{ACCESS_KEY, BucketFault, PLACE, TestBucket, Verb, settings_of};

/// Bytes without a pattern that a shift or a swap of parts would leave as it is.
fn bytes_of(length: usize) -> Bytes {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(next).collect::<Vec<u8>>().into()
}

fn connect(bucket: &TestBucket) -> Bucket {
    let (fleet, network) = bucket.settings();
    Bucket::new(&fleet, &network).unwrap()
}

fn proven(bytes: &Bytes) -> Verified<()> {
    let digest = Digest::of(bytes);
    Verified::by_digest((), digest, digest).unwrap()
}

async fn put(bucket: &Bucket, bytes: &Bytes) -> Result<ObjectName, BucketError> {
    let object = ObjectName::new(&Digest::of(bytes)).unwrap();
    bucket.put(&object, bytes.clone(), &proven(bytes)).await.map(|()| object)
}

async fn put_in_parts(bucket: &Bucket, bytes: &Bytes) -> Result<ObjectName, BucketError> {
    let object = ObjectName::new(&Digest::of(bytes)).unwrap();
    let (partial, mut parts) = (bucket.begin(&object).await?, Vec::new());
    for (number, part) in bytes.chunks(PART_BYTES as usize).enumerate() {
        parts.push(bucket.put_part(&partial, number, Bytes::copy_from_slice(part)).await?);
    }
    bucket.complete(&partial, &parts, &proven(bytes)).await.map(|()| object)
}

async fn read(bucket: &Bucket, object: &ObjectName, from: u64) -> Result<(u64, Vec<u8>), BucketError> {
    let arriving = bucket.get(object, from).await?;
    let pieces: Vec<Bytes> = arriving.bytes.try_collect().await?;
    Ok((arriving.length, pieces.concat()))
}

/// The promises of a bucket: whole objects, objects in parts, ranges, removal, and nothing of an upload that is given up.
async fn promises_hold(bucket: &Bucket) {
    for size in [0, 1, 70_000, 2 * PART_BYTES as usize + 5] {
        let bytes = bytes_of(size);
        let object = put(bucket, &bytes).await.unwrap();
        let (length, whole) = read(bucket, &object, 0).await.unwrap();
        assert!(length == size as u64 && whole == bytes, "{size}");
        if size > 1 {
            let from = size / 3;
            let (length, rest) = read(bucket, &object, from as u64).await.unwrap();
            assert!(length == size as u64 && rest == bytes[from..], "{size} from {from}");
        }
        bucket.delete(&object).await.unwrap();
        bucket.delete(&object).await.unwrap();
        assert_eq!(read(bucket, &object, 0).await.unwrap_err().fault.trouble, BucketTrouble::NoObject);
    }
    let bytes = bytes_of(2 * PART_BYTES as usize + 5);
    let object = put_in_parts(bucket, &bytes).await.unwrap();
    assert!(read(bucket, &object, 0).await.unwrap().1 == bytes);
    bucket.delete(&object).await.unwrap();

    let object = ObjectName::new(&Digest::of(b"given up")).unwrap();
    let partial = bucket.begin(&object).await.unwrap();
    bucket.put_part(&partial, 0, bytes_of(100)).await.unwrap();
    bucket.abort(&partial).await.unwrap();
    assert_eq!(read(bucket, &object, 0).await.unwrap_err().fault.trouble, BucketTrouble::NoObject);
}

/// The bucket of the tests, or the one that `LARDER_TEST_BUCKET` names, as `ENDPOINT BUCKET ACCESS_KEY SECRET`, or without a key:
/// `tests/long/run buckets` runs this with real object stores.
#[tokio::test]
async fn a_bucket_keeps_whole_objects_and_those_in_parts() {
    let named = std::env::var("LARDER_TEST_BUCKET").unwrap_or_default();
    let real = match named.split(' ').collect::<Vec<_>>()[..] {
        [endpoint, bucket, access_key, secret] => Some(settings_of(endpoint, bucket, Some((access_key, secret)), None)),
        [endpoint, bucket] => Some(settings_of(endpoint, bucket, None, None)),
        _ => None,
    };
    if let Some((fleet, network)) = real {
        return promises_hold(&Bucket::new(&fleet, &network).unwrap()).await;
    }
    assert_eq!(named, "", "a real bucket is named otherwise");
    let bucket = TestBucket::start();
    promises_hold(&connect(&bucket)).await;
    assert!(bucket.objects().is_empty() && bucket.unfinished() == 0);
}

/// Each kind of failure has a name of its own: a refusal is never taken for an absent object.
#[tokio::test]
async fn each_trouble_has_its_name() {
    let bucket = TestBucket::start();
    let connected = connect(&bucket);
    let bytes = bytes_of(1000);
    let object = put(&connected, &bytes).await.unwrap();
    for (fault, trouble) in [
        (BucketFault::SlowDown, BucketTrouble::Slow),
        (BucketFault::Conflict, BucketTrouble::Broken),
        (BucketFault::Denied, BucketTrouble::Denied),
        (BucketFault::Full, BucketTrouble::Full),
        (BucketFault::Gone, BucketTrouble::NoBucket),
        (BucketFault::Skewed, BucketTrouble::WrongClock),
        (BucketFault::LostAnswer, BucketTrouble::Unreachable),
    ] {
        bucket.fail_all(fault);
        let asked = [bucket.count(Verb::Put), bucket.count(Verb::Get)];
        let refused = [put(&connected, &bytes).await.unwrap_err(), read(&connected, &object, 0).await.unwrap_err()];
        for error in refused {
            assert_eq!(error.fault.trouble, trouble, "{fault:?}: {error}");
            assert!(error.to_string().starts_with("s3://larder/mirror/ could not "), "{error}");
        }
        let again = [bucket.count(Verb::Put), bucket.count(Verb::Get)];
        assert_eq!(again, asked.map(|count| count + 1), "{fault:?}: larder decides what is repeated");
        bucket.heal();
    }
    bucket.fail_once(Verb::Get, BucketFault::Truncated);
    assert_eq!(read(&connected, &object, 0).await.unwrap_err().fault.trouble, BucketTrouble::Unreachable);
    assert!(read(&connected, &object, 0).await.unwrap().1 == bytes);

    // A completion may answer with success, and fail; and a part may be lost.
    for (verb, fault) in [(Verb::Complete, BucketFault::FailsLate), (Verb::Part, BucketFault::LostPart)] {
        bucket.fail_once(verb, fault);
        let error = put_in_parts(&connected, &bytes).await.unwrap_err();
        assert_eq!(error.fault.trouble, BucketTrouble::Broken, "{error}");
        bucket.heal();
    }
}

/// A key or an endpoint that is wrong is named, and the secret is in no message.
#[tokio::test]
async fn a_wrong_setting_is_named_and_no_secret() {
    let bucket = TestBucket::start();
    let bytes = bytes_of(10);
    let secret = "a-secret-in-no-message";
    for (endpoint, key, place, trouble) in [
        (bucket.endpoint(), "another-key", PLACE, BucketTrouble::Denied),
        (bucket.endpoint(), ACCESS_KEY, "s3://another-bucket/mirror", BucketTrouble::NoBucket),
        ("https://127.0.0.1:9", ACCESS_KEY, PLACE, BucketTrouble::Unreachable),
    ] {
        let (fleet, network) = settings_of(endpoint, place, Some((key, secret)), Some(&bucket.ca_file()));
        let connected = Bucket::new(&fleet, &network).unwrap();
        let error = put(&connected, &bytes).await.unwrap_err();
        assert_eq!(error.fault.trouble, trouble, "{error}");
        assert!(!format!("{error} {error:?} {connected:?} {}", error.remedy()).contains(secret), "{error:?}");
    }
    let (fleet, network) = settings_of(bucket.endpoint(), PLACE, Some((ACCESS_KEY, secret)), None);
    let error = put(&Bucket::new(&fleet, &network).unwrap(), &bytes).await.unwrap_err();
    assert!(error.to_string().contains("no authority that larder trusts has signed its certificate"), "{error}");
}

#[test]
fn a_name_of_an_object_is_that_of_its_archive() {
    let digest = Digest::of(b"an archive");
    let object = ObjectName::new(&digest).unwrap();
    assert_eq!(object.to_string().parse::<ObjectName>().unwrap(), object);
    assert_ne!(ObjectName::new(&digest).unwrap(), object);
    let hex = digest.to_string();
    let random = "0123456789abcdef0123456789abcdef";
    for bad in [
        String::new(),
        format!("b/{}/{hex}", &hex[..2]),
        format!("b/zz/{hex}/{random}"),
        format!("b/{}/{hex}/../../secret", &hex[..2]),
        format!("b/{}/{hex}/{random}/more", &hex[..2]),
        format!("/b/{}/{hex}/{random}", &hex[..2]),
    ] {
        assert!(bad.parse::<ObjectName>().is_err(), "{bad}");
    }
}

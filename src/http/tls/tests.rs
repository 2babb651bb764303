//! Loading, refusing and swapping certificate files.
#![expect(clippy::disallowed_methods, reason = "tests make their own files")]

use std::{fs, os::unix::fs::symlink};

use tempfile::TempDir;

use super::*;

fn pair(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn write(folder: &TempDir, (certificate, key): &(String, String)) -> (PathBuf, PathBuf) {
    let paths = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&paths.0, certificate).unwrap();
    fs::write(&paths.1, key).unwrap();
    paths
}

fn der((certificate, _): &(String, String)) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()
}

fn in_use(tls: &Tls) -> CertificateDer<'static> {
    tls.current.0.load().cert[0].clone()
}

/// Runs the check that notices a change, and the one that finds it settled.
fn look_until_settled(tls: &Tls) {
    let before = tls.read.lock().clone();
    let seen = tls.check_files(&before);
    tls.check_files(&seen);
}

#[test]
fn a_matching_pair_is_loaded() {
    let folder = TempDir::new().unwrap();
    let made = pair("localhost");
    let (certificate, key) = write(&folder, &made);
    assert_eq!(in_use(&Tls::load(&certificate, &key).unwrap()), der(&made));
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_name() {
    let good = pair("localhost");
    let other = pair("localhost");
    let torn = good.0[..good.0.len() / 2].to_owned();
    let cases = [
        ((String::new(), good.1.clone()), "cert.pem is not a PEM certificate chain: it holds no certificate"),
        ((good.1.clone(), good.1.clone()), "cert.pem is not a PEM certificate chain: it holds no certificate"),
        ((torn, good.1.clone()), "cert.pem is not a PEM certificate chain"),
        ((good.0.clone(), good.0.clone()), "key.pem is not a usable private key: it holds no unencrypted"),
        ((good.0.clone(), other.1), "does not belong to the first certificate"),
    ];
    for (files, expected) in cases {
        let folder = TempDir::new().unwrap();
        let (certificate, key) = write(&folder, &files);
        let message = Tls::load(&certificate, &key).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let message = Tls::load(Path::new("/nowhere/cert.pem"), Path::new("/nowhere/key.pem")).unwrap_err().to_string();
    assert!(message.contains("cannot read /nowhere/cert.pem"), "{message}");
}

#[test]
fn a_new_pair_is_taken_over_once_it_has_settled() {
    let folder = TempDir::new().unwrap();
    let (old, new) = (pair("old"), pair("new"));
    let (certificate, key) = write(&folder, &old);
    let tls = Tls::load(&certificate, &key).unwrap();
    let before = tls.read.lock().clone();
    fs::write(&certificate, &new.0).unwrap();
    let half = tls.check_files(&before);
    fs::write(&key, &new.1).unwrap();
    let whole = tls.check_files(&half);
    assert_eq!(in_use(&tls), der(&old));
    tls.check_files(&whole);
    assert_eq!(in_use(&tls), der(&new));
}

#[test]
fn a_broken_file_keeps_the_old_certificate_until_it_is_mended() {
    let folder = TempDir::new().unwrap();
    let (old, new) = (pair("old"), pair("new"));
    let (certificate, key) = write(&folder, &old);
    let tls = Tls::load(&certificate, &key).unwrap();
    fs::write(&certificate, "broken").unwrap();
    look_until_settled(&tls);
    assert_eq!(in_use(&tls), der(&old));
    fs::remove_file(&certificate).unwrap();
    look_until_settled(&tls);
    assert_eq!(in_use(&tls), der(&old));
    write(&folder, &new);
    look_until_settled(&tls);
    assert_eq!(in_use(&tls), der(&new));
}

#[test]
fn a_turned_symbolic_link_is_a_change() {
    let (first, second, links) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let new = pair("new");
    write(&first, &pair("old"));
    write(&second, &new);
    let data = links.path().join("..data");
    symlink(first.path(), &data).unwrap();
    let tls = Tls::load(&data.join("cert.pem"), &data.join("key.pem")).unwrap();
    let turned = links.path().join("turned");
    symlink(second.path(), &turned).unwrap();
    fs::rename(&turned, &data).unwrap();
    look_until_settled(&tls);
    assert_eq!(in_use(&tls), der(&new));
}

#[tokio::test]
async fn the_loop_takes_over_a_new_pair_and_ends_when_told() {
    let folder = TempDir::new().unwrap();
    let new = pair("new");
    let (certificate, key) = write(&folder, &pair("old"));
    let tls = Arc::new(Tls::load(&certificate, &key).unwrap());
    let stop = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&tls).reload_when_changed(stop.clone()));
    write(&folder, &new);
    let changed = async {
        while in_use(&tls) != der(&new) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), changed).await.unwrap();
    stop.cancel();
    running.await.unwrap();
}

//! Loading, refusing and swapping certificate files.
#![expect(clippy::disallowed_methods, reason = "tests make their own files")]

use std::{fs, os::unix::fs::symlink};

use tempfile::TempDir;

use super::*;

fn certificate_and_key(name: &str) -> (String, String) {
    let generated = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (generated.cert.pem(), generated.signing_key.serialize_pem())
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
    tls.in_use.0.load().cert[0].clone()
}

/// Runs two checks: the first notices a change, the second finds the files unchanged since and loads them.
fn check_until_settled(tls: &Tls) {
    let loaded = tls.last_read.lock().clone();
    let observed = tls.check_files(&loaded);
    tls.check_files(&observed);
}

#[test]
fn a_matching_pair_is_loaded() {
    let folder = TempDir::new().unwrap();
    let generated = certificate_and_key("localhost");
    let (certificate, key) = write(&folder, &generated);
    assert_eq!(in_use(&Tls::load(&certificate, &key).unwrap()), der(&generated));
}

#[test]
fn an_error_names_the_file_and_its_problem() {
    let good = certificate_and_key("localhost");
    let other = certificate_and_key("localhost");
    let truncated = good.0[..good.0.len() / 2].to_owned();
    let cases = [
        ((String::new(), good.1.clone()), "cert.pem is not a PEM certificate chain: the file holds no certificate"),
        ((good.1.clone(), good.1.clone()), "cert.pem is not a PEM certificate chain: the file holds no certificate"),
        ((truncated, good.1.clone()), "cert.pem is not a PEM certificate chain"),
        ((good.0.clone(), good.0.clone()), "key.pem is not a usable private key: the file holds no unencrypted"),
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
fn a_new_pair_is_used_once_its_files_have_settled() {
    let folder = TempDir::new().unwrap();
    let (old, new) = (certificate_and_key("old"), certificate_and_key("new"));
    let (certificate, key) = write(&folder, &old);
    let tls = Tls::load(&certificate, &key).unwrap();
    let loaded = tls.last_read.lock().clone();
    fs::write(&certificate, &new.0).unwrap();
    let half_written = tls.check_files(&loaded);
    fs::write(&key, &new.1).unwrap();
    let complete = tls.check_files(&half_written);
    assert_eq!(in_use(&tls), der(&old));
    tls.check_files(&complete);
    assert_eq!(in_use(&tls), der(&new));
}

#[test]
fn the_old_certificate_stays_in_use_until_a_broken_file_is_repaired() {
    let folder = TempDir::new().unwrap();
    let (old, new) = (certificate_and_key("old"), certificate_and_key("new"));
    let (certificate, key) = write(&folder, &old);
    let tls = Tls::load(&certificate, &key).unwrap();
    fs::write(&certificate, "broken").unwrap();
    check_until_settled(&tls);
    assert_eq!(in_use(&tls), der(&old));
    fs::remove_file(&certificate).unwrap();
    check_until_settled(&tls);
    assert_eq!(in_use(&tls), der(&old));
    write(&folder, &new);
    check_until_settled(&tls);
    assert_eq!(in_use(&tls), der(&new));
}

#[test]
fn switching_a_symbolic_link_is_a_change() {
    let (first, second, links) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let new = certificate_and_key("new");
    write(&first, &certificate_and_key("old"));
    write(&second, &new);
    let data = links.path().join("..data");
    symlink(first.path(), &data).unwrap();
    let tls = Tls::load(&data.join("cert.pem"), &data.join("key.pem")).unwrap();
    let switched = links.path().join("switched");
    symlink(second.path(), &switched).unwrap();
    fs::rename(&switched, &data).unwrap();
    check_until_settled(&tls);
    assert_eq!(in_use(&tls), der(&new));
}

#[tokio::test]
async fn the_reload_task_uses_a_new_pair_and_ends_on_stop() {
    let folder = TempDir::new().unwrap();
    let new = certificate_and_key("new");
    let (certificate, key) = write(&folder, &certificate_and_key("old"));
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

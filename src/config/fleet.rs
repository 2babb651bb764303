//! `[fleet]`: the database and the bucket that several larders share, and the reader of its table. Nothing is asked here:
//! every mistake that the text shows is named without a connection.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use derive_more::Display;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use super::section::Section;
use super::values;

/// The database, the bucket and the secrets that the replicas of a fleet share, and their addresses.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// The URL of the database, with the password.
    pub database: SecretString,
    /// The file of authorities that may sign the certificate of the database; `None` for those of the system.
    pub database_ca: Option<PathBuf>,
    /// The place of the archives.
    pub bucket: Bucket,
    /// The URL of the object store, where it is not that of the provider.
    pub endpoint: Option<Url>,
    /// The key of the bucket; `None` for what the platform gives.
    pub bucket_key: Option<BucketKey>,
    /// The secrets of the fleet: the first is used, all are accepted.
    pub secrets: Vec<SecretString>,
    /// The socket for the other replicas.
    pub listen: SocketAddr,
    /// The URL at which the other replicas reach this one, with a final slash.
    pub advertise: Url,
    /// The longest time that this replica serves without the database; `None` for any time.
    pub serve_behind: Option<Duration>,
}

impl Fleet {
    /// True if only secrets and keys differ, which a reload changes: those of the fleet, the role of the database and its password, the key
    /// of the bucket.
    pub fn differs_in_secrets_only(&self, other: &Self) -> bool {
        let Self {
            database,
            database_ca,
            bucket,
            endpoint,
            bucket_key: _,
            secrets: _,
            listen,
            advertise,
            serve_behind,
        } = self;
        without_role(database).is_some_and(|place| Some(place) == without_role(&other.database))
            && (database_ca, bucket, endpoint) == (&other.database_ca, &other.bucket, &other.endpoint)
            && (listen, advertise, serve_behind) == (&other.listen, &other.advertise, &other.serve_behind)
    }
}

/// A place in an object store: `s3://NAME/PREFIX`, `az://CONTAINER/PREFIX`, `gs://NAME/PREFIX`.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
#[display("{service}://{name}/{prefix}")]
pub struct Bucket {
    /// The protocol.
    pub service: BucketService,
    /// The name of the bucket, or of the container.
    pub name: String,
    /// The part of every object name before larder's own; empty, or with a final slash.
    pub prefix: String,
}

/// The protocol of an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub enum BucketService {
    /// The protocol of Amazon S3, which others speak, too.
    #[display("s3")]
    S3,
    /// Google Cloud Storage.
    #[display("gs")]
    Google,
    /// Azure Blob Storage.
    #[display("az")]
    Azure,
}

impl BucketService {
    const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];
}

/// The key of a bucket.
#[derive(Debug, Clone)]
pub struct BucketKey {
    /// The name of the key, or of the account.
    pub access_key: SecretString,
    /// The secret.
    pub secret: SecretString,
}

pub(super) const EXAMPLE: &str = r#"{ database = { env = "LARDER_DATABASE" }, bucket = "s3://larder/mirror" }"#;
const DATABASE_EXAMPLE: &str = r#"{ env = "LARDER_DATABASE" }"#;
const SECRET_EXAMPLE: &str = r#"[{ env = "LARDER_FLEET_SECRET" }]"#;
const BUCKET_KEY_EXAMPLE: &str =
    r#"{ access_key = { env = "AWS_ACCESS_KEY_ID" }, secret = { env = "AWS_SECRET_ACCESS_KEY" } }"#;
const ADVERTISE_EXAMPLE: &str = r#"{ env = "POD_IP" }"#;
const NO_DATABASE_URL: &str = "this is no URL of a database (not shown: it may hold a password); its form is \
     postgresql://USER:PASSWORD@HOST:PORT/NAME";
/// The shortest secret, in bytes.
const MIN_SECRET_BYTES: usize = 32;
const MIN_SERVE_BEHIND: Duration = Duration::from_secs(60);
const DEFAULT_SERVE_BEHIND: Duration = Duration::from_secs(24 * 3600);
/// The bounds of the name of a bucket, in characters.
const BUCKET_NAME_CHARS: std::ops::RangeInclusive<usize> = 3..=63;
/// The longest prefix, in bytes: an object name has at most 1,024.
const MAX_PREFIX_BYTES: usize = 512;

/// Reads the table; `None` where its problems leave no fleet. `admin_token` must not be one of its secrets.
pub(super) fn read(section: &mut Section<'_, '_, '_>, admin_token: Option<&SecretString>) -> Option<Fleet> {
    section.require(&["database", "bucket", "secret", "listen", "advertise"]);
    let database = section.secret("database", DATABASE_EXAMPLE).and_then(|url| {
        let checked = check_database(url.expose_secret());
        checked.map_err(|bad| section.problem("database", bad)).ok().map(|()| url)
    });
    let database_ca = section.file("database_ca", "database-ca.pem");
    let bucket = section.text("bucket", "s3://larder/mirror", bucket);
    let endpoint = section.text("endpoint", "https://s3.corp.example/", values::base_url);
    let bucket_key = section.optional_table("bucket_key", BUCKET_KEY_EXAMPLE, read_bucket_key).flatten();
    if bucket.as_ref().is_some_and(|bucket| bucket.service == BucketService::Google) && bucket_key.is_some() {
        let text = "gs:// takes the key of a service account from the file that GOOGLE_APPLICATION_CREDENTIALS names, or from the machine; for \
                    an HMAC key, write s3:// with endpoint = \"https://storage.googleapis.com/\"";
        section.problem("bucket_key", text.to_owned());
    }
    let bucket_secret = bucket_key.as_ref().map(|key| ("[fleet] bucket_key", &key.secret));
    let others = bucket_secret.into_iter().chain(admin_token.map(|token| ("[admin] token", token)));
    let secrets = read_secrets(section, &others.collect::<Vec<_>>());
    let listen = section.text("listen", "0.0.0.0:8082", values::listening);
    let advertise = read_advertise(section, listen);
    let serve_behind = section.text("serve_behind", "24h", serve_behind).unwrap_or(Some(DEFAULT_SERVE_BEHIND));
    if let Some((listen, advertise)) = listen.zip(advertise.as_ref())
        && values::is_loopback(advertise)
        && !listen.ip().to_canonical().is_loopback()
    {
        let text = format!(
            "{advertise} is this machine for every replica, while listen is {listen}; name the address at which the others reach it"
        );
        section.problem("advertise", text);
    }
    Some(Fleet {
        database: database?,
        database_ca,
        bucket: bucket?,
        endpoint,
        bucket_key,
        secrets,
        listen: listen?,
        advertise: advertise?,
        serve_behind,
    })
}

/// The URLs of each host that the URL of a database names: `postgresql://USER:PASSWORD@ONE:5432,OTHER:5432/NAME` has two.
///
/// # Errors
/// It is no URL of a database. The message has no part of it: it has a password.
pub fn urls_of_hosts(text: &str) -> Result<Vec<String>, &'static str> {
    let (scheme, rest) = text.split_once("://").ok_or(NO_DATABASE_URL)?;
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
    if user.contains('@') {
        return Err("the URL of the database has several @: write an @ of the name or the password as %40");
    }
    let at = if authority.contains('@') { "@" } else { "" };
    Ok(hosts.split(',').map(|host| format!("{scheme}://{user}{at}{host}{tail}")).collect())
}

/// The URLs of the hosts of a database, without the role and its password.
fn without_role(database: &SecretString) -> Option<Vec<Url>> {
    let urls = urls_of_hosts(database.expose_secret()).ok()?;
    let without_role = |text: &String| {
        let mut url = Url::parse(text).ok()?;
        let mut options: Vec<_> = url.query_pairs().into_owned().collect();
        // Without a name, it is that of the role.
        let is_named = !url.path().trim_matches('/').is_empty() || options.iter().any(|(name, _)| name == "dbname");
        if !is_named {
            let role = options.iter().find(|(name, _)| name == "user").map(|(_, role)| role.clone());
            options.push(("dbname".to_owned(), role.unwrap_or_else(|| url.username().to_owned())));
        }
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&path);
        // A URL without a host has none of both.
        let _ = url.set_username("").and_then(|()| url.set_password(None));
        options.retain(|(name, _)| !matches!(&**name, "user" | "password"));
        url.query_pairs_mut().clear().extend_pairs(options);
        Some(url)
    };
    urls.iter().map(without_role).collect()
}

/// Checks the URL of the database, as far as its text goes. It has a password, so no message shows it.
fn check_database(text: &str) -> Result<(), String> {
    urls_of_hosts(text)?.iter().try_for_each(|url| check_database_at_one_host(url))
}

fn check_database_at_one_host(text: &str) -> Result<(), String> {
    let url = Url::parse(text).map_err(|_| NO_DATABASE_URL)?;
    if !matches!(url.scheme(), "postgresql" | "postgres") {
        return Err("the URL of the database begins with another scheme than postgresql://".to_owned());
    }
    let option =
        |name: &str| url.query_pairs().filter(|(key, _)| key == name).last().map(|(_, value)| value.into_owned());
    let host = option("host").or_else(|| url.host_str().map(str::to_owned)).unwrap_or_default();
    if host.is_empty() {
        return Err(
            "the URL of the database names no host; for a unix socket, write postgresql:///DATABASE?host=/FOLDER"
                .to_owned(),
        );
    }
    let is_socket = host.starts_with('/') || host.to_ascii_lowercase().starts_with("%2f");
    if option("sslmode").as_deref() == Some("disable") && !is_socket {
        return Err("sslmode=disable would send the password and the records in the clear; leave it out: larder verifies the certificate and the name (database_ca)".to_owned());
    }
    Ok(())
}

/// Parses `s3://NAME/PREFIX`.
fn bucket(text: &str) -> Result<Bucket, String> {
    let shown = values::quoted(text);
    let (scheme, place) = text.split_once("://").ok_or_else(|| format!("{shown} is not the URL of a bucket"))?;
    let service = BucketService::ALL.into_iter().find(|service| service.to_string() == scheme);
    let service = service.ok_or_else(|| format!("{shown} begins with none of s3://, gs:// and az://"))?;
    let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
    if name.is_empty() {
        return Err(format!("{shown} names no bucket"));
    }
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
    if !BUCKET_NAME_CHARS.contains(&name.len()) || !name.bytes().all(is_name) {
        return Err(format!(
            "{shown} has a name that no bucket has: 3 to 63 of a-z, 0-9, dashes, dots and underscores"
        ));
    }
    let prefix = prefix.trim_end_matches('/');
    let is_segment = |segment: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !matches!(segment, "" | "." | "..") && segment.bytes().all(is_plain)
    };
    if prefix.len() > MAX_PREFIX_BYTES || !(prefix.is_empty() || prefix.split('/').all(is_segment)) {
        return Err(format!(
            "{shown} has a prefix with other characters than letters, digits, dashes, dots and underscores"
        ));
    }
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    Ok(Bucket { service, name: name.to_owned(), prefix })
}

fn read_bucket_key(section: &mut Section<'_, '_, '_>) -> Option<BucketKey> {
    section.require(&["access_key", "secret"]);
    let access_key = section.secret("access_key", r#"{ env = "AWS_ACCESS_KEY_ID" }"#);
    let secret = section.secret("secret", r#"{ env = "AWS_SECRET_ACCESS_KEY" }"#);
    Some(BucketKey { access_key: access_key?, secret: secret? })
}

/// Reads the list of secrets: each long enough, and used for nothing else.
fn read_secrets(section: &mut Section<'_, '_, '_>, others: &[(&str, &SecretString)]) -> Vec<SecretString> {
    const KEY: &str = "secret";
    section.value_of(KEY, format!("{KEY} = {SECRET_EXAMPLE}"));
    if section.is_empty_list(KEY) {
        section.problem(KEY, format!("an empty list proves nothing; write for example {KEY} = {SECRET_EXAMPLE}"));
    }
    if section.is_text(KEY) {
        section
            .problem(KEY, format!("a secret is named here, never written; write for example {KEY} = {SECRET_EXAMPLE}"));
        return Vec::new();
    }
    let read = |section: &mut Section<'_, '_, '_>| (section.line_of(""), section.secret_source(SECRET_EXAMPLE, KEY));
    let mut secrets: Vec<SecretString> = Vec::new();
    for (line, secret) in section.tables(KEY, read).unwrap_or_default() {
        let Some(secret) = secret else { continue };
        let is = |other: &SecretString| other.expose_secret() == secret.expose_secret();
        let problem = if secret.expose_secret().len() < MIN_SECRET_BYTES {
            Some(format!("the secret has fewer than {MIN_SECRET_BYTES} bytes"))
        } else if secrets.iter().any(is) {
            Some("this secret is in the list already".to_owned())
        } else {
            let other = others.iter().find(|(_, other)| is(other));
            other.map(|(place, _)| format!("this secret is that of {place}, too; it needs one of its own"))
        };
        match problem {
            Some(text) => section.problem_at(line, KEY, format!("{text}; make one with openssl rand -hex 32")),
            None => secrets.push(secret),
        }
    }
    secrets
}

/// Reads the URL of this replica, or the variable with its address, which gets the port of `listen`.
fn read_advertise(section: &mut Section<'_, '_, '_>, listen: Option<SocketAddr>) -> Option<Url> {
    const KEY: &str = "advertise";
    section.value_of(KEY, format!("{KEY} = {ADVERTISE_EXAMPLE}"));
    if section.is_text(KEY) || !section.has(KEY) {
        return section.text(KEY, "http://10.0.0.7:8082/", values::base_url);
    }
    let address =
        section.optional_table(KEY, ADVERTISE_EXAMPLE, |section| section.secret_source(ADVERTISE_EXAMPLE, KEY));
    let (address, listen) = address.flatten().zip(listen)?;
    let Ok(address) = address.expose_secret().parse::<IpAddr>() else {
        section
            .problem(KEY, format!("this holds no IP address; write for example {KEY} = {ADVERTISE_EXAMPLE}, or a URL"));
        return None;
    };
    Url::parse(&format!("http://{}/", SocketAddr::new(address, listen.port()))).ok()
}

/// Parses the time that a replica serves without the database; `unlimited` is any time.
fn serve_behind(text: &str) -> Result<Option<Duration>, String> {
    if text == "unlimited" {
        return Ok(None);
    }
    let duration = values::duration(text)?;
    if duration < MIN_SERVE_BEHIND {
        return Err(format!("{} is less than a minute", values::quoted(text)));
    }
    Ok(Some(duration))
}

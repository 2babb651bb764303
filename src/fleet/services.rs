//! The object stores that a fleet may keep its archives in, each as the library wants to be told of it. All of them use larder's way
//! out, and repeat nothing by themselves.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::multipart::MultipartStore;
use object_store::{ObjectStore, RetryConfig};
use secrecy::ExposeSecret as _;

use crate::config::{self, BucketService};
use crate::upstream::buckets::BucketConnector;
use crate::upstream::clients::ConnectorError;

/// The bucket cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum BucketSettingsError {
    /// No way out to it.
    #[error(transparent)]
    Connector(#[from] ConnectorError),
    /// The library refuses the settings.
    #[error("the bucket cannot be used: {0}")]
    Settings(#[from] object_store::Error),
}

/// A store of objects that takes them in parts.
pub(super) trait Objects: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Objects for T {}

/// The object store of the configuration. Asks nothing yet. Without a key in it, the platform's counts: of the environment, of a web
/// identity, of the machine.
///
/// # Errors
/// The settings cannot be used.
pub(super) fn objects_of(
    fleet: &config::Fleet,
    network: &config::Network,
) -> Result<Arc<dyn Objects>, BucketSettingsError> {
    let connector = BucketConnector::new(network)?;
    Ok(match fleet.bucket.service {
        BucketService::S3 => Arc::new(amazon(fleet).with_http_connector(connector).with_retry(no_retries()).build()?),
        BucketService::Azure => Arc::new(azure(fleet).with_http_connector(connector).with_retry(no_retries()).build()?),
        BucketService::Google => {
            Arc::new(google(fleet).with_http_connector(connector).with_retry(no_retries()).build()?)
        }
    })
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn amazon(fleet: &config::Fleet) -> AmazonS3Builder {
    let name = &fleet.bucket.name;
    let mut builder = AmazonS3Builder::from_env();
    if let Some(key) = &fleet.bucket_key {
        // A token of the environment belongs to another key.
        builder = AmazonS3Builder::new()
            .with_access_key_id(key.access_key.expose_secret())
            .with_secret_access_key(key.secret.expose_secret());
        let environment = config::environment();
        if let Some(region) = environment.get("AWS_REGION").or_else(|| environment.get("AWS_DEFAULT_REGION")) {
            builder = builder.with_region(region);
        }
    }
    builder = builder.with_bucket_name(name).with_checksum_algorithm(Checksum::SHA256).with_disable_bulk_delete(true);
    match &fleet.endpoint {
        Some(endpoint) => builder
            .with_endpoint(endpoint.as_str().trim_end_matches('/'))
            .with_virtual_hosted_style_request(false)
            .with_allow_http(endpoint.scheme() == "http"),
        // A certificate covers no dots.
        None => builder.with_virtual_hosted_style_request(!name.contains('.')),
    }
}

fn azure(fleet: &config::Fleet) -> MicrosoftAzureBuilder {
    let builder = match &fleet.bucket_key {
        // A token of the environment belongs to another account.
        Some(key) => MicrosoftAzureBuilder::new()
            .with_account(key.access_key.expose_secret())
            .with_access_key(key.secret.expose_secret()),
        None => MicrosoftAzureBuilder::from_env(),
    };
    let builder = builder.with_container_name(&fleet.bucket.name);
    match &fleet.endpoint {
        Some(endpoint) => builder
            .with_endpoint(endpoint.as_str().trim_end_matches('/').to_owned())
            .with_allow_http(endpoint.scheme() == "http"),
        None => builder,
    }
}

/// Its key is a file with many parts, which the environment names: `GOOGLE_APPLICATION_CREDENTIALS`.
fn google(fleet: &config::Fleet) -> GoogleCloudStorageBuilder {
    let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&fleet.bucket.name);
    match &fleet.endpoint {
        Some(endpoint) => builder.with_base_url(endpoint.as_str().trim_end_matches('/')),
        None => builder,
    }
}

//! Requests for bundles and trees of packages, and for their import.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{IMPORT, job_id, object_of, or_problem};
use crate::address::{Hostname, PackageSelector};
use crate::bundle::{BundleKeys, BundleTrust, Inventory};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::jobs::JobId;
use crate::mirror::{ApplyOptions, UnsignedPolicy};

/// Media type of a bundle.
pub const TAR: &str = "application/x-tar";
/// Maximum number of versions that can be accepted with one bundle.
const MAX_ACCEPTED: usize = 256;

/// The body of a bundle request.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BundleRequest {
    /// The job whose packages go into the bundle.
    #[cfg_attr(test, schemars(regex(pattern = "^[0-9a-f]{16}$")))]
    pub job: String,
    /// An inventory whose packages are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Inventory>,
    /// Accept a bundle of the stored packages where the job lacks some.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Creation time of an earlier bundle, to make the same bytes again. The present time by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
}

impl BundleRequest {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The problem.
    pub fn read(body: &[u8]) -> Result<(Self, JobId), String> {
        let shape = r#"{"job":"ID","since":INVENTORY,"partial":false}"#;
        let request: Self = object_of(body, shape)?;
        if let Some(inventory) = &request.since {
            inventory.check().map_err(|bad| format!("\"since\": {bad}"))?;
        }
        let id = job_id(&request.job)?;
        Ok((request, id))
    }
}

/// Parses the options of a bundle import: `unsigned`, and `accept=ADDRESS@VERSION` for each republished version that
/// the operator accepts.
///
/// # Errors
/// Every problem.
pub fn apply_options(
    query: Option<&str>,
    keys: &BundleKeys,
    default_host: &Hostname,
) -> Result<ApplyOptions, Vec<String>> {
    let trust = BundleTrust { keys: keys.trusted.clone(), allow_unsigned: false };
    let mut options = ApplyOptions { trust, accept: Vec::new(), max_age: keys.max_age, notes: keys.notes };
    let mut problems = Vec::new();
    for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match &*name {
            "unsigned" if matches!(&*value, "" | "true") => options.trust.allow_unsigned = true,
            "accept" if options.accept.len() >= MAX_ACCEPTED => {
                problems.push(format!("at most {MAX_ACCEPTED} versions can be accepted with one bundle"));
            }
            "accept" => {
                let selector = PackageSelector::parse(&value, default_host);
                options.accept.extend(or_problem(selector, &mut problems));
            }
            _ => problems.push(format!("the query has no option {name:?}: write ?unsigned or ?accept=ADDRESS@VERSION")),
        }
    }
    if problems.is_empty() { Ok(options) } else { Err(problems) }
}

/// Formats the query for these options.
pub fn query_of(unsigned: bool, accept: &[String]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    if unsigned {
        query.append_pair("unsigned", "true");
    }
    query.extend_pairs(accept.iter().map(|selector| ("accept", selector)));
    let query = query.finish();
    if query.is_empty() { query } else { format!("?{query}") }
}

/// The body of an export request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// The job whose packages are exported.
    #[cfg_attr(test, schemars(regex(pattern = "^[0-9a-f]{16}$")))]
    pub job: String,
    /// Allow a tree without the packages that the job could not fetch.
    #[serde(default)]
    pub partial: bool,
    /// SHA-256 digests of archives that the receiver already has. They are left out.
    #[serde(default, skip_serializing_if = "HashSet::is_empty")]
    pub have: HashSet<Digest>,
}

impl ExportRequest {
    /// Parses a body.
    ///
    /// # Errors
    /// The body is not of the expected form, or does not name a job.
    pub fn read(body: &[u8]) -> Result<(Self, JobId), String> {
        let request: Self = object_of(body, r#"{"job":"ID","partial":false}"#)?;
        let id = job_id(&request.job)?;
        Ok((request, id))
    }
}

/// The path of an import with this policy for unsigned archives.
pub fn import_path(unsigned: UnsignedPolicy) -> String {
    match unsigned {
        UnsignedPolicy::Refused => IMPORT.to_owned(),
        UnsignedPolicy::Allowed => format!("{IMPORT}?unsigned"),
    }
}

/// Parses `?unsigned`.
///
/// # Errors
/// Another option is given.
pub fn parse_unsigned_query(query: Option<&str>) -> Result<UnsignedPolicy, String> {
    match query {
        None | Some("") => Ok(UnsignedPolicy::Refused),
        Some("unsigned" | "unsigned=" | "unsigned=true") => Ok(UnsignedPolicy::Allowed),
        Some(_) => Err("the only option of the query is unsigned".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_bundle_request_is_refused_with_the_reason() {
        for (body, reason) in [
            ("[]", "the body is not"),
            ("{}", "missing field `job`"),
            (r#"{"job":"x"}"#, "not a job id"),
            (r#"{"job":"0011223344556677","all":1}"#, "unknown field"),
            (r#"{"job":"0011223344556677","since":{"larder_inventory":2,"made":1}}"#, "has format 2"),
        ] {
            let message = BundleRequest::read(body.as_bytes()).unwrap_err();
            assert!(message.contains(reason), "{body}: {message}");
        }
        assert!(BundleRequest::read(br#"{"job":"0011223344556677","since":null,"partial":true}"#).is_ok());
    }

    #[test]
    fn import_options_survive_the_query() {
        let host = Hostname::parse("registry.example").unwrap();
        let accept = ["acme/null@1.0.0".to_owned(), "acme/vpc/aws@1.0.0".to_owned()];
        let query = query_of(true, &accept);
        let options = apply_options(query.strip_prefix('?'), &BundleKeys::default(), &host).unwrap();
        assert!(options.trust.allow_unsigned);
        assert_eq!(options.accept.len(), 2);
        assert_eq!(
            (query_of(false, &[]), apply_options(None, &BundleKeys::default(), &host).unwrap().trust.allow_unsigned),
            (String::new(), false)
        );
        for bad in ["unsigned=maybe", "accept=x", "signed"] {
            assert_eq!(apply_options(Some(bad), &BundleKeys::default(), &host).unwrap_err().len(), 1, "{bad}");
        }
    }

    #[test]
    fn an_export_request_round_trips_and_unknown_members_are_refused() {
        let request =
            ExportRequest { job: "0123456789abcdef".into(), partial: true, have: [Digest::of(b"zip")].into() };
        let (read, id) = ExportRequest::read(&serde_json::to_vec(&request).unwrap()).unwrap();
        assert_eq!((read, id.to_string()), (request.clone(), request.job));
        for body in ["", "{}", r#"{"job":"x"}"#, r#"{"job":"0123456789abcdef","all":true}"#] {
            assert!(ExportRequest::read(body.as_bytes()).unwrap_err().contains("is not"), "{body}");
        }
        for unsigned in [UnsignedPolicy::Refused, UnsignedPolicy::Allowed] {
            let path = import_path(unsigned);
            assert_eq!(parse_unsigned_query(path.split_once('?').map(|(_, query)| query)), Ok(unsigned));
        }
        assert!(parse_unsigned_query(Some("unsigned=false")).is_err());
    }
}

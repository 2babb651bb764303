//! Requests of `POST /admin/v1/export` and `/admin/v1/import`.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::jobs::JobId;
use crate::mirror::UnsignedPolicy;

/// Path of tree exports.
pub const EXPORT: &str = "/admin/v1/export";
/// Path of tree imports.
pub const IMPORT: &str = "/admin/v1/import";
/// An example of a body, for error texts.
const SHAPE: &str = r#"{"job":"ID","partial":false}"#;

/// The body of an export request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// The job whose packages are exported.
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
        let request: Self = serde_json::from_slice(body).map_err(|e| format!("send {SHAPE}: {e}"))?;
        let id =
            JobId::parse(&request.job).ok_or_else(|| format!("{:?} is not a job id: send {SHAPE}", request.job))?;
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
    fn an_export_request_round_trips_and_unknown_members_are_refused() {
        let request =
            ExportRequest { job: "0123456789abcdef".into(), partial: true, have: [Digest::of(b"zip")].into() };
        let (read, id) = ExportRequest::read(&serde_json::to_vec(&request).unwrap()).unwrap();
        assert_eq!((read, id.to_string()), (request.clone(), request.job));
        for body in ["", "{}", r#"{"job":"x"}"#, r#"{"job":"0123456789abcdef","all":true}"#] {
            assert!(ExportRequest::read(body.as_bytes()).unwrap_err().contains("send {"), "{body}");
        }
        for unsigned in [UnsignedPolicy::Refused, UnsignedPolicy::Allowed] {
            let path = import_path(unsigned);
            assert_eq!(parse_unsigned_query(path.split_once('?').map(|(_, query)| query)), Ok(unsigned));
        }
        assert!(parse_unsigned_query(Some("unsigned=false")).is_err());
    }
}

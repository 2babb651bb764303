//! Paths of warm-ups and jobs, and pin requests.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::command::OperationTarget;
use crate::jobs::JobId;

/// Path of warm-up requests.
pub const WARM: &str = "/admin/v1/warm";
/// Path of the list of jobs. Each job is below it.
pub const JOBS: &str = "/admin/v1/jobs";

/// A pin or unpin request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinRequest {
    /// The stored packages of these addresses.
    Addresses(OperationTarget),
    /// The packages of a job.
    Job(JobId),
}

impl PinRequest {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The problem.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Either {
            what: Option<Vec<String>>,
            job: Option<String>,
        }
        match object_of(body, r#"{"what":["NAMESPACE/TYPE@CONSTRAINT"]} or {"job":"ID"}"#)? {
            Either { what: Some(addresses), job: None } => Ok(Self::Addresses(OperationTarget { what: addresses })),
            Either { what: None, job: Some(job) } => match JobId::parse(&job) {
                Some(id) => Ok(Self::Job(id)),
                None => Err(format!("{:?} is not a job id: those have sixteen hex digits", short(&job))),
            },
            _ => Err("the body names either \"what\" or \"job\"".to_owned()),
        }
    }
}

/// The error text for an unknown job.
pub fn no_job(id: JobId) -> String {
    format!(
        "there is no job {id}: old jobs are dropped from the list; their packages stay stored, so send the same order again"
    )
}

/// Reads a JSON object and nothing else: serde would also read a list as the struct.
fn object_of<T: DeserializeOwned>(body: &[u8], shape: &str) -> Result<T, String> {
    let bad = |e| format!("the body is not {shape}: {e}");
    let object: Map<String, Value> = serde_json::from_slice(body).map_err(bad)?;
    serde_json::from_value(Value::Object(object)).map_err(bad)
}

fn short(given: &str) -> String {
    given.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_request_names_addresses_or_a_job() {
        let id = "00112233aabbccdd";
        assert_eq!(
            PinRequest::read(format!(r#"{{"job":"{id}"}}"#).as_bytes()),
            Ok(PinRequest::Job(JobId::parse(id).unwrap()))
        );
        assert!(matches!(PinRequest::read(br#"{"what":["a/b"]}"#), Ok(PinRequest::Addresses(_))));
        for body in [
            "{}",
            r#"{"what":["a/b"],"job":"00112233aabbccdd"}"#,
            r#"{"job":"x"}"#,
            r#"{"job":"00112233AABBCCDD"}"#,
            "[]",
            r#"{"what":[],"x":1}"#,
        ] {
            assert!(PinRequest::read(body.as_bytes()).is_err(), "{body}");
        }
    }
}

//! What an operator tells larder to warm, and what to pin: as JSON, or as a lock file.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::form_urlencoded;

use super::command::Told;
use crate::address::{Hostname, Platform};
use crate::jobs::{JobId, WarmUp};

/// Where a warm-up is asked for.
pub const WARM: &str = "/admin/v1/warm";
/// Where the jobs are listed; each is below it.
pub const JOBS: &str = "/admin/v1/jobs";

/// What a warm-up is about, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldToWarm {
    /// The addresses, with constraints.
    pub what: Vec<String>,
    /// For which platforms; this machine's, where none is named.
    #[serde(default)]
    pub platforms: Vec<String>,
    /// Whether to pin what is warmed.
    #[serde(default)]
    pub pin: bool,
}

impl ToldToWarm {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        object_of(body, r#"{"what":["NAMESPACE/TYPE@CONSTRAINT"],"platforms":["OS_ARCH"],"pin":false}"#)
    }

    /// The warm-up that is meant; of addresses without a host, the host is `default_host`.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn warm_up(&self, default_host: &Hostname) -> Result<WarmUp, Vec<String>> {
        let addresses = Told { what: self.what.clone() }.addresses(default_host);
        match (addresses, platforms(&self.platforms)) {
            (Ok(addresses), Ok(platforms)) => WarmUp::of_addresses(addresses, platforms, self.pin),
            (addresses, platforms) => Err(both(addresses.err(), platforms.err())),
        }
    }
}

/// The warm-up of a lock file, for the platforms in the query: `platform=OS_ARCH`, repeated, and `pin`.
///
/// # Errors
/// Everything that is wrong with the file and the query.
pub fn of_lock_file(file: &[u8], query: Option<&str>) -> Result<WarmUp, Vec<String>> {
    let (mut named, mut pin, mut problems) = (Vec::new(), false, Vec::new());
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match (&*key, &*value) {
            ("platform", platform) => named.push(platform.to_owned()),
            ("pin", "" | "true") => pin = true,
            ("pin", "false") => pin = false,
            ("pin", other) => problems.push(format!("the query: pin is true or false, and not {:?}", short(other))),
            (other, _) => problems.push(format!("the query: there is no {:?}; platform and pin can be", short(other))),
        }
    }
    let platforms = platforms(&named);
    let told = WarmUp::of_lock_file(file, platforms.clone().unwrap_or_default(), pin);
    match (told, platforms) {
        (Ok(told), Ok(_)) if problems.is_empty() => Ok(told),
        (told, platforms) => {
            problems.extend(both(platforms.err(), told.err()));
            Err(problems)
        }
    }
}

/// What is to be pinned, or not any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToldToPin {
    /// What is held of these.
    Addresses(Told),
    /// What a job is about.
    Job(JobId),
}

impl ToldToPin {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Either {
            what: Option<Vec<String>>,
            job: Option<String>,
        }
        match object_of(body, r#"{"what":["NAMESPACE/TYPE@CONSTRAINT"]} or {"job":"ID"}"#)? {
            Either { what: Some(what), job: None } => Ok(Self::Addresses(Told { what })),
            Either { what: None, job: Some(job) } => match JobId::parse(&job) {
                Some(id) => Ok(Self::Job(id)),
                None => Err(format!("{:?} is no name of a job: those have sixteen hex digits", short(&job))),
            },
            _ => Err("the body names either \"what\" or \"job\"".to_owned()),
        }
    }
}

/// What to say of a job that is not there.
pub fn no_job(id: JobId) -> String {
    format!(
        "there is no job {id}: jobs are forgotten when larder restarts, and the oldest when new ones come; what they fetched is kept, so tell it the same again to see what is held"
    )
}

fn platforms(named: &[String]) -> Result<Vec<Platform>, Vec<String>> {
    let (mut platforms, mut problems) = (Vec::new(), Vec::new());
    for given in named {
        match Platform::parse(given) {
            Ok(platform) => platforms.push(platform),
            Err(bad) => problems.push(bad.to_string()),
        }
    }
    if problems.is_empty() { Ok(platforms) } else { Err(problems) }
}

fn both(one: Option<Vec<String>>, other: Option<Vec<String>>) -> Vec<String> {
    one.into_iter().chain(other).flatten().collect()
}

/// Reads a JSON object, and nothing that merely could be read as one.
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

    fn host() -> Hostname {
        Hostname::parse("registry.example").unwrap()
    }

    #[test]
    fn a_body_says_what_for_which_platforms() {
        let told =
            ToldToWarm::read(br#"{"what":["acme/null@~> 1.0"],"platforms":["linux_amd64"],"pin":true}"#).unwrap();
        let same = WarmUp::of_addresses(
            Told { what: told.what.clone() }.addresses(&host()).unwrap(),
            vec![Platform::parse("linux_amd64").unwrap()],
            true,
        );
        assert_eq!(told.warm_up(&host()), same);
        let here = ToldToWarm::read(br#"{"what":["acme/null"]}"#).unwrap().warm_up(&host());
        let same = WarmUp::of_addresses(
            Told { what: vec!["acme/null".into()] }.addresses(&host()).unwrap(),
            vec![Platform::here()],
            false,
        );
        assert_eq!(here, same);
    }

    #[test]
    fn every_problem_of_a_body_is_told() {
        for body in ["", "[]", "{}", r#"{"what":"a/b"}"#, r#"{"what":["a/b"],"all":1}"#, r#"{"what":["a/b"],"pin":1}"#]
        {
            assert!(ToldToWarm::read(body.as_bytes()).unwrap_err().starts_with("the body is not"), "{body}");
        }
        let told = ToldToWarm::read(br#"{"what":["a","a/b@=>1"],"platforms":["linux","linux_amd64","x_Y"]}"#).unwrap();
        assert_eq!(told.warm_up(&host()).unwrap_err().len(), 4);
        let many = ToldToWarm {
            what: (0..256).map(|n| format!("a/b{n}")).collect(),
            platforms: (0..33).map(|n| format!("linux_a{n}")).collect(),
            pin: false,
        };
        let problems = many.warm_up(&host()).unwrap_err();
        assert!(problems[0].contains("33 platforms") && problems[1].contains("8448 archives"), "{problems:?}");
    }

    #[test]
    fn a_lock_file_and_its_query_are_one_order() {
        let file = b"provider \"r.example/a/b\" {\n  version = \"1.0.0\"\n}\n";
        assert!(of_lock_file(file, Some("platform=linux_amd64&platform=darwin_arm64&pin")).is_ok());
        assert!(of_lock_file(file, None).is_ok());
        let problems = of_lock_file(b"provider {", Some("platform=linux&pin=1&plattform=linux_amd64")).unwrap_err();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(of_lock_file(b"", None).unwrap_err()[0].contains("names no provider"));
    }

    #[test]
    fn what_is_pinned_is_named_one_way() {
        let id = "00112233aabbccdd";
        assert_eq!(
            ToldToPin::read(format!(r#"{{"job":"{id}"}}"#).as_bytes()),
            Ok(ToldToPin::Job(JobId::parse(id).unwrap()))
        );
        assert!(matches!(ToldToPin::read(br#"{"what":["a/b"]}"#), Ok(ToldToPin::Addresses(_))));
        for body in [
            "{}",
            r#"{"what":["a/b"],"job":"00112233aabbccdd"}"#,
            r#"{"job":"x"}"#,
            r#"{"job":"00112233AABBCCDD"}"#,
            "[]",
            r#"{"what":[],"x":1}"#,
        ] {
            assert!(ToldToPin::read(body.as_bytes()).is_err(), "{body}");
        }
    }
}

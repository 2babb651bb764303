//! Query options of an order whose body is a user's file: `platform=OS_ARCH` (repeated), `pin`, and for a tar
//! `root=FOLDER` (repeated) and `client=terraform|opentofu`.

use url::form_urlencoded;

use super::order::OrderRequest;
use crate::requirements::ClientKind;

/// The longest accepted root, in bytes.
const MAX_ROOT_BYTES: usize = 1024;
/// Maximum number of options in one query.
const MAX_OPTIONS: usize = 1024;

/// A parsed query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderQuery {
    /// The options; the body has the rest.
    pub options: OrderRequest,
    /// Every problem.
    pub problems: Vec<String>,
}

/// Kinds of bodies, which have different options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrderBodyKind {
    LockFile,
    Tar,
}

impl OrderQuery {
    /// Parses the query of a request with a lock file.
    pub fn of_lock_file(query: Option<&str>) -> Self {
        Self::read(query, OrderBodyKind::LockFile)
    }

    /// Parses the query of a request with a tar of configurations.
    pub fn of_tar(query: Option<&str>) -> Self {
        Self::read(query, OrderBodyKind::Tar)
    }

    fn read(query: Option<&str>, kind: OrderBodyKind) -> Self {
        let (mut options, mut problems) = (OrderRequest::default(), Vec::new());
        for (index, (key, value)) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()).enumerate() {
            if index == MAX_OPTIONS {
                problems.push(format!("the query: more than {MAX_OPTIONS} options"));
                break;
            }
            match (&*key, &*value, kind) {
                ("platform", platform, _) => options.platforms.push(platform.to_owned()),
                ("pin", "" | "true", _) => options.pin = true,
                ("pin", "false", _) => options.pin = false,
                ("pin", value, _) => {
                    problems.push(format!("the query: pin is true or false, not {:?}", short(value)));
                }
                ("root", root, OrderBodyKind::Tar) if root.len() <= MAX_ROOT_BYTES => options.roots.push(folder(root)),
                ("root", root, OrderBodyKind::Tar) => {
                    problems.push(format!("the query: {:?}… is too long for a folder of a tar", short(root)));
                }
                ("client", "terraform", OrderBodyKind::Tar) => options.client = Some(ClientKind::Terraform),
                ("client", "opentofu", OrderBodyKind::Tar) => options.client = Some(ClientKind::Opentofu),
                ("client", value, OrderBodyKind::Tar) => {
                    problems.push(format!("the query: client is terraform or opentofu, not {:?}", short(value)));
                }
                (name, _, kind) => {
                    let option_names = match kind {
                        OrderBodyKind::LockFile => "platform and pin",
                        OrderBodyKind::Tar => "platform, root, client and pin",
                    };
                    problems.push(format!(
                        "the query: no option is named {:?}; the options are {option_names}",
                        short(name)
                    ));
                }
            }
        }
        Self { options, problems }
    }
}

/// Normalises a folder to the form of paths in a tar: without `./` before it and `/` after it; `.` is the top.
fn folder(text: &str) -> String {
    let folder = text.trim_end_matches('/');
    let folder = folder.strip_prefix("./").unwrap_or(folder);
    if folder == "." { String::new() } else { folder.to_owned() }
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_query_sets_platforms_roots_pin_and_client() {
        let query = "root=prod&root=./stage/&root=.&platform=linux_amd64&platform=darwin_arm64&client=opentofu&pin";
        let OrderQuery { options, problems } = OrderQuery::of_tar(Some(query));
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            (options.roots, options.platforms),
            (
                vec!["prod".to_owned(), "stage".to_owned(), String::new()],
                vec!["linux_amd64".to_owned(), "darwin_arm64".to_owned()]
            )
        );
        assert_eq!((options.client, options.pin), (Some(ClientKind::Opentofu), true));
        assert_eq!(OrderQuery::of_lock_file(None), OrderQuery::default());
    }

    #[test]
    fn every_problem_of_a_query_is_reported() {
        let query = "pin=yes&plattform=linux_amd64&root=prod&client=terraform";
        assert_eq!(OrderQuery::of_lock_file(Some(query)).problems.len(), 4);
        let long = format!("root={}&client=tofu", "x".repeat(2000));
        assert_eq!(OrderQuery::of_tar(Some(&long)).problems.len(), 2);
        let many = "root=a&".repeat(5000);
        assert!(OrderQuery::of_tar(Some(&many)).options.roots.len() <= MAX_OPTIONS);
    }

    proptest! {
        #[test]
        fn any_query_is_parsed_or_refused_with_short_problems(query in "([a-z]{1,8}(=[^&]{0,40})?&){0,12}|\\PC{0,200}") {
            for OrderQuery { options, problems } in [OrderQuery::of_tar(Some(&query)), OrderQuery::of_lock_file(Some(&query))] {
                prop_assert!(problems.iter().all(|problem| problem.len() < 1000));
                prop_assert!(options.what.is_empty() && options.files.is_empty() && options.lock_files.is_empty());
            }
        }
    }
}

//! `required_version`. The client's version is unknown here, so only a constraint that excludes every version is a
//! problem.

use super::super::request::ClientKind;
use super::Problem;
use super::declarations::LocatedValue;
use super::expression::Constant;
use crate::address::{ModuleConstraint, Version};

/// The term used in messages.
const WHAT: &str = "required_version";

/// The first release of a client with today's installation from mirrors.
fn oldest(client: ClientKind) -> (&'static str, &'static str) {
    match client {
        ClientKind::Terraform => ("Terraform", "0.13.0"),
        ClientKind::Opentofu => ("OpenTofu", "1.6.0"),
    }
}

/// Problems of one folder's constraints.
pub(super) fn problems(written: &[LocatedValue], client: ClientKind) -> Vec<Problem> {
    let (mut problems, mut constraints) = (Vec::new(), Vec::new());
    for (value, location) in written {
        let constraint = match value {
            Constant::Null => continue,
            Constant::Text(text) => ModuleConstraint::parse(text).map_err(|_| {
                format!(
                    "{text:?} is none: between commas stand conditions like >= 1.2, < 2.0 and ~> 1.5, and nothing else"
                )
            }),
            Constant::List(_) | Constant::Object(_) | Constant::Unknown(_) => {
                Err("it is not a plain string, and clients take nothing else".to_owned())
            }
        };
        match constraint {
            Ok(constraint) if constraint.names_a_pre_release() => {
                let reason = "clients refuse pre-releases in it".to_owned();
                problems.push(Problem { subject: WHAT.to_owned(), reason, location: location.clone() });
            }
            Ok(constraint) => constraints.push((constraint, location)),
            Err(reason) => problems.push(Problem { subject: WHAT.to_owned(), reason, location: location.clone() }),
        }
    }
    let (name, oldest) = oldest(client);
    let all: Vec<ModuleConstraint> = constraints.iter().map(|(constraint, _)| constraint.clone()).collect();
    let can_be_met = Version::parse(oldest).is_ok_and(|oldest| ModuleConstraint::could_all_be_met_from(&oldest, &all));
    if let (false, Some((_, location))) = (can_be_met, constraints.first()) {
        let constraint_list = all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let reason = format!(
            "no {name} from {oldest} on is {constraint_list}: choose another version of what says so, or change it"
        );
        problems.push(Problem { subject: WHAT.to_owned(), reason, location: (*location).clone() });
    }
    problems
}

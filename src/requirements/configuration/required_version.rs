//! `required_version`. The client's version is unknown here, so only a constraint that excludes every version is a
//! problem.

use super::super::request::ClientKind;
use super::Problem;
use super::declarations::LocatedValue;
use super::expression::Constant;
use crate::address::{ModuleConstraint, Version};

/// The subject of these problems.
const SUBJECT: &str = "required_version";

/// The name of a client, and its first release that installs from mirrors as today.
fn oldest(client: ClientKind) -> (&'static str, &'static str) {
    match client {
        ClientKind::Terraform => ("Terraform", "0.13.0"),
        ClientKind::Opentofu => ("OpenTofu", "1.6.0"),
    }
}

/// Problems of one folder's constraints.
pub(super) fn problems(values: &[LocatedValue], client: ClientKind) -> Vec<Problem> {
    let (mut problems, mut constraints) = (Vec::new(), Vec::new());
    for (value, location) in values {
        let constraint = match value {
            Constant::Null => continue,
            Constant::Text(text) => ModuleConstraint::parse(text).map_err(|_| {
                format!(
                    "{text:?} is not a constraint: write conditions like >= 1.2, < 2.0 or ~> 1.5 between commas, and nothing else"
                )
            }),
            Constant::List(_) | Constant::Object(_) | Constant::Unknown(_) => {
                Err("required_version is not a plain string, and clients accept nothing else".to_owned())
            }
        };
        match constraint {
            Ok(constraint) if constraint.names_a_pre_release() => {
                let reason = "clients refuse pre-releases in required_version".to_owned();
                problems.push(Problem { subject: SUBJECT.to_owned(), reason, location: location.clone() });
            }
            Ok(constraint) => constraints.push((constraint, location)),
            Err(reason) => problems.push(Problem { subject: SUBJECT.to_owned(), reason, location: location.clone() }),
        }
    }
    let (name, oldest) = oldest(client);
    let all_constraints: Vec<ModuleConstraint> = constraints.iter().map(|(constraint, _)| constraint.clone()).collect();
    let can_be_met =
        Version::parse(oldest).is_ok_and(|oldest| ModuleConstraint::could_all_be_met_from(&oldest, &all_constraints));
    if let (false, Some((_, location))) = (can_be_met, constraints.first()) {
        let constraint_list = all_constraints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let reason = format!(
            "no {name} from {oldest} on matches {constraint_list}: choose another version of the module that requires this, or change the constraint"
        );
        problems.push(Problem { subject: SUBJECT.to_owned(), reason, location: (*location).clone() });
    }
    problems
}

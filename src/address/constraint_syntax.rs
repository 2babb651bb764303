//! Syntax shared by both kinds of version constraints: a bounded number of conditions, separated by commas.

use super::BadAddress;

/// The longest accepted constraint, in bytes.
const LONGEST: usize = 512;
/// The most conditions in one constraint.
const MOST: usize = 16;

/// Splits a constraint into its conditions.
///
/// # Errors
/// [`BadAddress`]: it exceeds a limit.
pub(super) fn of<'a>(kind: &'static str, given: &'a str) -> Result<Vec<&'a str>, BadAddress> {
    let bad = |reason| BadAddress::new(kind, given, reason);
    if given.len() > LONGEST {
        return Err(bad("it is longer than 512 bytes"));
    }
    let conditions: Vec<&str> = given.split(',').collect();
    if conditions.len() > MOST {
        return Err(bad("it has more than 16 conditions"));
    }
    Ok(conditions)
}

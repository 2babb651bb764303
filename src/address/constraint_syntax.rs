//! Syntax shared by both kinds of version constraints: a bounded number of conditions, separated by commas.

use super::BadAddress;

/// The longest accepted constraint, in bytes.
const MAX_CONSTRAINT_BYTES: usize = 512;
/// The most conditions in one constraint.
const MAX_CONDITIONS: usize = 16;

/// Splits a constraint into its conditions.
///
/// # Errors
/// [`BadAddress`]: the constraint exceeds a limit.
pub(super) fn split_conditions<'a>(kind: &'static str, given: &'a str) -> Result<Vec<&'a str>, BadAddress> {
    let bad = |reason| BadAddress::new(kind, given, reason);
    if given.len() > MAX_CONSTRAINT_BYTES {
        return Err(bad("it is longer than 512 bytes"));
    }
    let conditions: Vec<&str> = given.split(',').collect();
    if conditions.len() > MAX_CONDITIONS {
        return Err(bad("it has more than 16 conditions"));
    }
    Ok(conditions)
}

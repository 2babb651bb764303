//! Views: the same routes under a stricter policy, which the client chooses by its URLs. `/age/7d/…` shows versions that are at
//! least seven days old, `/as-of/2026-08-01/…` what was listed at the end of that day (UTC). Only registry and mirror routes have
//! views; archives are the same for all.

use std::time::Duration;

use derive_more::Display;

use super::route::RouteError;
use crate::clock::Timestamp;
use crate::policy::ClientLimits;

/// Seconds of a day.
const DAY: u64 = 24 * 3600;
/// First segment of the paths of a view by age.
pub const AGE: &str = "age";
/// First segment of the paths of a view of a day.
pub const AS_OF: &str = "as-of";
/// The first segments of routes that have views.
const WITH_VIEWS: [&str; 2] = ["registry", "mirror"];

/// A view. It is printed as the beginning of its paths: `/age/7d`.
#[derive(Debug, Display, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// Versions of at least so many days.
    #[display("/{AGE}/{_0}d")]
    Age(u16),
    /// The versions that were listed at the end of a day; the time is that of its beginning.
    #[display("/{AS_OF}/{}", _0.day())]
    AsOf(Timestamp),
}

impl View {
    /// Parses an age: `[1-9][0-9]{0,3}d`.
    ///
    /// # Errors
    /// The form.
    pub fn age(text: &str) -> Result<Self, String> {
        let days = text.strip_suffix('d').filter(|days| {
            (1..=4).contains(&days.len()) && !days.starts_with('0') && days.bytes().all(|byte| byte.is_ascii_digit())
        });
        let days = days.and_then(|days| days.parse().ok());
        days.map(Self::Age).ok_or_else(|| format!("{:?} is not an age in days, such as 7d", shown(text)))
    }

    /// Parses a day: `YYYY-MM-DD`.
    ///
    /// # Errors
    /// The form.
    pub fn as_of(text: &str) -> Result<Self, String> {
        Timestamp::of_day(text)
            .map(Self::AsOf)
            .ok_or_else(|| format!("{:?} is not a day, such as 2026-08-01", shown(text)))
    }

    /// Splits a path below the mount into its view and the path below it. A path of no view stays whole.
    ///
    /// # Errors
    /// The view has another form, or its path leads to a route that has no views.
    pub fn split(path: &str) -> Result<(Option<Self>, &str), RouteError> {
        let Some((kind, rest)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
            return Ok((None, path));
        };
        let parse = match kind {
            AGE => Self::age,
            AS_OF => Self::as_of,
            _ => return Ok((None, path)),
        };
        let (text, below) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let view = parse(text).map_err(RouteError::Malformed)?;
        let first = below.split('/').nth(1).unwrap_or_default();
        if WITH_VIEWS.contains(&first) { Ok((Some(view), below)) } else { Err(RouteError::nothing_at(path)) }
    }

    /// The view as a parameter of a query: `age=7d`.
    pub fn query(self) -> String {
        match self {
            Self::Age(days) => format!("{AGE}={days}d"),
            Self::AsOf(day) => format!("{AS_OF}={}", day.day()),
        }
    }

    /// The limits of clients with this view, or with none.
    pub fn limits_of(view: Option<Self>) -> ClientLimits {
        view.map_or(ClientLimits::NONE, Self::limits)
    }

    /// The limits of its clients.
    fn limits(self) -> ClientLimits {
        match self {
            Self::Age(days) => {
                ClientLimits { minimum_age: Duration::from_secs(u64::from(days) * DAY), ..ClientLimits::NONE }
            }
            Self::AsOf(day) => ClientLimits { as_of: Some(day.end_of_day()), ..ClientLimits::NONE },
        }
    }

    /// Returns true for a path whose route has views.
    pub fn may_begin(path: &str) -> bool {
        WITH_VIEWS.contains(&path.split('/').nth(1).unwrap_or_default())
    }
}

/// The beginning of a text that an error quotes.
fn shown(text: &str) -> String {
    text.chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_has_a_view_or_none_or_is_refused() {
        for (path, view, below) in [
            ("/age/7d/registry/a.example/x", Some("/age/7d"), "/registry/a.example/x"),
            ("/age/9999d/mirror/a.example/x", Some("/age/9999d"), "/mirror/a.example/x"),
            ("/as-of/2026-08-01/mirror/", Some("/as-of/2026-08-01"), "/mirror/"),
            ("/registry/a.example/age/7d/x", None, "/registry/a.example/age/7d/x"),
            ("/", None, "/"),
            ("/age", None, "/age"),
        ] {
            let (found, rest) = View::split(path).unwrap();
            assert_eq!((found.map(|view| view.to_string()).as_deref(), rest), (view, below), "{path}");
        }
        for malformed in [
            "/age/0d/registry/",
            "/age/07d/registry/",
            "/age/10000d/registry/",
            "/age/7/registry/",
            "/age/7h/registry/",
            "/age//registry/",
            "/age/+7d/registry/",
            "/as-of/2026-8-1/registry/",
            "/as-of/2026-02-30/registry/",
            "/as-of/2026-08-01T00:00:00Z/registry/",
            "/as-of/yesterday/mirror/",
            "/as-of/1969-12-31/mirror/",
        ] {
            assert!(matches!(View::split(malformed), Err(RouteError::Malformed(_))), "{malformed}");
        }
        for nowhere in
            ["/age/7d/archive/x", "/age/7d/v1/providers/x", "/age/7d", "/age/7d/", "/age/7d/age/7d/registry/x"]
        {
            assert!(matches!(View::split(nowhere), Err(RouteError::Unknown(_))), "{nowhere}");
        }
    }

    #[test]
    fn a_day_lasts_until_its_end() {
        let limits = View::as_of("1970-01-02").unwrap().limits();
        assert_eq!(limits.as_of, Some(Timestamp(2 * DAY - 1)));
        assert_eq!(View::age("7d").unwrap().limits().minimum_age, Duration::from_secs(7 * DAY));
    }

    proptest! {
        #[test]
        fn any_path_is_split_and_a_view_is_printed_as_it_was_read(path in "/(age|as-of)?/?[0-9d-]{0,12}(/registry/x)?|\\PC{0,30}") {
            if let Ok((Some(view), below)) = View::split(&path) {
                prop_assert_eq!(format!("{view}{below}"), path);
            }
        }
    }
}

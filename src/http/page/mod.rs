//! Pages for browsers, from templates that are compiled in. A page asks for nothing but itself: its style and its script
//! are in it, and its content security policy allows these two by their digests and nothing else.

mod alarm;
mod chart;
mod held;
mod home;
mod result;
mod status;

use askama::Template;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};

pub(super) use self::held::{APPROVE_BUTTON, HeldData, UNAPPROVE_BUTTON, held};
pub(super) use self::home::home;
pub(super) use self::result::{OperationResult, changed_alarm, decided, done, result, unclear_decision, wrong_token};
pub(super) use self::status::{JobOnPage, StatusData, TrafficOfDay, status};
use super::body::Body;
use super::response;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::wording::{format_seconds, format_timestamp};

const STYLE: &str = include_str!("../../../templates/page.css");
const ADMIN_STYLE: &str =
    concat!(include_str!("../../../templates/page.css"), include_str!("../../../templates/status.css"));

/// The style and the script of a page.
#[derive(Debug, Clone, Copy)]
struct Frame {
    style: &'static str,
    script: &'static str,
}

impl Frame {
    fn of_home(script: &'static str) -> Self {
        Self { style: STYLE, script }
    }

    fn of_admin(script: &'static str) -> Self {
        Self { style: ADMIN_STYLE, script }
    }

    /// The content security policy: this style, this script, forms and requests to larder itself, in no frame.
    fn policy(&self) -> String {
        let [style, script] =
            [self.style, self.script].map(|text| STANDARD.encode(Digest::of(text.as_bytes()).as_bytes()));
        format!(
            "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; img-src data:; \
             connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
    }
}

/// Makes the response of a page. `frame` is the one in the template.
fn page(status: StatusCode, frame: Frame, template: &impl Template) -> Response<Body> {
    let html = match template.render() {
        Ok(html) => html,
        Err(error) => {
            let reason = format!("the page cannot be written: {error}");
            return response::errors(StatusCode::INTERNAL_SERVER_ERROR, vec![reason]);
        }
    };
    let mut response = response::of_type(Body::full(html.into()), "text/html; charset=utf-8");
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.extend(HeaderValue::try_from(frame.policy()).map(|policy| (header::CONTENT_SECURITY_POLICY, policy)));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // With `no-referrer` browsers send `Origin: null` with a form.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// Returns true if the client asks for a web page by name, as browsers do. Tools accept anything, or JSON.
pub(super) fn accepts_html(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_html = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("text/html"));
        let is_refused = |part: &str| part.strip_prefix("q=").is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q == 0.0));
        is_html && !parts.any(is_refused)
    })
}

/// A time, in the forms that a page needs.
#[derive(Debug, Clone)]
struct Moment {
    /// For programs (RFC 3339).
    machine: String,
    /// Date and time.
    clock: String,
    /// The time of the day: `20:42`.
    time: String,
    /// `5 min ago`
    ago: String,
}

impl Moment {
    /// Date and time without seconds: `2026-12-09 09:38 UTC`.
    fn minute(&self) -> String {
        format!("{} {} UTC", self.machine.get(.."2026-12-09".len()).unwrap_or_default(), self.time)
    }

    /// A moment to come, or one that has passed.
    fn until(moment: Timestamp, now: Timestamp) -> Self {
        let ago = match moment.since(now).as_secs() {
            0 => "now".to_owned(),
            seconds @ 3_600..86_400 => format!("in {} h", seconds / 3_600),
            seconds => format!("in {}", format_seconds(seconds)),
        };
        Self { ago, ..Self::ago(moment, now) }
    }

    fn ago(moment: Timestamp, now: Timestamp) -> Self {
        let machine = moment.date_time();
        let time = machine.chars().skip("2026-11-21T".len()).take("20:42".len()).collect();
        let ago = match now.since(moment).as_secs() {
            0 => "just now".to_owned(),
            seconds @ 3_600..86_400 => format!("{} h ago", seconds / 3_600),
            seconds => format!("{} ago", format_seconds(seconds)),
        };
        Self { machine, clock: format_timestamp(moment), time, ago }
    }
}

/// Writes a number with a comma after each three digits: `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

//! The page at the root of the main listener: what larder is, and the configuration to paste.

use askama::Template;
use http::{Response, StatusCode};

use super::{Body, Frame, page};
use crate::protocol::HomeConfig;

const SCRIPT: &str = include_str!("../../../templates/home.js");

#[derive(Template)]
#[template(path = "home.html")]
struct Home<'a> {
    frame: Frame,
    version: &'static str,
    config: Option<&'a str>,
    is_address_configured: bool,
}

/// Renders the page.
pub(in crate::http) fn home(config: &HomeConfig) -> Response<Body> {
    let frame = Frame::of_home(SCRIPT);
    let HomeConfig { text, is_address_configured } = config;
    let version = env!("CARGO_PKG_VERSION");
    page(
        StatusCode::OK,
        frame,
        &Home { frame, version, config: text.as_deref(), is_address_configured: *is_address_configured },
    )
}

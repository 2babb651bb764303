//! The admin listener: its routes, and the requests that may use them.
//! Lines of the input: path and query, Host, Authorization, Origin, Sec-Fetch-Site.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use larder::config::Config;
use larder::protocol::admin::{Access, AccessHeaders, AdminRoute, ReadAccess};
use libfuzzer_sys::fuzz_target;

const TOKEN: &str = "t0ken-of-the-admin";

static ACCESS: LazyLock<[Access; 2]> = LazyLock::new(|| {
    let env = |_: &str| Some(TOKEN.to_owned());
    let parsed = Config::parse("admin.token = { env = 'TOKEN' }", "mirror.toml".as_ref(), &env);
    let token = parsed.ok().and_then(|(config, _)| config.admin.token).expect("a token");
    [Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, 1)].map(|ip| Access::new(token.clone(), ip.into(), ReadAccess::Open))
});

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let target = lines.next().unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    if AdminRoute::parse(path).is_some() {
        assert!(path.starts_with('/') && !path.contains("//"), "{path}");
        assert!(AdminRoute::parse(&format!("{path}/")).is_none(), "{path}");
    }
    let mut next = || lines.next();
    let (host, authorization, origin, site, destination) = (next(), next(), next(), next(), next());
    let headers = AccessHeaders { host, authorization, origin, site, destination };
    let [on_loopback, elsewhere] = &*ACCESS;
    if on_loopback.may_read(headers).is_ok() {
        assert!(headers.origin.is_none() && headers.site.is_none_or(|site| matches!(site, "none" | "same-origin")));
        let host = headers.host.expect("on loopback, a request has a local Host");
        assert!(names_this_machine(host), "{host}");
    }
    if elsewhere.may_read(headers).is_ok() {
        assert!(headers.origin.is_none());
        assert!(headers.authorization.is_some_and(|header| header.contains(TOKEN)), "{headers:?}");
    }
    let valid_token = format!("Bearer {TOKEN}");
    assert!(
        elsewhere
            .may_read(AccessHeaders { authorization: Some(&valid_token), origin: None, site: None, ..headers })
            .is_ok()
    );
});

/// Returns true if a browser would resolve this Host to the local machine: larder must not be laxer than a browser.
fn names_this_machine(host: &str) -> bool {
    let name = url::Url::parse(&format!("http://{host}/")).ok().and_then(|url| url.host_str().map(str::to_owned));
    let Some(name) = name else { return true };
    let address = name.trim_matches(['[', ']']).parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

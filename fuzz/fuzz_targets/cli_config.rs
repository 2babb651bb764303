//! The clients' CLI configuration: parsing is deterministic, no value is larger than the
//! file, and every error has a position or a reason.
#![no_main]

use larder::requirements::cli_config::{CliConfig, ServiceValue};
use larder::requirements::hcl::BadHcl;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| match CliConfig::read(file) {
    Ok(config) => {
        for services in config.hosts.values() {
            let urls = services.values().map(|service| match service {
                ServiceValue::Url(url) => url.len(),
                ServiceValue::Other => 0,
            });
            assert!(urls.sum::<usize>() <= file.len());
        }
        assert_eq!(CliConfig::read(file), Ok(config.clone()));
        let hosts = config.hosts.clone();
        assert_eq!(CliConfig::default().merge(config.clone()), config);
        assert_eq!(config.merge(CliConfig::default()).hosts, hosts);
    }
    Err(BadHcl::Syntax { line, column, reason }) => {
        assert!(line <= file.len() + 1 && column <= file.len() + 1 && !reason.is_empty());
    }
    Err(BadHcl::TooLarge(bytes)) => assert_eq!(bytes, file.len()),
    Err(BadHcl::NotUtf8) => assert!(std::str::from_utf8(file).is_err()),
});

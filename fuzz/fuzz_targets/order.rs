//! Orders of the admin API: a query before the first line break, JSON after it. A parsed order is within the limits, every
//! error has a reason, and a serialised warm-up parses to the same warm-up.
#![no_main]

use larder::address::Hostname;
use larder::jobs::WarmUp;
use larder::protocol::admin::order::{OrderBodyKind, OrderDraft, OrderRequest};
use larder::requirements::MAX_PLATFORMS;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let host = Hostname::parse("registry.example").expect("a host");
    let query_end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let query = String::from_utf8_lossy(&input[..query_end]);
    for kind in [OrderBodyKind::Tar, OrderBodyKind::LockFile] {
        let OrderDraft { options, problems } = OrderDraft::read(Some(&query), kind);
        assert!(options.what.is_empty() && options.files.is_empty() && options.lock_files.is_empty());
        assert!(problems.iter().all(|problem| problem.starts_with("the query: ") && problem.len() < 1_000));
    }
    let Ok(request) = OrderRequest::read(input.get(query_end + 1..).unwrap_or_default()) else { return };
    match request.order(&host) {
        Ok(order) => {
            assert!(!order.given.is_empty() && (1..=MAX_PLATFORMS).contains(&order.platforms.len()));
            let Ok(warm_up) = WarmUp::of_order(order, request.pin) else { return };
            let written = serde_json::to_vec(&warm_up).expect("plain data");
            assert!(serde_json::from_slice::<WarmUp>(&written).expect("what was written") == warm_up);
        }
        Err(problems) => assert!(!problems.is_empty() && problems.iter().all(|problem| !problem.is_empty())),
    }
});

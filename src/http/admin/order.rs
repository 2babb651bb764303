//! Order bodies of plan and warm-up requests: JSON, or for curl a lock file or a tar of configurations with options in
//! the query.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use tokio::sync::Semaphore;

use super::super::body::Body;
use super::super::response;
use super::bodies::{self, BodyRefused, OrderBody};
use crate::address::Hostname;
use crate::mirror::Mirror;
use crate::protocol::admin::order::{NamedText, OrderQuery, OrderRequest};
use crate::requirements::{Files, Order};

/// Limits the bodies in memory at a time. Further requests wait.
static BODY_PERMITS: Semaphore = Semaphore::const_new(4);
/// Limits parsing to one thread at a time.
static PARSER_PERMITS: Semaphore = Semaphore::const_new(1);

/// A parsed order.
pub(super) struct ReceivedOrder {
    pub(super) order: Order,
    /// Pin the packages that are warmed.
    pub(super) pin: bool,
}

/// Reads an order.
///
/// # Errors
/// The error response, with every problem of the order.
pub(super) async fn read(
    request: Request<Incoming>,
    mirror: &Mirror,
    default_host: &Hostname,
) -> Result<ReceivedOrder, http::Response<Body>> {
    let query = request.uri().query().map(str::to_owned);
    // The semaphores are never closed.
    let memory_permit = BODY_PERMITS.acquire().await;
    let refused = |BodyRefused { status, reason }| response::errors(status, vec![reason]);
    let body = bodies::read_order(request).await.map_err(refused)?;
    let parser_permit = PARSER_PERMITS.acquire().await;
    let host = Arc::new(default_host.clone());
    let parsing = mirror.runtime.spawn_blocking(move || {
        // The permits are released when the parsing ends, even if the client has disconnected.
        let _permits = (memory_permit, parser_permit);
        parse_body(body, query.as_deref(), &host)
    });
    let parsed = parsing.await.unwrap_or_else(|_| Err(vec!["parsing the order ended unexpectedly".to_owned()]));
    parsed.map_err(|problems| response::errors(StatusCode::BAD_REQUEST, problems))
}

fn parse_body(body: OrderBody, query: Option<&str>, default_host: &Hostname) -> Result<ReceivedOrder, Vec<String>> {
    let (options, mut problems) = match body {
        OrderBody::Json(_) if query.is_some() => {
            return Err(vec!["an order in JSON takes no query: put the options into the body".to_owned()]);
        }
        OrderBody::Json(body) => (OrderRequest::read(&body).map_err(|reason| vec![reason])?, Vec::new()),
        OrderBody::LockFile(body) => {
            let query = OrderQuery::of_lock_file(query);
            let (options, problems) = (query.options, query.problems);
            (OrderRequest { lock_files: vec![lock_file(&body)?], ..options }, problems)
        }
        OrderBody::Tar(body) => {
            let query = OrderQuery::of_tar(query);
            let (options, problems) = (query.options, query.problems);
            let files = Files::from_users_tar(&body).map_err(|error| vec![error.to_string()])?;
            if files.is_empty() {
                return Err(vec![
                    "the tar holds no file that a client reads: .tf, .tofu, .tf.json, .tofu.json".to_owned(),
                ]);
            }
            (OrderRequest { files: files.into(), ..options }, problems)
        }
    };
    match options.order(default_host) {
        Ok(order) if problems.is_empty() => Ok(ReceivedOrder { order, pin: options.pin }),
        order => {
            problems.extend(order.err().unwrap_or_default());
            Err(problems)
        }
    }
}

fn lock_file(body: &Bytes) -> Result<NamedText, Vec<String>> {
    match std::str::from_utf8(body) {
        Ok(text) => Ok(NamedText { name: ".terraform.lock.hcl".to_owned(), text: text.to_owned() }),
        Err(_) => Err(vec!["the body is not UTF-8 text, so it is not a lock file".to_owned()]),
    }
}

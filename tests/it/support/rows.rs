//! Rows of a table test.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

/// Checks each row of a table; the message of the first failure begins with the row's name.
pub(crate) async fn each_row<T>(rows: impl IntoIterator<Item = (impl Display, T)>, check: impl AsyncFn(T)) {
    for (name, row) in rows {
        if let Err(panic) = AssertUnwindSafe(check(row)).catch_unwind().await {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            panic!("{name}: {}", text.unwrap_or("a panic without a text"));
        }
    }
}

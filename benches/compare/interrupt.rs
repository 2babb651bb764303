//! Ctrl-C and SIGTERM: noted, so that the run ends at its next step, with every process and folder of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::signal::unix::{SignalKind, signal};

static CAME: AtomicBool = AtomicBool::new(false);

/// Notes them from now on.
pub(crate) fn listen() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        CAME.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// An error once it is over.
pub(crate) fn check() -> anyhow::Result<()> {
    if CAME.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps for this span, or until the program is interrupted.
pub(crate) fn pause(span: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + span;
    loop {
        check()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        sleep(left.min(Duration::from_millis(200)));
    }
}

//! Ctrl-C and SIGTERM: recorded, so that the run ends at its next step and cleans up its processes and folders.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::signal::unix::{SignalKind, signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Catches both signals from now on.
pub(crate) fn listen() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        INTERRUPTED.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Fails once a signal was received.
pub(crate) fn check() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps for this span, or until the program is interrupted.
pub(crate) fn pause(span: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + span;
    loop {
        check()?;
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(());
        }
        sleep(remaining.min(Duration::from_millis(200)));
    }
}

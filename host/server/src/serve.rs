//! Serving until told to stop. Owns the order in which a server ends: no new connections, time for what is under way, the
//! end of that; must not know routes.

use axum::Router;
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Time for errors to reach those who still wait when the engine has been ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serves `router` on `listener` until `stop`. Requests under way then have `grace` to finish; after that `end` is called,
/// which is to end the engine, so that those who still wait are told.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
    end: impl FnOnce(),
) -> io::Result<()> {
    let (told, stopping) = tokio::sync::oneshot::channel::<()>();
    let stop = async move {
        stop.await;
        // The other end waits for this, or is gone because the server failed.
        let _ = told.send(());
    };
    let mut serving = tokio::spawn(axum::serve(listener, router).with_graceful_shutdown(stop).into_future());
    let ended = tokio::select! {
        ended = &mut serving => return flat(ended),
        _ = stopping => timeout(grace, &mut serving).await,
    };
    match ended {
        Ok(ended) => {
            end();
            flat(ended)
        }
        Err(_) => {
            tracing::warn!(target: "prl_server", "requests are still under way after {grace:?}: they end now");
            end();
            timeout(LAST_WORDS, serving).await.map_or(Ok(()), flat)
        }
    }
}

fn flat(ended: Result<io::Result<()>, tokio::task::JoinError>) -> io::Result<()> {
    ended.unwrap_or_else(|e| Err(io::Error::other(e)))
}

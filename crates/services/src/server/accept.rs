//! Accepting until a shutdown, and the tasks that a service cannot do without.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::time::Duration;
use twinring::{
    Either, Handle, JoinHandle, TcpListener, TcpStream, race, shutdown_requested, sleep, spawn,
};

/// How long a shutdown continues to accept connections that the kernel has already established.
/// Closing the listener would reset those.
const ACCEPT_GRACE: Duration = Duration::from_millis(10);

/// Passes accepted connections to `start` until a shutdown is requested, then calls `at_shutdown`,
/// and continues for [`ACCEPT_GRACE`].
///
/// # Errors
/// When the listening socket fails.
pub(super) async fn accept(
    listener: &TcpListener,
    start: impl Fn(TcpStream),
    at_shutdown: impl FnOnce(),
) -> io::Result<()> {
    let mut shutdown = pin!(shutdown_requested());
    while let Either::Left(accepted) = race(listener.accept(), shutdown.as_mut()).await {
        start(accepted?);
    }
    at_shutdown();
    let mut grace = pin!(sleep(ACCEPT_GRACE));
    while let Either::Left(accepted) = race(listener.accept(), grace.as_mut()).await {
        start(accepted?);
    }
    Ok(())
}

/// Starts a task that is vital to a service. If it ends with a failure, all workers are asked to
/// shut down: a panic in a connection's task ends that connection only, but a panic in this task
/// would leave a service that looks alive and is not.
pub(crate) fn spawn_vital<T: 'static>(
    handle: &Handle,
    task: impl Future<Output = io::Result<T>> + 'static,
) -> JoinHandle<io::Result<T>> {
    let unless_it_ends_well = ShutdownOnDrop(Some(handle.clone()));
    spawn(async move {
        let mut unless_it_ends_well = unless_it_ends_well;
        let outcome = task.await;
        if outcome.is_ok() {
            unless_it_ends_well.0 = None;
        }
        outcome
    })
}

struct ShutdownOnDrop(Option<Handle>);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(Handle::shutdown);
    }
}

/// Ends a vital task that would otherwise run for ever.
///
/// # Errors
/// When it has ended by itself, which only a panic can cause.
pub(crate) async fn end_vital(task: JoinHandle<io::Result<Infallible>>) -> io::Result<()> {
    let has_ended = task.is_finished();
    task.abort();
    match task.await {
        Err(panic) if has_ended => Err(io::Error::other(panic)),
        _ => Ok(()),
    }
}

/// The accepting tasks of one worker.
#[derive(Debug)]
pub(super) struct Acceptors(Vec<JoinHandle<io::Result<()>>>);

impl Acceptors {
    /// Starts them. If one fails or panics, all workers are asked to shut down.
    pub(super) fn spawn<A>(handle: &Handle, acceptors: impl Iterator<Item = A>) -> Acceptors
    where
        A: Future<Output = io::Result<()>> + 'static,
    {
        Acceptors(acceptors.map(|acceptor| spawn_vital(handle, acceptor)).collect())
    }

    /// Waits until all of them have ended.
    ///
    /// # Errors
    /// The first error of one of them.
    pub(super) async fn ended(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for acceptor in self.0 {
            let ended = acceptor.await.unwrap_or_else(|gone| Err(io::Error::other(gone)));
            outcome = outcome.and(ended);
        }
        outcome
    }
}

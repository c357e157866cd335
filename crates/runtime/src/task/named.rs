//! Tasks with a name, for logs and panics.

use super::{JoinHandle, spawn};
use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

thread_local! {
    static CURRENT: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Like [`spawn`], with a name: [`task_name`] returns it while the task is polled and while it is
/// dropped, in a panic hook too. With the feature `tracing`, the task is then also in a span `task`
/// with the field `name`, of level INFO and target `twinring`.
///
/// ```no_run
/// std::panic::set_hook(Box::new(|panic| {
///     eprintln!("task {}: {panic}", twinring::task::task_name().unwrap_or("without a name"));
/// }));
/// ```
///
/// # Panics
/// Outside a twinring runtime.
pub fn spawn_named<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let scope = Scope {
        name,
        #[cfg(feature = "tracing")]
        span: tracing::info_span!(target: "twinring", "task", name),
    };
    spawn(Named { scope, future: Some(Box::pin(future)) })
}

/// The name of the task that this thread is polling or dropping, if it has one.
pub fn task_name() -> Option<&'static str> {
    CURRENT.try_with(Cell::get).ok().flatten()
}

struct Scope {
    name: &'static str,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Scope {
    /// Calls `f` as the task of this name; also if `f` panics, it ends there.
    fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        /// The name before: dropping a task may happen while another one is polled.
        struct Restore(Option<&'static str>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        #[cfg(feature = "tracing")]
        let _entered = self.span.enter();
        let _restore = Restore(CURRENT.replace(Some(self.name)));
        f()
    }
}

struct Named<F> {
    scope: Scope,
    /// Empty when it was dropped, inside the scope.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Named<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Named { scope, future } = &mut *self;
        match future {
            Some(future) => scope.enter(|| future.as_mut().poll(cx)),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Named<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        self.scope.enter(|| drop(future));
    }
}

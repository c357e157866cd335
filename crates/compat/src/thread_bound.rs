//! For libraries that demand `Send`.

use send_wrapper::SendWrapper;
use std::pin::Pin;

/// A stream that is `Send` and `Sync`, but works on one thread only.
///
/// Some libraries demand `Send` of a stream although they leave it in the task that uses it. With
/// this around it, such a library compiles, and the thread is checked whenever the stream is used.
/// The tasks of a twinring worker never leave its thread; pass nothing that holds the stream to
/// another one.
///
/// # Panics
/// All its operations panic on another thread than the one that made it, and so does dropping it
/// there.
#[derive(Debug)]
pub struct ThreadBound<T> {
    inner: SendWrapper<T>,
}

impl<T> ThreadBound<T> {
    /// Binds a stream to the current thread.
    pub fn new(inner: T) -> ThreadBound<T> {
        ThreadBound { inner: SendWrapper::new(inner) }
    }

    /// The stream.
    ///
    /// # Panics
    /// On another thread.
    pub fn get(&self) -> &T {
        &self.inner
    }

    /// The stream itself.
    ///
    /// # Panics
    /// On another thread.
    pub fn into_inner(self) -> T {
        self.inner.take()
    }
}

impl<T: Unpin> ThreadBound<T> {
    #[cfg(any(feature = "tokio", feature = "futures", feature = "hyper"))]
    pub(crate) fn project(self: Pin<&mut Self>) -> Pin<&mut T> {
        Pin::new(&mut *self.get_mut().inner)
    }
}

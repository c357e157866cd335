//! Tasks that are awaited together.

use super::{JoinError, JoinHandle, WaitQueue, spawn, wait, wake_all};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::rc::Rc;

/// Tasks of this worker, whose results come in the order in which they end. Dropping it aborts those
/// that run.
///
/// ```no_run
/// # async fn example(addresses: Vec<std::net::SocketAddr>) {
/// let mut attempts = twinring::task::JoinSet::new();
/// for address in addresses {
///     attempts.spawn(twinring::TcpStream::connect(address));
/// }
/// while let Some(ended) = attempts.join_next().await {
///     if let Ok(Ok(stream)) = ended {
///         println!("{:?} is the fastest", stream.peer_addr());
///         break;
///     }
/// }
/// # }
/// ```
pub struct JoinSet<T> {
    tasks: HashMap<u64, JoinHandle<T>>,
    next: u64,
    ended: Rc<Ended>,
}

/// The numbers of tasks that have ended, and who waits for one.
#[derive(Default)]
struct Ended {
    numbers: RefCell<VecDeque<u64>>,
    waiters: RefCell<WaitQueue>,
}

/// Reports the end of its task, however that is.
struct Report {
    number: u64,
    ended: Rc<Ended>,
}

impl Drop for Report {
    fn drop(&mut self) {
        self.ended.numbers.borrow_mut().push_back(self.number);
        wake_all(&self.ended.waiters);
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet { tasks: HashMap::new(), next: 0, ended: Rc::default() }
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T: 'static> JoinSet<T> {
    /// Without tasks.
    pub fn new() -> JoinSet<T> {
        JoinSet::default()
    }

    /// Starts a task, as [`spawn`].
    pub fn spawn(&mut self, future: impl Future<Output = T> + 'static) {
        let report = Report { number: self.next, ended: Rc::clone(&self.ended) };
        let task = spawn(async move {
            let _report = report;
            future.await
        });
        self.tasks.insert(self.next, task);
        self.next += 1;
    }

    /// The result of the next task that ends, or how it failed; `None` without tasks. Dropping the
    /// future loses none.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        while !self.tasks.is_empty() {
            let number = self.ended.numbers.borrow_mut().pop_front();
            if let Some(number) = number {
                // It has ended, so this does not wait.
                return Some(self.tasks.remove(&number)?.await);
            }
            wait(&self.ended.waiters).await;
        }
        None
    }
}

impl<T> JoinSet<T> {
    /// Aborts all tasks. [`join_next`](JoinSet::join_next) still returns them.
    pub fn abort_all(&self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }

    /// Tasks that were not returned yet.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// True without tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

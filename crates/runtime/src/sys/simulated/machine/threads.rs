//! Threads of a simulated machine: those that a program starts in a world.
//!
//! They are real threads of which one at a time has the turn: the others wait, each at its gate,
//! until the world opens it. A thread yields the turn where it would block, in a call of the C
//! library (`crate::sys::interposed`), and continues when the awaited event has occurred and the
//! seed selects it. So blocking programs and the state that they share with workers run the same
//! way each time.

use super::kernel::Machine;
use super::world::{Course, Inner, WORLD, here};
use crate::sys::interposed::Gate;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

thread_local! {
    static THREAD: RefCell<Option<Arc<Thread>>> = const { RefCell::new(None) };
}

/// The calling thread, if it belongs to a world; `None` for the one that created the world.
pub(super) fn current() -> Option<Arc<Thread>> {
    THREAD.try_with(|thread| thread.try_borrow().ok()?.clone()).ok()?
}

/// The deadline of a thread that only yields to others.
pub(super) const GIVES_WAY_NS: u64 = 0;

/// The condition of a waiting thread.
#[derive(Clone, Copy, Default)]
struct Waits {
    until_ns: Option<u64>,
    /// Returns whether the awaited event has occurred; lives on the stack of the thread, which is
    /// stopped.
    ready: Option<NonNull<dyn FnMut() -> bool>>,
}

/// One thread.
pub(super) struct Thread {
    /// It has the turn.
    go: Gate,
    /// It has returned the turn.
    back: Gate,
    waits: Cell<Waits>,
    over: Cell<bool>,
}

// SAFETY: the gates are made for several threads. Only the thread that has the turn accesses the
// cells; passing a gate orders its accesses after those of the thread that opened it.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

impl Thread {
    /// Yields the turn, and gets it again when `ready` returns true or at `until_ns`; returns the
    /// result of `ready` then.
    pub(super) fn wait(&self, until_ns: Option<u64>, ready: &mut dyn FnMut() -> bool) -> bool {
        // SAFETY: only the lifetime changes. The pointer is removed before this returns.
        let asked: NonNull<dyn FnMut() -> bool> =
            unsafe { std::mem::transmute(NonNull::from(&mut *ready)) };
        self.waits.set(Waits { until_ns, ready: Some(asked) });
        self.back.open();
        self.go.pass();
        self.waits.set(Waits::default());
        ready()
    }
}

/// A thread, as the world sees it.
struct Led {
    thread: Arc<Thread>,
    machine: Rc<Machine>,
}

impl Course for Led {
    fn is_over(&self) -> bool {
        self.thread.over.get()
    }

    fn is_runnable(&self) -> bool {
        let Waits { until_ns, ready } = self.thread.waits.get();
        // A thread that has not begun waits for no event.
        let Some(mut ready) = ready else { return true };
        let due = until_ns.is_some_and(|until_ns| self.machine.clock.get() >= until_ns);
        // SAFETY: the thread is stopped in `wait`, where the closure lives, and does not use it
        // until it gets the turn.
        due || unsafe { ready.as_mut()() }
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        // A thread that only yields has no deadline; otherwise time would creep while others wait.
        self.thread.waits.get().until_ns.filter(|until_ns| *until_ns != GIVES_WAY_NS)
    }

    fn step(&mut self) {
        self.thread.go.open();
        self.thread.back.pass();
    }

    fn check(&self, _: bool) -> Result<(), String> {
        Ok(())
    }
}

/// The threads of a world that can be joined, by their names in the C library.
#[derive(Default)]
pub(super) struct Threads(RefCell<BTreeMap<u64, Arc<Thread>>>);

/// The part of the world that a new thread gets.
struct Entry {
    world: Rc<Inner>,
    thread: Arc<Thread>,
    main: Box<dyn FnOnce()>,
}

/// Calls `start` to start a real thread that runs its argument, and adds that thread to the world
/// of the calling thread. `start` returns the name of the thread, or an errno.
pub(crate) fn start_thread(
    main: Box<dyn FnOnce()>,
    start: impl FnOnce(Box<dyn FnOnce()>) -> Result<u64, i32>,
) -> Result<(), i32> {
    let Some(world) = here() else { return Err(libc::EAGAIN) };
    let thread = Arc::new(Thread {
        go: Gate::default(),
        back: Gate::default(),
        waits: Cell::default(),
        over: Cell::new(false),
    });
    let entry = Entry { world: Rc::clone(&world), thread: Arc::clone(&thread), main };
    let name = start(Box::new(move || run(entry)))?;
    world.threads.0.borrow_mut().insert(name, Arc::clone(&thread));
    world.add(Box::new(Led { thread, machine: Rc::clone(&world.machine) }));
    Ok(())
}

/// The life of a thread.
fn run(entry: Entry) {
    entry.thread.go.pass();
    let Entry { world, thread, main } = entry;
    WORLD.set(Some(world));
    THREAD.set(Some(Arc::clone(&thread)));
    main();
    // The state of the world is dropped while this thread has the turn.
    THREAD.take();
    drop(WORLD.take());
    thread.over.set(true);
    thread.back.open();
}

/// Waits until the thread of this name has ended, if it belongs to the world of the calling thread.
pub(crate) fn join(name: u64) {
    let Some(world) = here() else { return };
    let thread = world.threads.0.borrow_mut().remove(&name);
    if let Some(thread) = thread {
        super::world::wait(None, &mut || thread.over.get());
    }
}

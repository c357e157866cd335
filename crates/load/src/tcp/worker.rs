//! One worker thread of the load: it connects, begins with the others, and returns its counts.

use super::connection::{Connection, Ending, Worker};
use super::settings::{Pace, Settings};
use crate::cpu::CpuUse;
use crate::recorder::Trouble;
use crate::run::{
    Connections, Control, Loaded, Share, Thread, connect_failure, connect_share, dial,
};
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use twinring::{Either, TcpStream, race, shutdown_requested, spawn};

/// The result of a thread.
pub(super) struct Outcome {
    pub(super) share: Share,
    pub(super) idle_established: u64,
}

/// Runs the share of the load of thread `index`.
pub(super) async fn work(index: usize, settings: Arc<Settings>, control: Arc<Control>) -> Outcome {
    let thread = Thread::new(index, control);
    Rc::new(Worker { thread, pace: settings.pace(), settings }).run().await
}

impl Worker {
    async fn run(self: &Rc<Worker>) -> Outcome {
        let outcome = |connections: &Connections<Connection>, idle: usize, cpu| Outcome {
            share: Share::of(&self.thread, connections, cpu),
            idle_established: idle as u64,
        };
        let Either::Left((streams, idle)) = race(self.connect_all(), shutdown_requested()).await
        else {
            return outcome(&Vec::new(), 0, CpuUse::default());
        };
        if !self.thread.stand_ready(streams.len()).await {
            return outcome(&Vec::new(), 0, CpuUse::default());
        }
        let connections = self.begin(streams).await;
        let cpu = self.thread.measure().await;
        connections.iter().for_each(|connection| connection.borrow().wake());
        self.thread.drain().await;
        outcome(&connections, idle.len(), cpu)
    }

    /// Opens this thread's connections, active and idle ones. Failures are counted.
    async fn connect_all(self: &Rc<Worker>) -> (Vec<(u64, TcpStream)>, Vec<(u64, TcpStream)>) {
        let (total, threads) = (self.settings.connections, self.settings.workers.threads);
        let share = |all| {
            let worker = Rc::clone(self);
            connect_share(all, threads, self.thread.index, move |number| {
                let worker = Rc::clone(&worker);
                async move { worker.connect(number, 0).await }
            })
        };
        let streams = share(0..total).await;
        // The numbers of idle connections follow those of the active ones.
        (streams, share(total..total + self.settings.idle).await)
    }

    /// One attempt to connect, counted if it fails.
    async fn connect(&self, number: u64, life: u64) -> Option<TcpStream> {
        let settings = &self.settings;
        let turn = number + life;
        let limited = |stream: TcpStream| match self.pace {
            Pace::SlowReader => {
                stream.set_recv_buffer_bytes(super::SLOW_RECV_BUFFER_BYTES).map(|_| stream)
            }
            _ => Ok(stream),
        };
        let attempt = dial(settings.target, &settings.local, turn, settings.connect_timeout);
        match attempt.await.and_then(limited) {
            Ok(stream) => Some(stream),
            Err(error) => {
                self.thread.trouble(number, Trouble::Connect, || connect_failure(&error));
                None
            }
        }
    }

    /// Starts the traffic.
    async fn begin(self: &Rc<Worker>, streams: Vec<(u64, TcpStream)>) -> Connections<Connection> {
        let settings = &self.settings;
        let (warmup, rate) = (settings.warmup, settings.schedule());
        self.thread.first_moment(warmup, rate, settings.connections).await;
        let mut connections = Connections::new();
        for (number, stream) in streams {
            let connection = Rc::new(RefCell::new(Connection::new(self, number)));
            connections.push(Rc::clone(&connection));
            spawn(Rc::clone(self).serve(connection, stream));
        }
        let limit = (self.pace != Pace::SlowReader).then_some(settings.timeout);
        self.thread.watch_over(&connections, limit);
        connections
    }

    /// Runs a connection through its lives.
    async fn serve(self: Rc<Worker>, connection: Rc<RefCell<Connection>>, first: TcpStream) {
        let mut stream = first;
        let lost = loop {
            let ending = poll_fn(|cx| connection.borrow_mut().poll(&stream, cx)).await;
            connection.borrow_mut().end_life();
            drop(stream);
            let (number, life) = (connection.borrow().number(), connection.borrow().life());
            match ending {
                Ending::Finished => break false,
                Ending::Lost(kind, what) => {
                    self.thread.trouble(number, kind, || what);
                    break true;
                }
                Ending::Churned => {}
            }
            let Some(next) = self.connect(number, life + 1).await else { break true };
            self.thread.reconnected();
            connection.borrow_mut().begin_life();
            stream = next;
        };
        self.thread.ended(lost);
    }
}

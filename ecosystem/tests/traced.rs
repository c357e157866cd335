//! With the feature `tracing`, a task with a name is a span.

use std::time::Duration;
use twinring::{EngineChoice, Runtime, sleep, spawn, task::spawn_named};

fn current_span() -> Option<&'static str> {
    tracing::Span::current().metadata().map(|metadata| metadata.name())
}

#[test]
fn a_named_task_is_in_its_span_at_every_poll_and_no_other_task_is() {
    tracing::subscriber::with_default(tracing_subscriber::registry(), || {
        let runtime = Runtime::builder().engine(EngineChoice::Epoll).build().expect("epoll");
        let spans = runtime.block_on(async {
            let named = spawn_named("one", async {
                let before = current_span();
                sleep(Duration::from_millis(1)).await;
                (before, current_span())
            });
            let plain = spawn(async {
                sleep(Duration::from_micros(500)).await;
                current_span()
            });
            (named.await.expect("no panic"), plain.await.expect("no panic"), current_span())
        });
        let (named, plain, main) = spans.expect("the engine works");
        assert_eq!(named, (Some("task"), Some("task")));
        assert_eq!((plain, main), (None, None));
    });
}

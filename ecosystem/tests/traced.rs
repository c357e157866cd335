//! A task that is instrumented is in its span, and no other task.

use std::time::Duration;
use tracing::{Instrument, info_span};
use twinring::{EngineChoice, Runtime, sleep, spawn};

fn current_span() -> Option<&'static str> {
    tracing::Span::current().metadata().map(|metadata| metadata.name())
}

#[test]
fn an_instrumented_task_is_in_its_span_at_every_poll_and_no_other_task_is() {
    tracing::subscriber::with_default(tracing_subscriber::registry(), || {
        let runtime = Runtime::builder().engine(EngineChoice::Epoll).build().expect("epoll");
        let spans = runtime.block_on(async {
            let future = async {
                let before = current_span();
                sleep(Duration::from_millis(1)).await;
                (before, current_span())
            };
            let named = spawn(future.instrument(info_span!("one")));
            let plain = spawn(async {
                sleep(Duration::from_micros(500)).await;
                current_span()
            });
            (named.await.expect("no panic"), plain.await.expect("no panic"), current_span())
        });
        let (named, plain, main) = spans.expect("the engine works");
        assert_eq!(named, (Some("one"), Some("one")));
        assert_eq!((plain, main), (None, None));
    });
}

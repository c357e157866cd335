//! What the examples do, checked.

use crate::support::*;
use async_tungstenite::tungstenite::Message;
use testing::Test;

#[path = "../../examples/select_join.rs"]
mod select_join;
#[path = "../../examples/tls_echo.rs"]
mod tls_echo;
#[path = "../../examples/websocket_echo.rs"]
mod websocket_echo;

pub(crate) const TESTS: &[Test] = on_engines![
    tls_echoes_all_sizes,
    websockets_echo_messages,
    select_and_join_answer_jobs_of_another_thread
];

async fn tls_echoes_all_sizes() {
    let listener = listen();
    let address = listener.local_addr();
    let (acceptor, connector) = tls_echo::identities().expect("a certificate");
    twinring::spawn(tls_echo::serve(listener, acceptor));
    for bytes in [0, 1, 20_000, 2 << 20] {
        let sent = pattern(bytes);
        let answer = tls_echo::say(address, &connector, &sent).await.expect("an echo");
        assert!(answer == sent, "{bytes} bytes");
    }
}

async fn websockets_echo_messages() {
    let listener = listen();
    let address = listener.local_addr();
    twinring::spawn(websocket_echo::serve(listener));
    let said = vec![
        Message::text("hello"),
        Message::binary(pattern(1 << 20)),
        Message::text("and goodbye"),
    ];
    let answers = websocket_echo::say(address, said.clone()).await.expect("an echo");
    assert!(answers == said);
}

async fn select_and_join_answer_jobs_of_another_thread() {
    let (jobs, to_do) = async_channel::bounded::<String>(2);
    let (done, answers) = async_channel::bounded::<std::io::Result<String>>(2);
    let client = on_thread(move || {
        let ask = |job: usize| {
            jobs.send_blocking(job.to_string()).expect("the worker has not ended");
            answers.recv_blocking().expect("an answer").expect("in time")
        };
        (0..20).map(ask).collect::<Vec<String>>()
    });
    select_join::work(to_do, done).await.expect("a working listener");
    let expected: Vec<_> = (0..20).map(|job| format!("{job} 0.{job} 1.{job} 2.")).collect();
    assert_eq!(client.await, expected);
}

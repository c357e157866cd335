//! What the examples do, checked.

use crate::support::*;
use testing::Test;

#[path = "../../examples/tls_echo.rs"]
mod tls_echo;

pub(crate) const TESTS: &[Test] = on_engines![tls_echoes_all_sizes];

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

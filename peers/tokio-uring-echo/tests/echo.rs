//! The checks every peer has to pass.

echo_check::suite!(tokio_uring, "tokio-uring-echo");

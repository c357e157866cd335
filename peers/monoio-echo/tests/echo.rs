//! The checks every peer has to pass.

echo_check::suite!(monoio, "monoio-echo");

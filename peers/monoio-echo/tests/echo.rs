//! The checks every peer has to pass.

echo_check::suite!(deferred, "monoio-echo");
echo_check::suite!(plain, "monoio-echo", "--plain-ring");

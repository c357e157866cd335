//! The checks every peer has to pass.

echo_check::suite!(multishot, "compio-echo");
echo_check::suite!(owned, "compio-echo", "--recv", "owned");

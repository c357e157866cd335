//! `twinring load`, against servers of these tests whose faults are known, and nginx.

#[path = "../support/mod.rs"]
mod support;

mod http;
mod http2;
mod http_faults;
mod http_tls;
mod start;
mod tcp;
mod udp;

fn main() -> std::process::ExitCode {
    testing::run(&[
        start::TESTS,
        http::TESTS,
        http2::TESTS,
        http_faults::TESTS,
        http_tls::TESTS,
        tcp::TESTS,
        udp::ENGINE_TESTS,
    ])
}

//! `twinring serve`, over real sockets, as an operator starts it. What HTTP asks for is in tables, which one
//! server answers; both engines run only what an engine can make different.

#[path = "../support/mod.rs"]
mod support;

mod containers;
mod echo;
mod http2;
mod http_answers;
mod http_compression;
mod http_config;
mod http_connections;
mod http_files;
mod http_log;
mod http_metrics;
mod http_nginx;
mod http_proxies;
mod http_reload;
mod http_requests;
mod http_rules;
mod http_stuck_files;
mod http_tls;
mod idle;
mod sandbox;
mod starts;
mod udp;

fn main() -> std::process::ExitCode {
    testing::run(&[
        containers::TESTS,
        echo::TESTS,
        http2::TESTS,
        http2::LONG_TESTS,
        http_answers::TESTS,
        http_compression::TESTS,
        http_config::TESTS,
        http_connections::TESTS,
        http_files::TESTS,
        http_log::TESTS,
        http_metrics::TESTS,
        http_nginx::TESTS,
        http_proxies::TESTS,
        http_reload::TESTS,
        http_requests::TESTS,
        http_rules::TESTS,
        http_stuck_files::TESTS,
        http_tls::TESTS,
        idle::ENGINE_TESTS,
        sandbox::TESTS,
        starts::TESTS,
        udp::TESTS,
    ])
}

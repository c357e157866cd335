//! `twinring serve`, over real sockets, as an operator starts it. What HTTP asks for is in tables, which one
//! server answers; both engines run only what an engine can make different.

#[path = "../support/mod.rs"]
mod support;

mod allow;
mod containers;
mod counters;
mod discard;
mod echo;
mod echo_limits;
mod echo_shutdown;
mod engines;
mod families;
mod http2;
mod http_activation;
mod http_answers;
mod http_auth;
mod http_browser;
mod http_compression;
mod http_config;
mod http_connections;
mod http_files;
mod http_hosts;
mod http_log;
mod http_metrics;
mod http_proxies;
mod http_redirects;
mod http_reload;
mod http_requests;
mod http_shutdown;
mod http_tls;
mod idle;
mod sandbox;
mod udp;
mod udp_shutdown;

fn main() -> std::process::ExitCode {
    testing::run(&[
        allow::TESTS,
        allow::ENGINE_TESTS,
        containers::TESTS,
        containers::ENGINE_TESTS,
        counters::ENGINE_TESTS,
        discard::ENGINE_TESTS,
        echo::TESTS,
        echo::ENGINE_TESTS,
        echo_limits::ENGINE_TESTS,
        echo_shutdown::TESTS,
        echo_shutdown::ENGINE_TESTS,
        engines::TESTS,
        engines::ENGINE_TESTS,
        families::TESTS,
        families::ENGINE_TESTS,
        http2::TESTS,
        http2::ENGINE_TESTS,
        http2::LONG_TESTS,
        http_activation::TESTS,
        http_activation::ENGINE_TESTS,
        http_answers::TESTS,
        http_auth::TESTS,
        http_auth::ENGINE_TESTS,
        http_browser::TESTS,
        http_compression::ENGINE_TESTS,
        http_config::TESTS,
        http_config::ENGINE_TESTS,
        http_connections::TESTS,
        http_connections::ENGINE_TESTS,
        http_files::TESTS,
        http_files::ENGINE_TESTS,
        http_hosts::ENGINE_TESTS,
        http_log::TESTS,
        http_metrics::TESTS,
        http_proxies::ENGINE_TESTS,
        http_redirects::TESTS,
        http_redirects::ENGINE_TESTS,
        http_reload::TESTS,
        http_reload::ENGINE_TESTS,
        http_requests::TESTS,
        http_requests::ENGINE_TESTS,
        http_shutdown::TESTS,
        http_shutdown::ENGINE_TESTS,
        http_tls::TESTS,
        http_tls::ENGINE_TESTS,
        idle::ENGINE_TESTS,
        sandbox::TESTS,
        sandbox::ENGINE_TESTS,
        udp::TESTS,
        udp::ENGINE_TESTS,
        udp_shutdown::TESTS,
        udp_shutdown::ENGINE_TESTS,
    ])
}

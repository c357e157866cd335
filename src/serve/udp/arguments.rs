//! The arguments of the reflector.

use crate::engine_args::EngineArgs;
use crate::serve::admin::AdminArgs;
use crate::serve::allow::AllowArgs;
use crate::serve::report::OutputArgs;
use crate::serve::sandbox::SandboxArgs;
use crate::serve::user::UserArgs;
use crate::values::{self, duration};
use clap::Args;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;
use twinring::UdpOptions;
use twinring::net::Granted;
use twinring_services::AllowList;
use twinring_services::udp::Impairments;

/// The largest `--delay`.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// Buffers of a socket that takes coalesced datagrams: each may hold 64 KiB.
const COALESCED_BUFFERS: u32 = 64;
const BUFFERS: u32 = 1024;
/// `--max-datagram` with UDP_GRO.
const COALESCED_BYTES: u32 = 65_535;

#[derive(Debug, Args)]
pub(crate) struct UdpArgs {
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:9000`).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000", value_parser = values::listen)]
    pub(super) listen: Vec<SocketAddr>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    /// Longest datagram that is answered, 16 to 65535 bytes; longer ones are dropped and counted.
    #[arg(long, value_name = "BYTES", help_heading = "Datagrams", default_value_t = 65_535,
          value_parser = clap::value_parser!(u32).range(16..=65_535))]
    max_datagram: u32,
    /// Receive buffers of each worker, of --max-datagram bytes; a power of two from 4 to 32768.
    /// [default: 1024; 64 with --gro on]
    #[arg(long, value_name = "N", help_heading = "Datagrams", value_parser = buffers)]
    buffers: Option<u32>,
    /// Receive buffer to request for each socket; net.core.rmem_max caps it, except with
    /// CAP_NET_ADMIN.
    #[arg(long, value_name = "BYTES", help_heading = "Datagrams", default_value_t = 4 << 20,
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    rcvbuf: u32,
    /// Send buffer to request for each socket; as for --rcvbuf, with net.core.wmem_max.
    #[arg(long, value_name = "BYTES", help_heading = "Datagrams", default_value_t = 4 << 20,
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    sndbuf: u32,
    /// Let the kernel coalesce and segment datagrams of one flow (UDP_GRO, UDP_SEGMENT), for bulk
    /// traffic. The kernel then counts a dropped coalesced buffer as one datagram.
    #[arg(long, value_name = "on|off", help_heading = "Datagrams", default_value = "off",
          value_parser = switch, action = clap::ArgAction::Set)]
    gro: bool,
    /// Differentiated services codepoint of the answers, 0 to 63.
    #[arg(long, value_name = "N", help_heading = "Datagrams", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=63))]
    dscp: u8,
    /// Give each answer the ECN codepoint of its datagram, instead of none.
    #[arg(long, help_heading = "Datagrams")]
    pub(super) copy_ecn: bool,
    /// On io_uring, keep this many single-shot receives in flight, 1 to 4096, instead of one
    /// multishot receive: slower, and datagrams may be reordered. 0 is off.
    #[arg(long, value_name = "N", help_heading = "Datagrams", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=4096))]
    pending: u32,
    /// Up to 64 datagrams per system call (on io_uring: bursts of answers); off: one each.
    #[arg(long, value_name = "on|off", help_heading = "Datagrams", default_value = "on",
          value_parser = switch, action = clap::ArgAction::Set)]
    batch: bool,
    /// Delay each answer by TIME, at most 10s, plus or minus JITTER; the order of each source is
    /// kept. Up to 131072 datagrams or 128 MiB wait per socket.
    #[arg(long, value_name = "TIME[:JITTER]", help_heading = "Impairments")]
    delay: Option<Delay>,
    /// Share of datagrams that are not answered.
    #[arg(long, value_name = "PERCENT", help_heading = "Impairments", value_parser = percent,
          allow_negative_numbers = true)]
    loss: Option<f64>,
    /// Share of datagrams that are answered twice. The answers are more than was received, so this is
    /// refused with --allow any.
    #[arg(long, value_name = "PERCENT", help_heading = "Impairments", value_parser = percent,
          allow_negative_numbers = true)]
    duplicate: Option<f64>,
    /// Share of datagrams that are swapped with the next one of their source, if that arrives within
    /// 100ms.
    #[arg(long, value_name = "PERCENT", help_heading = "Impairments", value_parser = percent,
          allow_negative_numbers = true)]
    swap: Option<f64>,
    /// Seed of the impairments: the same seed and order of arrival at a socket give the same loss,
    /// duplicates, swaps and delays.
    #[arg(long, value_name = "N", help_heading = "Impairments", default_value_t = 1)]
    seed: u64,
    /// How long a shutdown may take to send answers, including delayed ones.
    #[arg(long, value_name = "DURATION", help_heading = "Limits", default_value = "10s",
          value_parser = duration)]
    pub(super) drain_timeout: Duration,
    #[command(flatten)]
    pub(super) allow: AllowArgs,
    /// Datagrams answered per second per IPv4 address, or IPv6 network of 64 bits, on each socket.
    /// Allows bursts of a tenth of a second, at least 64. Remembers 65536 sources.
    #[arg(long, value_name = "PPS", help_heading = "Limits",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(super) max_rate_per_source: Option<u32>,
    #[command(flatten)]
    pub(super) admin: AdminArgs,
    #[command(flatten)]
    pub(super) user: UserArgs,
    #[command(flatten)]
    pub(super) sandbox: SandboxArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl UdpArgs {
    pub(super) fn options(&self) -> UdpOptions {
        let buffers = if self.gro { COALESCED_BUFFERS } else { BUFFERS };
        UdpOptions {
            recv_buffer_bytes: Some(self.rcvbuf),
            send_buffer_bytes: Some(self.sndbuf),
            buffer_bytes: self.max_datagram,
            buffer_count: self.buffers.unwrap_or(buffers),
            gro: self.gro,
            dscp: self.dscp,
            pending: self.pending,
            batch: self.batch,
            ..UdpOptions::default()
        }
    }

    /// The sources that are answered.
    ///
    /// # Errors
    /// When clients must be allowed, or the reflector would be an open amplifier.
    pub(super) fn allow_list(&self) -> Result<AllowList, String> {
        if self.allow.is_any() && self.duplicate.is_some_and(|percent| percent > 0.0) {
            return Err(
                "--duplicate answers with more than was received, so forged sources would make \
                 it an amplifier: list the clients with --allow CIDR instead of any"
                    .to_owned(),
            );
        }
        self.allow.list_for(&self.listen)
    }

    /// The impairments of datagrams, if any.
    pub(super) fn impairments(&self) -> Option<Impairments> {
        let Delay { delay, jitter } = self.delay.unwrap_or_default();
        let share = |percent: Option<f64>| percent.unwrap_or(0.0) / 100.0;
        let (loss, duplicate, swap) = (share(self.loss), share(self.duplicate), share(self.swap));
        let impairments = Impairments { delay, jitter, loss, duplicate, swap, seed: self.seed };
        impairments.is_any().then_some(impairments)
    }

    pub(super) fn max_datagram_with(&self, granted: Granted) -> u32 {
        if granted.gro { COALESCED_BYTES } else { self.max_datagram }
    }

    /// Where the kernel has granted less than requested: the shortfall, and the fix.
    pub(super) fn compare(&self, granted: Granted) -> Vec<String> {
        let mut shortfalls = Vec::new();
        for (option, asked, granted, limit) in [
            ("--rcvbuf", self.rcvbuf, granted.recv_buffer_bytes, "net.core.rmem_max"),
            ("--sndbuf", self.sndbuf, granted.send_buffer_bytes, "net.core.wmem_max"),
        ] {
            // The kernel doubles what is asked, for its own bookkeeping (socket(7)).
            if granted / 2 < asked as usize {
                shortfalls.push(format!(
                    "twinring: {option} {asked}: the kernel grants {}; raise {limit}, or grant \
                     CAP_NET_ADMIN",
                    granted / 2
                ));
            }
        }
        if self.gro && !granted.gro {
            shortfalls.push(
                "twinring: --gro on: this kernel has no UDP_GRO (Linux 5.0); datagrams arrive \
                 one by one"
                    .to_owned(),
            );
        }
        shortfalls
    }

    /// For the ready line.
    pub(super) fn details_text(&self, granted: Granted) -> String {
        let mut text = format!(
            "datagrams up to {} bytes, granted rcvbuf {} sndbuf {}, gro {}, gso {}",
            self.max_datagram_with(granted),
            granted.recv_buffer_bytes,
            granted.send_buffer_bytes,
            if granted.gro { "on" } else { "off" },
            if granted.gso { "on" } else { "off" },
        );
        if self.impairments().is_some() {
            text.push_str("; impaired:");
            if let Some(Delay { delay, jitter }) = self.delay {
                text.push_str(&format!(" delay {delay:?} +- {jitter:?},"));
            }
            let shares = [("loss", self.loss), ("duplicate", self.duplicate), ("swap", self.swap)];
            for (name, share) in shares {
                if let Some(percent) = share {
                    text.push_str(&format!(" {name} {percent} %,"));
                }
            }
            text.push_str(&format!(" seed {}", self.seed));
        }
        text
    }
}

/// `TIME[:JITTER]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Delay {
    delay: Duration,
    jitter: Duration,
}

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Delay, String> {
        let (delay, jitter) = text.split_once(':').unwrap_or((text, "0s"));
        let (delay, jitter) = (duration(delay)?, duration(jitter)?);
        if delay > DELAY_MAX {
            return Err(format!("a delay is at most {DELAY_MAX:?}"));
        }
        if jitter > delay {
            return Err("the jitter is at most the delay: no answer can be early".to_owned());
        }
        Ok(Delay { delay, jitter })
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    number
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "expected a percentage from 0 to 100, such as 0.5".to_owned())
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

fn buffers(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|count: &u32| count.is_power_of_two() && (4..=1 << 15).contains(count))
        .ok_or_else(|| "expected a power of two from 4 to 32768".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_parse_and_say_what_is_wrong() {
        let ms = Duration::from_millis;
        assert_eq!("20ms".parse(), Ok(Delay { delay: ms(20), jitter: ms(0) }));
        assert_eq!("20ms:5ms".parse(), Ok(Delay { delay: ms(20), jitter: ms(5) }));
        for wrong in ["", "20", "5ms:20ms", "11s", "-5ms", "20ms:"] {
            assert!(wrong.parse::<Delay>().is_err(), "{wrong:?}");
        }
        assert_eq!((percent("0.5"), percent("100%"), percent("0")), (Ok(0.5), Ok(100.0), Ok(0.0)));
        for wrong in ["-1", "100.1", "nan", "inf", "half"] {
            assert!(percent(wrong).is_err(), "{wrong:?}");
        }
    }
}

//! Options of `lab run` that put server and load generators on other hosts.

use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;
use twinring_lab::{HostOptions, LabError, NODE, Quorum};

/// The hosts, and how to reach them.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Between hosts")]
pub(super) struct Hosts {
    /// Host of the server, as the command of --connect knows it; `local` is this one. Each of several servers has
    /// load generators of its own, and their results are added. Repeatable.
    #[arg(long, value_name = "HOST")]
    server_host: Vec<String>,
    /// Host of a load generator. Several share the load, and their results are added. Repeatable.
    #[arg(long, value_name = "HOST")]
    client_host: Vec<String>,
    /// Go on when client hosts are lost, as long as this many are left: a number, or a percentage such as 80%. The
    /// load is divided again among them, and reports say from where on. Without it the experiment ends when a host is
    /// lost.
    #[arg(long, value_name = "N|N%", value_parser = Quorum::parse)]
    quorum: Option<Quorum>,
    /// Address that the server listens on, and that all client hosts can reach; by default the one by
    /// which ssh reaches the host, or the only one that it has. With several servers, give one for each, in the same order.
    #[arg(long, value_name = "IP")]
    server_address: Vec<IpAddr>,
    /// Path of this program on the other hosts. By default it is copied to their
    /// ~/.cache/twinring, once for each version.
    #[arg(long, value_name = "PATH")]
    remote_binary: Option<PathBuf>,
    /// Command that runs a program on a host, with {node} in place of its name: `ssh -F my_config
    /// {node}`, `srun --nodelist={node} -N1`, `kubectl exec -i {node} --`, `podman exec -i {node}`,
    /// `ip netns exec {node}` [default: ssh {node}].
    #[arg(long, value_name = "COMMAND")]
    connect: Option<String>,
}

impl Hosts {
    /// The hosts for the library; `None` if everything runs on this host.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`] when a quote is not closed, or an option applies to no host.
    pub(super) fn options(self) -> Result<Option<HostOptions>, LabError> {
        let bad = |place: &str, problem: &str, expected: &str| LabError::BadExperiment {
            place: place.to_owned(),
            problem: problem.to_owned(),
            expected: expected.to_owned(),
        };
        if self.server_host.is_empty() && self.client_host.is_empty() {
            let unused = [
                !self.server_address.is_empty(),
                self.remote_binary.is_some(),
                self.connect.is_some(),
                self.quorum.is_some(),
            ];
            return match unused.contains(&true) {
                true => Err(bad(
                    "the options",
                    "--server-address, --remote-binary, --connect and --quorum are for other hosts",
                    "--server-host or --client-host",
                )),
                false => Ok(None),
            };
        }
        let command = self.connect.unwrap_or_else(|| format!("ssh {NODE}"));
        let connect = shlex::split(&command)
            .filter(|words| words.iter().skip(1).any(|word| word.contains(NODE)));
        let expected = "a program and its arguments, one of them with {node}";
        let connect = connect.ok_or_else(|| bad("--connect", &command, expected))?;
        Ok(Some(HostOptions {
            servers: self.server_host,
            clients: self.client_host,
            quorum: self.quorum,
            server_addresses: self.server_address,
            connect,
            remote_binary: self.remote_binary,
        }))
    }
}

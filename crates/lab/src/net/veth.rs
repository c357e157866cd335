//! Two namespaces, a veth pair between them, and receive steering pinned per end.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

use super::namespace::{Namespace, Place, handle};
use super::{NetRecord, Network, rtnetlink, setting_path, settings};
use crate::experiment::NetKind;
use crate::host::End;
use crate::machine::Cpus;
use crate::procfs;

// The addresses exist inside the two namespaces only, so they cannot meet a real network.
const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 231, 77, 1);
const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 231, 77, 2);
const PREFIX_LEN: u8 = 30;
const SERVER_DEVICE: &str = "server0";
const CLIENT_DEVICE: &str = "client0";

/// The setting that decides most about a TCP comparison. A new namespace starts with the machine's
/// default; it is written to both ends all the same, so that they are equal whatever happens.
const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";

/// Connections that may be in TIME_WAIT, where `tcp_time_wait` puts them after its end closed first
/// (net/ipv4/tcp_minisocks.c). With any, the speed of connections that come and go would depend on
/// how many of them earlier runs made: after 14,000 in a minute `connect` searches long for a port
/// that is free (20 times slower), until the kernel's bound, 131,072 here, ends TIME_WAIT altogether.
const TIME_WAIT_MOST: (&str, &str) = ("net.ipv4.tcp_max_tw_buckets", "0");

/// Sets up both ends.
///
/// # Errors
/// The step that failed and the kernel's answer.
pub(super) fn set_up(cpus: &Cpus) -> Result<Network, String> {
    let congestion_control = procfs::text(&setting_path(CONGESTION_CONTROL));
    let server = Place::Namespace(Namespace::new()?);
    let client = Place::Namespace(Namespace::new()?);
    let client_namespace = client.run(handle)?;
    server
        .run(move || rtnetlink::add_veth(SERVER_DEVICE, CLIENT_DEVICE, client_namespace.as_fd()))?;
    let control = congestion_control.clone();
    let (server_cpu, client_cpu) = (cpus.server, cpus.client);
    let client_rps =
        client.run(move || set_up_end(CLIENT_DEVICE, CLIENT_IP, client_cpu, control.as_deref()))?;
    let (server_rps, mtu_bytes, settings) = server.run(move || {
        let control = congestion_control.as_deref();
        let rps = set_up_end(SERVER_DEVICE, SERVER_IP, server_cpu, control)?;
        let mtu = procfs::text(&format!("/sys/class/net/{SERVER_DEVICE}/mtu"));
        Ok::<_, String>((rps, mtu.and_then(|mtu| mtu.parse().ok()), settings()))
    })?;
    let kind = NetKind::Veth;
    let server_ip = IpAddr::V4(SERVER_IP);
    let record = NetRecord { kind, server_ip, server_rps, client_rps, mtu_bytes, settings };
    let server = End::here(server, server_cpu);
    Ok(Network::new(record, server, vec![End::here(client, client_cpu)]))
}

/// Configures one end, in the calling thread's namespace, and returns the steering mask in force.
fn set_up_end(
    device: &str,
    ip: Ipv4Addr,
    cpu: usize,
    congestion_control: Option<&str>,
) -> Result<String, String> {
    if let Some(control) = congestion_control {
        write(&setting_path(CONGESTION_CONTROL), control)?;
    }
    let (setting, most) = TIME_WAIT_MOST;
    write(&setting_path(setting), most)?;
    rtnetlink::set_up("lo")?;
    rtnetlink::add_address(device, ip, PREFIX_LEN)?;
    rtnetlink::set_up(device)?;
    let queues = format!("/sys/class/net/{device}/queues");
    let mask = cpu_mask(cpu);
    let entries = fs::read_dir(&queues).map_err(|error| format!("{queues}: {error}"))?;
    for queue in entries.flatten() {
        let queue = queue.file_name().to_string_lossy().into_owned();
        if queue.starts_with("rx-") {
            write(&format!("{queues}/{queue}/rps_cpus"), &mask)?;
        }
    }
    Ok(procfs::text(&format!("{queues}/rx-0/rps_cpus")).unwrap_or_default())
}

fn write(path: &str, value: &str) -> Result<(), String> {
    fs::write(path, value).map_err(|error| format!("writing {value} to {path}: {error}"))
}

/// A mask with one CPU in it, as sysfs wants it: words of 32 bits in hexadecimal, highest first,
/// separated by commas.
fn cpu_mask(cpu: usize) -> String {
    let highest = format!("{:x}", 1_u32 << (cpu % 32));
    let rest = ",00000000".repeat(cpu / 32);
    highest + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_words_of_32_bits() {
        assert_eq!(cpu_mask(0), "1");
        assert_eq!(cpu_mask(5), "20");
        assert_eq!(cpu_mask(32), "1,00000000");
        assert_eq!(cpu_mask(69), "20,00000000,00000000");
    }
}

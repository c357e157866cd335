//! Two namespaces and a veth pair between them. Either receive steering is pinned per end, or a thread
//! of the kernel that receives.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::{End, NetRecord, Network, SETTINGS, netlink};
use crate::accounting::Device;
use crate::cpus::{CpuList, Cpus};
use crate::experiment::NetKind;
use crate::namespace::{Namespace, Place, handle, sys};
use crate::procfs::{self, setting_path};

// The addresses exist inside the two namespaces only, so they cannot meet a real network.
const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 231, 77, 1);
const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 231, 77, 2);
const PREFIX_LEN: u8 = 30;

/// The setting that decides most about a TCP comparison. A new namespace starts with the machine's
/// default; it is still written to both ends, so that they are certainly equal.
const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";

/// Connections that may be in TIME_WAIT, where `tcp_time_wait` puts them after its end closed first
/// (net/ipv4/tcp_minisocks.c). With any, the speed of connections that come and go would depend on
/// how many of them earlier runs made: after 14,000 in a minute `connect` searches long for a port
/// that is free (20 times slower), until the kernel's bound, 131,072 here, ends TIME_WAIT altogether.
const TIME_WAIT_MOST: (&str, &str) = ("net.ipv4.tcp_max_tw_buckets", "0");

pub(super) fn set_up(kind: NetKind, cpus: &Cpus) -> Result<Network, String> {
    let congestion_control = procfs::text(&setting_path(CONGESTION_CONTROL));
    let [server_device, client_device] = device_names();
    let server = Place::Namespace(Namespace::new()?);
    let client = Place::Namespace(Namespace::new()?);
    let client_namespace = client.run(handle)?;
    let names = [server_device.clone(), client_device.clone()];
    server.run(move || netlink::add_veth(&names[0], &names[1], client_namespace.as_fd()))?;
    let end = |place: Place, device: &str, ip: Ipv4Addr, cpus: &CpuList| {
        let (name, control, own) = (device.to_owned(), congestion_control.clone(), cpus.clone());
        let set_up = move || set_up_end(kind, &name, ip, &own, control.as_deref());
        let (device, rps) = place.run(set_up)?;
        Ok::<_, String>((End { place, cpus: cpus.clone(), device: Some(device) }, rps))
    };
    let (client, client_rps) = end(client, &client_device, CLIENT_IP, &cpus.client)?;
    let (server, server_rps) = end(server, &server_device, SERVER_IP, &cpus.server)?;
    let mtu = format!("class/net/{server_device}/mtu");
    let (mtu, settings) = server.place.run(move || {
        (procfs::text(&format!("{}/{mtu}", sys())), procfs::settings(SETTINGS).collect())
    });
    let polling = [cpus.server.first(), cpus.client.first()];
    let record = NetRecord {
        kind,
        server_ip: IpAddr::V4(SERVER_IP),
        server_rps,
        client_rps,
        napi_cpus: if kind == NetKind::Napi { polling.to_vec() } else { Vec::new() },
        mtu_bytes: mtu.and_then(|mtu| mtu.parse().ok()),
        settings,
    };
    Ok(Network::new(record, server, client))
}

/// Names of the devices of server and client. The threads of the kernel that poll devices are called
/// by the name of the device and are those of all namespaces, so it is of this network alone:
/// the process and a count, in the 9 characters that every kernel shows of it.
fn device_names() -> [String; 2] {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    let (process, count) = (std::process::id() & 0xff_ffff, COUNT.fetch_add(1, Relaxed));
    ["s", "c"].map(|end| format!("{end}{process:06x}{count:02x}"))
}

/// Configures one end, in the calling thread's namespace; returns its device, and the mask of its receive steering.
fn set_up_end(
    kind: NetKind,
    device: &str,
    ip: Ipv4Addr,
    cpus: &CpuList,
    congestion_control: Option<&str>,
) -> Result<(Device, String), String> {
    if let Some(control) = congestion_control {
        write(&setting_path(CONGESTION_CONTROL), control)?;
    }
    let (setting, most) = TIME_WAIT_MOST;
    write(&setting_path(setting), most)?;
    netlink::set_up("lo")?;
    netlink::add_address(device, ip, PREFIX_LEN)?;
    netlink::set_up(device)?;
    let mask = if kind == NetKind::Napi { "0".to_owned() } else { cpu_mask(cpus.all()) };
    steer(device, &mask)?;
    let napi_threads = if kind == NetKind::Napi { poll(device, cpus.first())? } else { Vec::new() };
    let rps = procfs::text(&format!("{}/rx-0/rps_cpus", queues(device))).unwrap_or_default();
    Ok((Device { name: device.to_owned(), napi_threads }, rps))
}

fn queues(device: &str) -> String {
    format!("{}/class/net/{device}/queues", sys())
}

/// Has these CPUs receive what comes for the device in the calling thread's namespace. Which of them gets
/// a connection is decided by its hash, as by the queues of a network card.
fn steer(device: &str, mask: &str) -> Result<(), String> {
    let queues = queues(device);
    let entries = fs::read_dir(&queues).map_err(|error| format!("{queues}: {error}"))?;
    for queue in entries.flatten() {
        let queue = queue.file_name().to_string_lossy().into_owned();
        if queue.starts_with("rx-") {
            write(&format!("{queues}/{queue}/rps_cpus"), mask)?;
        }
    }
    Ok(())
}

/// Has the CPUs of the server's workers, and no others, receive what comes for it.
pub(super) fn steer_to_workers(server: &End, cpus: &CpuList) -> Result<(), String> {
    let Some(device) = server.device.clone() else { return Ok(()) };
    let mask = cpu_mask(cpus.all());
    server.place.run(move || steer(&device.name, &mask))
}

/// Everything that `tso` stands for.
const TSO: [&str; 4] = [
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
];

/// Has threads of the kernel on `cpu` do all receive work of the device, and returns them. A veth
/// hands packets to its NAPI only while it aggregates them (GRO) and its peer sends no large ones
/// (TSO); see `veth_xmit` in drivers/net/veth.c.
fn poll(device: &str, cpu: usize) -> Result<Vec<i32>, String> {
    netlink::switch(device, &["rx-gro"], &TSO)?;
    write(&format!("{}/class/net/{device}/threaded", sys()), "1")?;
    let threads = procfs::kernel_threads(&format!("napi/{device}-"));
    if threads.is_empty() {
        return Err(format!(
            "no thread napi/{device}-N of the kernel can be seen: it takes Linux 5.12, and the \
             machine's own process namespace"
        ));
    }
    for &thread in &threads {
        CpuList::one(cpu)
            .pin(thread)
            .map_err(|errno| format!("pinning thread {thread} to CPU {cpu}: {errno}"))?;
    }
    Ok(threads)
}

fn write(path: &str, value: &str) -> Result<(), String> {
    fs::write(path, value).map_err(|error| format!("writing {value} to {path}: {error}"))
}

/// A mask with these CPUs in it, as sysfs wants it: words of 32 bits in hexadecimal, highest first,
/// separated by commas.
fn cpu_mask(cpus: &[usize]) -> String {
    let highest = cpus.iter().max().map_or(0, |cpu| cpu / 32);
    let word = |index: usize| {
        let of_word = cpus.iter().filter(|cpu| **cpu / 32 == index);
        of_word.fold(0_u32, |word, cpu| word | 1 << (cpu % 32))
    };
    let rest: String = (0..highest).rev().map(|index| format!(",{:08x}", word(index))).collect();
    format!("{:x}{rest}", word(highest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_short_enough_and_differ() {
        let [one, other] = [device_names(), device_names()];
        assert!(one[0].len() == 9 && one[0] != one[1] && one[0] != other[0], "{one:?} {other:?}");
    }

    #[test]
    fn masks_have_words_of_32_bits() {
        for (cpus, mask) in [
            (&[0][..], "1"),
            (&[5], "20"),
            (&[32], "1,00000000"),
            (&[69], "20,00000000,00000000"),
            (&[1, 0, 3], "b"),
            (&[2, 64, 65], "3,00000000,00000004"),
        ] {
            assert_eq!(cpu_mask(cpus), mask);
        }
    }
}

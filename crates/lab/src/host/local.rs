//! What is done on the host where it is asked for: by the lab on its own, by an agent on another.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::protocol::{Hello, PROTOCOL};
use crate::cpus::{CpuList, allowed_cores};
use crate::experiment::Protocol;
use crate::machine::Program;
use crate::machine::{PROGRAM_BYTES_MAX, sha256_of};
use crate::procfs;

/// Ports for the subjects, outside the range that the kernel hands out to clients. Every run takes
/// the next one: a port can stay bound for about 10 ms after its io_uring process was killed.
pub(crate) const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// The settings recorded for each network; the first is also made equal at both ends.
const SETTINGS: &[&str] = &[
    "net.ipv4.tcp_congestion_control",
    "net.core.somaxconn",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.rmem_default",
    "net.core.wmem_default",
    "net.core.netdev_max_backlog",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_autocorking",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_max_tw_buckets",
];

/// How long a port stays open for somebody to try it.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);

/// How long an attempt to connect may take.
const CONNECT_PATIENCE: Duration = Duration::from_millis(1500);

/// The most addresses that a host reports.
const ADDRESSES_MAX: usize = 64;

/// The network device that carries the traffic of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Maximum transmission unit in bytes.
    pub mtu_bytes: Option<u32>,
    /// The kernel's driver, if the device says so.
    pub driver: Option<String>,
    /// `rps_cpus` of each receive queue, as `rx-0: 3`.
    pub receive_steering: Vec<String>,
}

/// Who and where this process is; `binary` is its program.
///
/// # Errors
/// When the program cannot be read or the CPUs cannot be listed.
pub(crate) fn hello(binary: &Path) -> io::Result<Hello> {
    let connection = std::env::var("SSH_CONNECTION").ok();
    let [boot_id, pid_namespace] = kernel_and_processes();
    Ok(Hello {
        protocol: PROTOCOL.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        binary: binary.display().to_string(),
        sha256: sha256_of(binary, PROGRAM_BYTES_MAX)?,
        hostname: procfs::text("/proc/sys/kernel/hostname").unwrap_or_default(),
        pid: std::process::id() as i32,
        boot_id,
        pid_namespace,
        cores: allowed_cores()?,
        // Inherited by what a login starts in another network (`ip netns exec`), where it means
        // nothing: the address that sshd was reached at is one of this host's.
        connection: connection
            .as_deref()
            .and_then(ends_of_connection)
            .filter(|[_, own]| own_addresses().contains(own)),
        addresses: addresses(),
    })
}

fn own_addresses() -> Vec<IpAddr> {
    let devices = getifaddrs().into_iter().flatten();
    devices.filter_map(|device| address_of(&device)).collect()
}

/// Addresses of this host that others may reach it at: those of devices other than loopback, except
/// for link-local ones, which mean nothing without a device.
fn addresses() -> Vec<IpAddr> {
    own_addresses()
        .into_iter()
        .filter(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        })
        .take(ADDRESSES_MAX)
        .collect()
}

fn address_of(device: &InterfaceAddress) -> Option<IpAddr> {
    let address = device.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    let v6 = || address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
    v4.or_else(v6)
}

/// Which boot of which machine this is, and whose process ids are seen.
pub(crate) fn kernel_and_processes() -> [String; 2] {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let boot_id = procfs::text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    [boot_id, namespace.display().to_string()]
}

/// The addresses in `SSH_CONNECTION`: the peer's, and the one of this host that it connected to
/// (ssh(1): client address, client port, server address, server port).
fn ends_of_connection(variable: &str) -> Option<[IpAddr; 2]> {
    let mut words = variable.split_ascii_whitespace();
    let peer = words.next()?.parse().ok()?;
    Some([peer, words.nth(1)?.parse().ok()?])
}

/// Keeps all threads of this process, and those they start, off CPUs while there are others.
/// Processes that are measured are pinned one by one and are not affected.
pub(crate) fn keep_off(cpus: &CpuList) -> io::Result<()> {
    let mut others = sched_getaffinity(Pid::from_raw(0))?;
    cpus.all().iter().try_for_each(|cpu| others.unset(*cpu))?;
    if (0..CpuSet::count()).all(|other| others.is_set(other) != Ok(true)) {
        return Ok(());
    }
    for thread in procfs::numeric_entries("/proc/self/task")? {
        match sched_setaffinity(Pid::from_raw(thread), &others) {
            // It has ended since it was listed.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The device that has this address.
pub(crate) fn interface(ip: IpAddr) -> Option<Interface> {
    let device = getifaddrs().ok()?.find(|device| address_of(device) == Some(ip))?;
    let name = device.interface_name;
    let sys = format!("/sys/class/net/{name}");
    let driver = fs::read_link(format!("{sys}/device/driver")).ok();
    let queues = fs::read_dir(format!("{sys}/queues")).into_iter().flatten().flatten();
    let steering = |queue: fs::DirEntry| {
        let name = queue.file_name().to_string_lossy().into_owned();
        let mask = procfs::text(&format!("{sys}/queues/{name}/rps_cpus"))?;
        name.starts_with("rx-").then(|| format!("{name}: {mask}"))
    };
    let mut receive_steering: Vec<String> = queues.filter_map(steering).collect();
    receive_steering.sort_unstable();
    Some(Interface {
        mtu_bytes: procfs::text(&format!("{sys}/mtu")).and_then(|mtu| mtu.parse().ok()),
        driver: driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
        receive_steering,
        name,
    })
}

/// The recorded settings as they are in the namespace of the calling thread.
pub(crate) fn settings() -> Vec<(String, String)> {
    let value = |name: &str| procfs::text(&setting_path(name));
    let known = SETTINGS.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?)));
    known.collect()
}

pub(crate) fn setting_path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// Opens a port of this address for a moment, so that somebody else can try to connect.
///
/// # Errors
/// Most often that this host does not have the address.
pub(crate) fn listen(ip: IpAddr) -> io::Result<u16> {
    // Among the ports that runs use, so that a firewall treats both the same.
    let listener = PORTS
        .rev()
        .find_map(|port| TcpListener::bind((ip, port)).ok())
        .map_or_else(|| TcpListener::bind((ip, 0)), Ok)?;
    let port = listener.local_addr()?.port();
    listener.set_nonblocking(true)?;
    thread::spawn(move || {
        let deadline = Instant::now() + LISTEN_PATIENCE;
        while listener.accept().is_err() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    });
    Ok(port)
}

/// Makes a connection and closes it.
///
/// # Errors
/// Why not.
pub(crate) fn connect(address: SocketAddr) -> io::Result<()> {
    TcpStream::connect_timeout(&address, CONNECT_PATIENCE).map(drop)
}

/// Whether no interface of this host has the address.
///
/// # Errors
/// Who or what is in the way.
pub(crate) fn can_bind(address: SocketAddr, protocol: Protocol) -> io::Result<()> {
    if protocol.workload().over_tcp {
        TcpListener::bind(address).map(drop)
    } else {
        UdpSocket::bind(address).map(drop)
    }
}

/// Programs with the hashes of their files, where these are found and can be read.
pub(crate) fn hash(programs: Vec<String>) -> Vec<Program> {
    let hashed = |path: String| {
        let found = find_program(Path::new(&path));
        let sha256 = found.and_then(|file| sha256_of(&file, PROGRAM_BYTES_MAX).ok());
        Program { path, sha256, host: None, peer: None }
    };
    programs.into_iter().map(hashed).collect()
}

/// Where a program is, as `execvp` would find it.
fn find_program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return Some(name.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_ends_of_an_ssh_connection_are_read() {
        let ends = ends_of_connection("10.0.0.1 40022 10.0.0.2 22").unwrap();
        assert_eq!(ends.map(|ip| ip.to_string()), ["10.0.0.1", "10.0.0.2"]);
        assert!(ends_of_connection("fe80::1 40022 2001:db8::2 22").is_some());
        // Link-local addresses name a device, which means nothing elsewhere.
        assert!(ends_of_connection("fe80::1%eth0 40022 fe80::2%eth0 22").is_none());
        assert!(ends_of_connection("").is_none());
    }

    #[test]
    fn a_port_can_be_tried_and_addresses_have_devices() {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let port = listen(ip).unwrap();
        connect(SocketAddr::new(ip, port)).unwrap();
        assert_eq!(interface(ip).unwrap().name, "lo");
        // Of a block reserved for documentation (RFC 5737): no host has it.
        let nobody: IpAddr = "192.0.2.1".parse().unwrap();
        assert!(interface(nobody).is_none() && listen(nobody).is_err());
        assert!(can_bind(SocketAddr::new(nobody, 0), Protocol::Udp).is_err());
    }

    #[test]
    fn this_process_says_who_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let hello = hello(file.path()).unwrap();
        assert_eq!(hello.pid, std::process::id() as i32);
        assert!(!hello.cores.is_empty() && !hello.boot_id.is_empty());
    }
}

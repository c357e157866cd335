//! The few requests to the kernel by netlink(7) that a veth pair needs: rtnetlink(7), and features of a device, which
//! `ethtool -K` switches (Documentation/networking/ethtool-netlink.rst). Each acts on the network namespace of the
//! calling thread.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use nix::net::if_::if_nametoindex;

// include/uapi/linux/netlink.h
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const NEW: u16 = 0x200 | 0x400;
const ERROR: u16 = 2;
const NESTED: u16 = 1 << 15;
const HEAD_BYTES: usize = 16;

// include/uapi/linux/rtnetlink.h, if_link.h, if_addr.h and veth.h
const NEW_LINK: u16 = 16;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const LINK_NAMESPACE_FD: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const ADDRESS: u16 = 1;
const LOCAL_ADDRESS: u16 = 2;
const UP: u32 = 1;
const INET: u8 = 2;

// include/uapi/linux/genetlink.h and ethtool_netlink.h
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const FEATURES_SET: u8 = 12;
const FEATURES_HEADER: u16 = 1;
const FEATURES_WANTED: u16 = 3;
const HEADER_DEVICE_NAME: u16 = 2;
const HEADER_FLAGS: u16 = 3;
const OMIT_REPLY: u32 = 2;
const BITSET_BITS: u16 = 3;
const BITSET_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// An attribute: its length, its kind and its value, up to a multiple of four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len() as u16;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, inside: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &inside.concat())
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

/// A device, as `struct ifinfomsg` with attributes; the flags are the ones to set.
fn link(index: u32, flags: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
    let head = [0, index, flags, flags].map(u32::to_ne_bytes).concat();
    [head, attributes.concat()].concat()
}

/// Makes a veth pair: `name` here and `peer_name` in the other namespace.
pub(super) fn add_veth(
    name: &str,
    peer_name: &str,
    peer_namespace: BorrowedFd<'_>,
) -> Result<(), String> {
    let namespace = attribute(LINK_NAMESPACE_FD, &peer_namespace.as_raw_fd().to_ne_bytes());
    let peer = attribute(VETH_PEER, &link(0, 0, &[text(LINK_NAME, peer_name), namespace]));
    let info = nested(LINK_INFO, &[text(INFO_KIND, "veth"), nested(INFO_DATA, &[peer])]);
    let request = link(0, 0, &[text(LINK_NAME, name), info]);
    ask(NETLINK_ROUTE, NEW_LINK, NEW, &request)
        .map(drop)
        .map_err(|why| format!("making a veth pair: {why}"))
}

pub(super) fn add_address(name: &str, ip: Ipv4Addr, prefix_len: u8) -> Result<(), String> {
    let head = [&[INET, prefix_len, 0, 0][..], &index_of(name)?.to_ne_bytes()].concat();
    let ips = [LOCAL_ADDRESS, ADDRESS].map(|kind| attribute(kind, &ip.octets())).concat();
    ask(NETLINK_ROUTE, NEW_ADDRESS, NEW, &[head, ips].concat())
        .map(drop)
        .map_err(|why| format!("giving {name} the address {ip}/{prefix_len}: {why}"))
}

pub(super) fn set_up(name: &str) -> Result<(), String> {
    ask(NETLINK_ROUTE, SET_LINK, 0, &link(index_of(name)?, UP, &[]))
        .map(drop)
        .map_err(|why| format!("switching {name} on: {why}"))
}

fn index_of(name: &str) -> Result<u32, String> {
    if_nametoindex(name).map_err(|errno| format!("looking for {name}: {errno}"))
}

/// Switches features of `device`, each by its name in the kernel (net/ethtool/common.c).
pub(super) fn switch(device: &str, on: &[&str], off: &[&str]) -> Result<(), String> {
    let flags = attribute(HEADER_FLAGS, &OMIT_REPLY.to_ne_bytes());
    let header = nested(FEATURES_HEADER, &[text(HEADER_DEVICE_NAME, device), flags]);
    let bit = |name: &&str, value: &[u8]| {
        attribute(BITSET_BIT | NESTED, &[&text(BIT_NAME, name), value].concat())
    };
    // A flag that is there is set.
    let set = attribute(BIT_VALUE, &[]);
    let bits = on.iter().map(|it| bit(it, &set)).chain(off.iter().map(|it| bit(it, &[])));
    let bits: Vec<Vec<u8>> = bits.collect();
    let wanted = nested(FEATURES_WANTED, &[nested(BITSET_BITS, &bits)]);
    let request = [vec![FEATURES_SET, 1, 0, 0], header, wanted].concat();
    let family = family("ethtool");
    family
        .and_then(|family| ask(NETLINK_GENERIC, family, 0, &request))
        .map(drop)
        .map_err(|why| format!("switching offloads of {device}: {why}"))
}

/// The number of a family of generic netlink.
fn family(name: &str) -> Result<u16, String> {
    let request = [vec![GET_FAMILY, 1, 0, 0], text(FAMILY_NAME, name)].concat();
    let answer = ask(NETLINK_GENERIC, CONTROL, 0, &request)?;
    let mut rest = answer.get(4..).unwrap_or_default();
    while let [a, b, c, d, value @ ..] = rest {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        if let (FAMILY_ID, [low, high, ..]) = (u16::from_ne_bytes([*c, *d]), value) {
            return Ok(u16::from_ne_bytes([*low, *high]));
        }
        rest = rest.get(length.next_multiple_of(4).max(4)..).unwrap_or_default();
    }
    Err(format!("{name} has no number"))
}

/// Sends one request and waits for the kernel's answer to it: nothing if that is an acknowledgement.
fn ask(protocol: isize, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<u8>, String> {
    let text = |error: io::Error| error.to_string();
    let mut socket = Socket::new(protocol).map_err(text)?;
    socket.bind_auto().map_err(text)?;
    socket.connect(&SocketAddr::new(0, 0)).map_err(text)?;
    // `struct nlmsghdr`: length, kind, flags, a sequence number, and the port, which the kernel knows.
    let length = (HEAD_BYTES + body.len()) as u32;
    let head = [kind, REQUEST | ACK | flags].map(u16::to_ne_bytes).concat();
    let (sequence, port) = (1_u32.to_ne_bytes(), [0; 4]);
    let message = [&length.to_ne_bytes()[..], &head, &sequence, &port, body].concat();
    socket.send(&message, 0).map_err(text)?;
    let (answer, _) = socket.recv_from_full().map_err(text)?;
    match answer.get(4..HEAD_BYTES + 4) {
        None => Err("unreadable answer".to_owned()),
        // An acknowledgement is an error message with the code 0.
        Some([a, b, .., w, x, y, z]) if u16::from_ne_bytes([*a, *b]) == ERROR => {
            match i32::from_ne_bytes([*w, *x, *y, *z]) {
                0 => Ok(Vec::new()),
                code => Err(io::Error::from_raw_os_error(-code).to_string()),
            }
        }
        Some(_) => Ok(answer[HEAD_BYTES..].to_vec()),
    }
}

//! The few requests to the kernel's routing socket (rtnetlink(7)) that a veth pair needs. Each
//! acts on the network namespace of the calling thread.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::net::if_::if_nametoindex;

/// Makes a veth pair: `name` here and `peer_name` in the other namespace.
pub(super) fn add_veth(
    name: &str,
    peer_name: &str,
    peer_namespace: BorrowedFd<'_>,
) -> Result<(), String> {
    let mut peer = LinkMessage::default();
    peer.attributes.push(LinkAttribute::IfName(peer_name.to_owned()));
    peer.attributes.push(LinkAttribute::NetNsFd(peer_namespace.as_raw_fd()));
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    link.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    request(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
        .map_err(|why| format!("making a veth pair: {why}"))
}

pub(super) fn add_address(name: &str, ip: Ipv4Addr, prefix_len: u8) -> Result<(), String> {
    let mut address = AddressMessage::default();
    address.header.family = AddressFamily::Inet;
    address.header.prefix_len = prefix_len;
    address.header.index = index_of(name)?;
    address.attributes.push(AddressAttribute::Local(IpAddr::V4(ip)));
    address.attributes.push(AddressAttribute::Address(IpAddr::V4(ip)));
    request(RouteNetlinkMessage::NewAddress(address), NLM_F_CREATE | NLM_F_EXCL)
        .map_err(|why| format!("giving {name} the address {ip}/{prefix_len}: {why}"))
}

pub(super) fn set_up(name: &str) -> Result<(), String> {
    let mut link = LinkMessage::default();
    link.header.index = index_of(name)?;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    request(RouteNetlinkMessage::SetLink(link), 0)
        .map_err(|why| format!("switching {name} on: {why}"))
}

fn index_of(name: &str) -> Result<u32, String> {
    if_nametoindex(name).map_err(|errno| format!("looking for {name}: {errno}"))
}

fn request(message: RouteNetlinkMessage, flags: u16) -> Result<(), String> {
    ask(NETLINK_ROUTE, message, flags).map(drop)
}

/// Sends one request and waits for the kernel's answer to it: nothing if that is an acknowledgement.
pub(super) fn ask<T>(protocol: isize, message: T, flags: u16) -> Result<Option<T>, String>
where
    T: NetlinkSerializable + NetlinkDeserializable,
    NetlinkPayload<T>: From<T>,
{
    let text = |error: std::io::Error| error.to_string();
    let mut socket = Socket::new(protocol).map_err(text)?;
    socket.bind_auto().map_err(text)?;
    socket.connect(&SocketAddr::new(0, 0)).map_err(text)?;

    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    message.header.sequence_number = 1;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map_err(text)?;

    let (answer, _) = socket.recv_from_full().map_err(text)?;
    let answer = NetlinkMessage::<T>::deserialize(&answer)
        .map_err(|error| format!("unreadable answer: {error}"))?;
    match answer.payload {
        // An acknowledgement is an error message with the code 0.
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io().to_string()),
        NetlinkPayload::InnerMessage(answer) => Ok(Some(answer)),
        _ => Ok(None),
    }
}

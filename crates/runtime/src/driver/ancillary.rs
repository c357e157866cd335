//! Socket addresses and ancillary data (cmsg(3)) as bytes: safe code on slices.
//!
//! The kernel's layout on 64-bit machines: a header of 16 bytes (length with the header, level,
//! type), the data, then padding to the next multiple of 8.

use super::udp::UdpSetup;
use crate::datagram::{Datagram, Received};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of the longest socket address, `sockaddr_in6`.
pub(crate) const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();
const NAME_BYTES_V4: usize = size_of::<libc::sockaddr_in>();

/// Reads a socket address; `None` if it is neither IPv4 nor IPv6 or is cut short.
pub(crate) fn decode_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(array(bytes, 0)?));
    let port = u16::from_be_bytes(array(bytes, 2)?);
    match family {
        libc::AF_INET if bytes.len() >= NAME_BYTES_V4 => {
            Some(SocketAddr::from((array::<4>(bytes, 4)?, port)))
        }
        libc::AF_INET6 => {
            let flowinfo = u32::from_ne_bytes(array(bytes, 4)?);
            let ip = Ipv6Addr::from(array::<16>(bytes, 8)?);
            let scope_id = u32::from_ne_bytes(array(bytes, 24)?);
            Some(SocketAddrV6::new(ip, port, flowinfo, scope_id).into())
        }
        _ => None,
    }
}

const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

const fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(size_of::<usize>())
}

/// The space that data of this length takes: CMSG_SPACE.
const fn space(data_bytes: usize) -> usize {
    aligned(HEADER_BYTES) + aligned(data_bytes)
}

const PKTINFO_V6_BYTES: usize = size_of::<libc::in6_pktinfo>();

/// Ancillary bytes of a receive with all that a socket can ask for: the local address, on IPv6, the
/// length of segments and the traffic class.
pub(crate) const RECV_CONTROL_BYTES: usize = space(PKTINFO_V6_BYTES) + space(4) + space(4);
/// The same of a send.
pub(crate) const SEND_CONTROL_BYTES: usize = space(PKTINFO_V6_BYTES) + space(2) + space(4);

/// Reads ancillary data into what a datagram says of itself. Unknown messages and malformed ends are skipped.
pub(crate) fn decode_control(control: &[u8], into: &mut Received) {
    for (level, kind, data) in messages(control) {
        match (level, kind) {
            // ipi_spec_dst, not ipi_addr: the same for unicast, and for broadcast and multicast
            // the address that a reply may come from (ip(7)).
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                into.to = array::<4>(data, 4).map(|octets| Ipv4Addr::from(octets).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                into.to = array::<16>(data, 0).map(|octets| Ipv6Addr::from(octets).into());
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let bytes = array(data, 0).map(libc::c_int::from_ne_bytes);
                into.segment_bytes = bytes.and_then(|bytes| u16::try_from(bytes).ok());
            }
            // One byte, unlike everywhere else.
            (libc::IPPROTO_IP, libc::IP_TOS) => into.traffic_class = data.first().copied(),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let class = array(data, 0).map(libc::c_int::from_ne_bytes);
                into.traffic_class = class.map(|class| class as u8);
            }
            _ => {}
        }
    }
}

/// Level, type and data of each message, up to the first that is malformed.
fn messages(mut control: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from_ne_bytes(array(control, 0)?);
        let level = i32::from_ne_bytes(array(control, 8)?);
        let kind = i32::from_ne_bytes(array(control, 12)?);
        let data = control.get(HEADER_BYTES..length)?;
        control = control.get(aligned(length)..).unwrap_or(&[]);
        Some((level, kind, data))
    })
}

/// Writes the ancillary data of a datagram to be sent and returns its length.
pub(crate) fn encode_control(
    datagram: &Datagram,
    setup: &UdpSetup,
    into: &mut [u8; SEND_CONTROL_BYTES],
) -> usize {
    let mut at = 0;
    let mut put = |level: i32, kind: i32, data: &[u8]| {
        let message = &mut into[at..at + space(data.len())];
        message.fill(0);
        message[..8].copy_from_slice(&(HEADER_BYTES + data.len()).to_ne_bytes());
        message[8..12].copy_from_slice(&level.to_ne_bytes());
        message[12..16].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
        at += message.len();
    };
    match datagram.from {
        Some(IpAddr::V4(ip)) => {
            let [a, b, c, d] = ip.octets();
            let pktinfo = [0, 0, 0, 0, a, b, c, d, 0, 0, 0, 0];
            put(libc::IPPROTO_IP, libc::IP_PKTINFO, &pktinfo);
        }
        Some(IpAddr::V6(ip)) => {
            let mut pktinfo = [0; PKTINFO_V6_BYTES];
            pktinfo[..16].copy_from_slice(&ip.octets());
            put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &pktinfo);
        }
        None => {}
    }
    if let Some(ecn) = datagram.ecn {
        let class = libc::c_int::from(setup.options.dscp << 2 | ecn as u8).to_ne_bytes();
        match setup.local.is_ipv6() {
            true => put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class),
            false => put(libc::IPPROTO_IP, libc::IP_TOS, &class),
        }
    }
    if let Some(segment_bytes) = datagram.segment_bytes {
        put(libc::SOL_UDP, libc::UDP_SEGMENT, &segment_bytes.to_ne_bytes());
    }
    at
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::RecvBuf;
    use crate::sys::socket::SockAddr;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_address_is_read_as_the_c_library_writes_it(
            ip: [u8; 16], port: u16, flow: u32, scope: u32, ipv6: bool
        ) {
            let address = match ipv6 {
                true => SocketAddrV6::new(ip.into(), port, flow, scope).into(),
                false => SocketAddr::from(([ip[0], ip[1], ip[2], ip[3]], port)),
            };
            let written = SockAddr::from(address);
            // SAFETY: a live socket address of this length.
            let name = unsafe {
                std::slice::from_raw_parts(written.as_ptr().cast::<u8>(), written.len() as usize)
            };
            prop_assert!(name.len() <= NAME_BYTES);
            prop_assert_eq!(decode_address(name), Some(address));
            (0..name.len()).for_each(|short| assert_eq!(decode_address(&name[..short]), None));
        }

        /// No content of a control buffer causes a panic or a read beyond its end.
        #[test]
        fn any_bytes_are_survived(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            length in 0usize..64, level in 0i32..60, kind in 0i32..110,
        ) {
            let (to, segment_bytes, traffic_class, truncated) = (None, None, None, false);
            let (data, from) = (RecvBuf::empty(), SocketAddr::from(([127, 0, 0, 1], 9)));
            let mut received = Received { data, from, to, segment_bytes, traffic_class, truncated };
            decode_control(&bytes, &mut received);
            decode_address(&bytes);
            let mut plausible = bytes;
            plausible.splice(..0, level.to_ne_bytes().into_iter().chain(kind.to_ne_bytes()));
            plausible.splice(..0, length.to_ne_bytes());
            decode_control(&plausible, &mut received);
        }
    }
}

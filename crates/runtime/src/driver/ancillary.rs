//! Socket addresses and ancillary data (cmsg(3)) as bytes: safe code on slices.
//!
//! The kernel's layout on 64-bit machines: a header of 16 bytes (length with the header, level,
//! type), the data, then padding to the next multiple of 8.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of the longest socket address, `sockaddr_in6`.
pub(crate) const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();
const NAME_BYTES_V4: usize = size_of::<libc::sockaddr_in>();

/// Writes `address` as `sockaddr_in` or `sockaddr_in6` and returns its length.
pub(crate) fn encode_address(address: &SocketAddr, into: &mut [u8; NAME_BYTES]) -> usize {
    into[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            into[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            into[4..8].copy_from_slice(&v4.ip().octets());
            into[8..NAME_BYTES_V4].fill(0);
            NAME_BYTES_V4
        }
        SocketAddr::V6(v6) => {
            into[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            into[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
            into[8..24].copy_from_slice(&v6.ip().octets());
            into[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            NAME_BYTES
        }
    }
}

/// Reads a socket address; `None` if it is neither IPv4 nor IPv6 or is cut short.
pub(crate) fn decode_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(array(bytes, 0)?));
    let port = u16::from_be_bytes(array(bytes, 2)?);
    match family {
        libc::AF_INET if bytes.len() >= NAME_BYTES_V4 => {
            let ip = Ipv4Addr::from(array::<4>(bytes, 4)?);
            Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
        }
        libc::AF_INET6 => {
            let flowinfo = u32::from_ne_bytes(array(bytes, 4)?);
            let ip = Ipv6Addr::from(array::<16>(bytes, 8)?);
            let scope_id = u32::from_ne_bytes(array(bytes, 24)?);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, flowinfo, scope_id)))
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

const PKTINFO_V4_BYTES: usize = size_of::<libc::in_pktinfo>();
const PKTINFO_V6_BYTES: usize = size_of::<libc::in6_pktinfo>();

/// The ancillary data that a socket wants for each datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) pktinfo: bool,
    pub(crate) gro: bool,
    pub(crate) traffic_class: bool,
}

/// Ancillary bytes of a receive with all of it, on IPv6.
pub(crate) const RECV_CONTROL_BYTES_MAX: usize = space(PKTINFO_V6_BYTES) + space(4) + space(4);

impl Wanted {
    /// The space that the ancillary data of one receive takes.
    pub(crate) fn control_bytes(self, ipv6: bool) -> usize {
        let pktinfo = if ipv6 { PKTINFO_V6_BYTES } else { PKTINFO_V4_BYTES };
        [
            (self.pktinfo, pktinfo),
            (self.gro, size_of::<libc::c_int>()),
            (self.traffic_class, size_of::<libc::c_int>()),
        ]
        .into_iter()
        .map(|(wanted, bytes)| if wanted { space(bytes) } else { 0 })
        .sum()
    }
}

/// The ancillary data of a datagram, received or to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Control {
    /// The address of this end.
    pub(crate) local: Option<IpAddr>,
    pub(crate) segment_bytes: Option<u16>,
    pub(crate) traffic_class: Option<u8>,
}

/// Reads ancillary data. Unknown messages and malformed ends are skipped.
pub(crate) fn decode_control(control: &[u8]) -> Control {
    let mut told = Control::default();
    for (level, kind, data) in messages(control) {
        match (level, kind) {
            // ipi_spec_dst, not ipi_addr: the same for unicast, and for broadcast and multicast
            // the address that a reply may come from (ip(7)).
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                told.local = array::<4>(data, 4).map(|octets| Ipv4Addr::from(octets).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                told.local = array::<16>(data, 0).map(|octets| Ipv6Addr::from(octets).into());
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let bytes = array(data, 0).map(libc::c_int::from_ne_bytes);
                told.segment_bytes = bytes.and_then(|bytes| u16::try_from(bytes).ok());
            }
            // One byte, unlike everywhere else.
            (libc::IPPROTO_IP, libc::IP_TOS) => told.traffic_class = data.first().copied(),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                told.traffic_class =
                    array(data, 0).map(|class| libc::c_int::from_ne_bytes(class) as u8);
            }
            _ => {}
        }
    }
    told
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

/// Ancillary bytes of a send with all of it, on IPv6.
pub(crate) const SEND_CONTROL_BYTES_MAX: usize = space(PKTINFO_V6_BYTES) + space(2) + space(4);

impl Control {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Control::default()
    }

    /// Writes the messages for a socket of this family and returns their length.
    pub(crate) fn encode(&self, ipv6: bool, into: &mut [u8; SEND_CONTROL_BYTES_MAX]) -> usize {
        let mut writer = Writer { into, at: 0 };
        match self.local {
            Some(IpAddr::V4(ip)) => {
                let mut pktinfo = [0; PKTINFO_V4_BYTES];
                pktinfo[4..8].copy_from_slice(&ip.octets());
                writer.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &pktinfo);
            }
            Some(IpAddr::V6(ip)) => {
                let mut pktinfo = [0; PKTINFO_V6_BYTES];
                pktinfo[..16].copy_from_slice(&ip.octets());
                writer.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &pktinfo);
            }
            None => {}
        }
        if let Some(class) = self.traffic_class {
            let class = libc::c_int::from(class).to_ne_bytes();
            match ipv6 {
                true => writer.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class),
                false => writer.put(libc::IPPROTO_IP, libc::IP_TOS, &class),
            }
        }
        if let Some(segment_bytes) = self.segment_bytes {
            writer.put(libc::SOL_UDP, libc::UDP_SEGMENT, &segment_bytes.to_ne_bytes());
        }
        writer.at
    }
}

struct Writer<'a> {
    into: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let message = &mut self.into[self.at..self.at + space(data.len())];
        message.fill(0);
        message[..8].copy_from_slice(&(HEADER_BYTES + data.len()).to_ne_bytes());
        message[8..12].copy_from_slice(&level.to_ne_bytes());
        message[12..16].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
        self.at += message.len();
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ancillary data as the kernel writes it for these facts, on a socket of this family.
    fn written_by_the_kernel(told: &Control, ipv6: bool) -> Vec<u8> {
        let mut bytes = vec![0; RECV_CONTROL_BYTES_MAX];
        let mut writer = Writer { into: &mut bytes, at: 0 };
        match told.local {
            Some(IpAddr::V4(ip)) => {
                let pktinfo = [[1, 0, 0, 0], ip.octets(), [224, 0, 0, 1]].concat();
                writer.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &pktinfo);
            }
            Some(IpAddr::V6(ip)) => {
                let pktinfo = [ip.octets().as_slice(), &[1, 0, 0, 0]].concat();
                writer.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &pktinfo);
            }
            None => {}
        }
        match told.traffic_class {
            Some(class) if ipv6 => {
                let class = i32::from(class).to_ne_bytes();
                writer.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class);
            }
            Some(class) => writer.put(libc::IPPROTO_IP, libc::IP_TOS, &[class]),
            None => {}
        }
        if let Some(segment) = told.segment_bytes {
            writer.put(libc::SOL_UDP, libc::UDP_GRO, &i32::from(segment).to_ne_bytes());
        }
        let length = writer.at;
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn room_is_what_the_c_library_says() {
        for bytes in [1, 2, 4, 12, 16, 20] {
            // SAFETY: CMSG_SPACE only computes.
            assert_eq!(space(bytes), unsafe { libc::CMSG_SPACE(bytes as u32) } as usize);
        }
        let all = Wanted { pktinfo: true, gro: true, traffic_class: true };
        assert_eq!(all.control_bytes(true), RECV_CONTROL_BYTES_MAX);
        assert_eq!(Wanted::default().control_bytes(true), 0);
    }

    proptest! {
        #[test]
        fn an_address_survives_the_round_trip(
            ip: [u8; 16], port: u16, flow: u32, scope: u32, ipv6: bool, noise: [u8; NAME_BYTES]
        ) {
            let address = match ipv6 {
                true => SocketAddrV6::new(ip.into(), port, flow, scope).into(),
                false => SocketAddr::from(([ip[0], ip[1], ip[2], ip[3]], port)),
            };
            let mut name = noise;
            let length = encode_address(&address, &mut name);
            prop_assert_eq!(decode_address(&name[..length]), Some(address));
            // As the standard library lays it out.
            let reference = socket2::SockAddr::from(address);
            prop_assert_eq!(reference.len() as usize, length);
            prop_assert_eq!(reference.as_socket(), Some(address));
            (0..length).for_each(|short| assert_eq!(decode_address(&name[..short]), None));
        }

        /// What the kernel writes is understood, and so is what a send tells, but for the segments.
        #[test]
        fn ancillary_data_survives_the_round_trip(
            v4: [u8; 4], v6: [u8; 16], ipv6: bool, present: [bool; 3], segment: u16, class: u8,
            noise in proptest::collection::vec(any::<u8>(), SEND_CONTROL_BYTES_MAX),
        ) {
            let ip = if ipv6 { IpAddr::from(v6) } else { IpAddr::from(v4) };
            let control = Control {
                local: present[0].then_some(ip),
                segment_bytes: present[1].then_some(segment),
                traffic_class: present[2].then_some(class),
            };
            prop_assert_eq!(decode_control(&written_by_the_kernel(&control, ipv6)), control);
            let mut bytes: [u8; SEND_CONTROL_BYTES_MAX] = noise.try_into().unwrap();
            let length = control.encode(ipv6, &mut bytes);
            prop_assert_eq!(length == 0, control.is_empty());
            let read: Vec<_> = messages(&bytes[..length]).collect();
            prop_assert_eq!(read.len(), present.iter().filter(|present| **present).count());
            let told = decode_control(&bytes[..length]);
            prop_assert_eq!(told.local, control.local);
            // What is sent as an int of the host's order is received as one byte: its first.
            if cfg!(target_endian = "little") {
                prop_assert_eq!(told.traffic_class, control.traffic_class);
            }
            if let Some(bytes) = control.segment_bytes {
                let expected = (libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes()[..]);
                prop_assert_eq!(read.last(), Some(&expected));
            }
        }

        /// No content of a control buffer causes a panic or a read beyond its end.
        #[test]
        fn any_bytes_are_survived(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            length in 0usize..64, level in 0i32..60, kind in 0i32..110,
        ) {
            decode_control(&bytes);
            decode_address(&bytes);
            let mut plausible = bytes;
            plausible.splice(..0, level.to_ne_bytes().into_iter().chain(kind.to_ne_bytes()));
            plausible.splice(..0, length.to_ne_bytes());
            decode_control(&plausible);
        }
    }
}

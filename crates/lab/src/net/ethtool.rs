//! Switching features of a device, as `ethtool -K` does, over generic netlink
//! (Documentation/networking/ethtool-netlink.rst). It acts on the network namespace of the calling
//! thread.

use netlink_packet_core::{DecodeError, DefaultNla, Emitable, NLA_F_NESTED, ParseableParametrized};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::rtnetlink::ask;

// include/uapi/linux/ethtool_netlink.h
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

pub(super) const GRO: [&str; 1] = ["rx-gro"];

/// Everything that `tso` stands for.
pub(super) const TSO: [&str; 4] = [
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
];

/// Switches features of `device`, each by its name in the kernel (net/ethtool/common.c).
pub(super) fn switch(device: &str, on: &[&str], off: &[&str]) -> Result<(), String> {
    let why = |why: String| format!("switching offloads of {device}: {why}");
    let message = FeaturesSet(vec![
        nested(
            FEATURES_HEADER,
            &[
                DefaultNla::new(HEADER_DEVICE_NAME, text(device)),
                DefaultNla::new(HEADER_FLAGS, OMIT_REPLY.to_ne_bytes().to_vec()),
            ],
        ),
        wanted(on, off),
    ]);
    let mut message = GenlMessage::from_payload(message);
    message.set_resolved_family_id(family().map_err(why)?);
    ask(NETLINK_GENERIC, message, 0).map(drop).map_err(why)
}

fn wanted(on: &[&str], off: &[&str]) -> DefaultNla {
    let bit = |name: &str, value: &[DefaultNla]| {
        let name = [DefaultNla::new(BIT_NAME, text(name))];
        nested(BITSET_BIT, &[&name[..], value].concat())
    };
    // A flag that is there is set.
    let set = [DefaultNla::new(BIT_VALUE, Vec::new())];
    let bits = on.iter().map(|name| bit(name, &set)).chain(off.iter().map(|name| bit(name, &[])));
    let bits: Vec<DefaultNla> = bits.collect();
    nested(FEATURES_WANTED, &[nested(BITSET_BITS, &bits)])
}

fn family() -> Result<u16, String> {
    let nlas = vec![GenlCtrlAttrs::FamilyName(FeaturesSet::family_name().to_owned())];
    let question = GenlMessage::from_payload(GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas });
    let answer = ask(NETLINK_GENERIC, question, 0)?.ok_or("no answer")?;
    let id = |nla: &GenlCtrlAttrs| match nla {
        GenlCtrlAttrs::FamilyId(id) => Some(*id),
        _ => None,
    };
    answer.payload.nlas.iter().find_map(id).ok_or_else(|| "ethtool has no number".to_owned())
}

fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

fn nested(kind: u16, inside: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; inside.buffer_len()];
    inside.emit(&mut value);
    DefaultNla::new(kind | NLA_F_NESTED, value)
}

/// The request; the kernel acknowledges it and answers nothing else.
#[derive(Debug, Clone)]
struct FeaturesSet(Vec<DefaultNla>);

impl GenlFamily for FeaturesSet {
    fn family_name() -> &'static str {
        "ethtool"
    }

    fn command(&self) -> u8 {
        FEATURES_SET
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for FeaturesSet {
    fn buffer_len(&self) -> usize {
        self.0.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.0.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for FeaturesSet {
    fn parse_with_param(_: &[u8], _: GenlHeader) -> Result<Self, DecodeError> {
        Err(DecodeError::from("an answer that was not asked for"))
    }
}

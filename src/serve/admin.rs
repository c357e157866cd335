//! `--admin`: the address of a server for its operator.

use super::operate::AtEnd;
use super::problems::with_remedy;
use super::report::Subject;
use crate::values;
use clap::Args;
use serde::{Deserialize, Deserializer};
use std::io;
use std::net::SocketAddr;
use twinring_services::http::{Admin, Observer, text};

#[derive(Clone, Copy, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct AdminArgs {
    /// Address that answers `/metrics`, `/healthz` and `/readyz`, on its own thread. Do not expose it.
    #[arg(long, value_name = "ADDR", help_heading = "Operation", value_parser = values::listen)]
    #[serde(deserialize_with = "address")]
    pub(super) admin: Option<SocketAddr>,
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    text::read(from, values::listen).map(Some)
}

impl AdminArgs {
    pub(super) fn bind(&self) -> Result<Option<Admin>, String> {
        let admin = self.admin.map(Admin::bind).transpose();
        admin.map_err(|error| with_remedy(&error, "ss -ltnp"))
    }
}

pub(super) fn with_details(subject: Subject, admin: Option<&Admin>) -> Subject {
    let Some(address) = admin.map(Admin::address) else { return subject };
    subject.with_details("admin", &address, format!("admin on {address}"))
}

/// Starts the admin service; the result ends it.
pub(super) fn start(admin: Option<Admin>, observer: Observer) -> io::Result<Option<AtEnd>> {
    let Some(admin) = admin else { return Ok(None) };
    let end = admin.start(observer)?;
    Ok(Some(Box::new(move |_| end())))
}

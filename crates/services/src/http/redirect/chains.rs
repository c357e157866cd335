//! Finds chains of redirects that do not end.
//!
//! A location is followed if it is a path, or names a host of the configuration without a port: only
//! these are known to be answered here. So a loop over another server is not found.

use super::super::hosts::Sites;
use super::{Redirects, encode};
use crate::http::path::clean;
use std::borrow::Cow;

/// Redirects in a row; browsers give up after twenty.
const CHAIN_MAX: usize = 20;

/// Where a client is: a site, reached in this way.
#[derive(Clone, Debug)]
struct Place {
    site: usize,
    /// Empty if it is not known.
    host: String,
    is_secure: bool,
    path: Vec<u8>,
}

/// A description of the first chain of redirects that does not end.
pub(in super::super) fn first_loop(sites: &Sites) -> Option<String> {
    let mut starts = Vec::new();
    for (site, host) in sites.places() {
        let redirects = &sites.site(site).redirects;
        for rule in redirects.rules.values() {
            // Beneath a directory, the directory itself and one path stand for all.
            let samples: &[&[u8]] = if rule.from.is_prefix() { &[b"", b"x"] } else { &[b""] };
            for rest in samples {
                let path = [rule.from.path(), *rest].concat();
                // Without TLS, https comes first, and the chain goes on from there.
                for is_secure in [false, true] {
                    starts.push(Place { site, host: host.clone(), is_secure, path: path.clone() });
                }
            }
        }
    }
    let mut loops: Vec<String> = starts.into_iter().filter_map(|at| endless(sites, at)).collect();
    // The rules have no order.
    loops.sort();
    loops.into_iter().next()
}

/// The text of a chain from this place, if it has no end.
fn endless(sites: &Sites, mut place: Place) -> Option<String> {
    let mut text = String::from_utf8_lossy(&place.path).into_owned();
    for step in 0..CHAIN_MAX {
        let redirects = &sites.site(place.site).redirects;
        let (location, is_upgrade) = next(redirects, &place)?;
        // The first steps show the loop.
        if step < 3 {
            text.push_str(" -> ");
            text.push_str(&location);
        }
        place = follow(sites, place, &location, is_upgrade)?;
    }
    Some(format!("redirects without an end: {text} ..."))
}

/// The next location, and whether it only changes http to https.
fn next(redirects: &Redirects, place: &Place) -> Option<(String, bool)> {
    if let (Some(address), false) = (&redirects.to_https, place.is_secure) {
        let origin = address.origin(place.host.as_bytes())?;
        return Some((format!("{origin}{}", encode(&place.path)), true));
    }
    let rule = redirects.rules.find(&place.path)?;
    Some((rule.location(&place.path, None), false))
}

/// The place that a location leads to, if it is served here.
fn follow(sites: &Sites, from: Place, location: &str, is_upgrade: bool) -> Option<Place> {
    let path_in = |url: &str| {
        let path = url.split('?').next().unwrap_or(url);
        clean(path.as_bytes()).map(Cow::into_owned).ok()
    };
    let Some((scheme, rest)) = location.split_once("://") else {
        return Some(Place { path: path_in(location)?, ..from });
    };
    let (authority, path) = rest.split_at(rest.find('/')?);
    let has_port = authority.rsplit(']').next()?.contains(':');
    if has_port && !is_upgrade {
        return None;
    }
    let site = sites.of_named_host(authority.as_bytes());
    let host = authority.to_owned();
    Some(Place { site: site?, host, is_secure: scheme == "https", path: path_in(path)? })
}

#[cfg(test)]
mod tests {
    use super::super::{HttpsAddress, RedirectRule};
    use super::*;
    use crate::http::hosts::{HostName, Site};

    /// Sites, each of a host (none for the default) with rules and an address for https.
    fn found(all: &[(&str, &[&str], Option<&str>)]) -> Option<String> {
        let mut sites = Sites::default();
        for (host, rules, https) in all {
            let rules: Vec<RedirectRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            let https = https.map(|text| text.parse::<HttpsAddress>().unwrap());
            let redirects = Redirects::new(&rules, https).unwrap();
            let site = Site { redirects, ..Site::without_files() };
            match *host {
                "" => sites = Sites::new(Some(site)),
                host => sites.add(&[host.parse::<HostName>().unwrap()], site).unwrap(),
            }
        }
        first_loop(&sites)
    }

    #[test]
    fn chains_without_an_end_are_found() {
        for all in [
            &[("", &["/a=/a"][..], None)][..],
            &[("", &["/a=/b", "/b=/a"], None)],
            &[("", &["/a/*=/a/b/*"], None)],
            &[("", &["/a/*=/b/*", "/b/y=/a/y"], None)],
            &[("a.org", &["/*=https://a.org/*"], None)],
            &[("*.a.org", &["/*=https://x.a.org/*"], None)],
            &[("a.org", &["/*=https://b.org/*"], None), ("b.org", &["/x=https://a.org/x"], None)],
            &[("a.org", &["/*=http://a.org/*"], Some("443"))],
            &[("a.org", &["/*=302:/x"], Some("8443"))],
        ] {
            let text = found(all).unwrap_or_else(|| panic!("not found in {all:?}"));
            assert!(text.starts_with("redirects without an end: /"), "{text}");
        }
    }

    #[test]
    fn chains_that_end_are_none() {
        for all in [
            &[("", &["/a=/b", "/b=/c", "/d/*=/b"][..], None)][..],
            &[("", &["/a/*=/*"], None)],
            &[("", &["/a/*=/b/*"], Some("443"))],
            &[("", &["/*=https://a.org/*"], None), ("a.org", &["/a=/b"], Some("443"))],
            // Not of this configuration: it may be another server.
            &[("", &["/*=https://c.org/*"], None)],
            &[("a.org", &["/*=https://b.a.org/*"], None)],
            &[("a.org", &["/x/*=https://a.org:8443/x/*"], None)],
        ] {
            assert_eq!(found(all), None);
        }
    }
}

//! Kernels on which the io_uring engine does not run because of a known fault. Only here are
//! versions compared: features are probed, but a fault that shows under load cannot be. Faults that
//! need no check at start are in docs/kernels.md.

use super::environment::Environment;
use super::layers::{Layer, Refusal};

/// Major, minor and patch of a kernel release.
type Release = (u16, u16, u16);

/// From the first release (included) to the second (not included); what happens, and where that was
/// reported.
const FAULTS: &[(Release, Release, &str)] = &[
    (
        (6, 1, 115),
        (6, 1, 116),
        "a receiver blocks in io_uring_enter and cannot be killed (liburing#1289)",
    ),
    ((6, 6, 1), (6, 6, 18), ACCEPT),
    ((6, 7, 0), (6, 7, 6), ACCEPT),
];

const ACCEPT: &str = "multishot accept reports a descriptor that is not open (liburing#1062)";

/// Why io_uring is not used on this kernel, although it is there.
pub(super) fn of_kernel(env: &Environment) -> Option<Refusal> {
    let running = release_of(env)?;
    let (_, fixed, what) =
        FAULTS.iter().find(|(from, until, _)| (*from..*until).contains(&running))?;
    let what = format!("the kernel ({}) has a fault: {what}", env.kernel);
    let fix = format!("run Linux {}.{}.{} or newer", fixed.0, fixed.1, fixed.2);
    Some(Refusal::new(Layer::Kernel, what, fix))
}

/// The stable release that a kernel was built from. Debian and Ubuntu number their own builds in
/// `uname -r` (6.1.0-27, 6.8.0-31) and name the stable release elsewhere.
fn release_of(env: &Environment) -> Option<Release> {
    let debian = env.kernel_version.split_once("Debian ").map(|(_, rest)| rest);
    let ubuntu = env.kernel_signature.as_deref().and_then(|text| text.split(' ').nth(2));
    [debian, ubuntu, Some(&env.kernel)].into_iter().flatten().find_map(parse)
}

/// Reads `6.1.115` and `6.18.44-vendor`.
fn parse(text: &str) -> Option<Release> {
    let mut numbers = text.trim().split(['-', '+', '_']).next()?.split('.').map(str::parse::<u16>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((major, minor, numbers.next().and_then(Result::ok).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_match_their_faults_only() {
        let mut env = Environment::read();
        env.kernel_signature = None;
        for (kernel, version, faulty) in [
            ("6.1.115-rt", "", true),
            ("6.1.116", "", false),
            ("6.1.0-27-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.115-1 (2024-11-01)", true),
            ("6.6.9", "", true),
            ("6.6.0", "", false),
            ("6.7.6", "", false),
            ("6.18.44", "", false),
            ("custom", "", false),
        ] {
            env.kernel = kernel.to_owned();
            env.kernel_version = version.to_owned();
            assert_eq!(of_kernel(&env).is_some(), faulty, "{kernel} {version}");
        }
        env.kernel = "6.8.0-31-generic".to_owned();
        env.kernel_signature = Some("Ubuntu 6.6.2-31.31-generic 6.6.2".to_owned());
        let refusal = of_kernel(&env).expect("named by its signature");
        assert!(refusal.fix.contains("6.6.18") && refusal.allows_fallback(), "{refusal}");
    }
}

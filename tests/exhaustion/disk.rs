//! A full disk: the lab ends with a partial bundle, and leaves no process running.

use crate::support::run;
use nix::sched::{CloneFlags, unshare};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![a_full_disk_leaves_a_partial_bundle_that_verifies];

/// Runs `test` with a private file system of `kib` KiB, which is removed afterwards.
fn with_small_disk(kib: u32, test: impl FnOnce(&Path) + Send) {
    testing::as_root_of_a_namespace(|| {
        // The namespace is of this thread, and of the processes that it starts.
        let with_it = || {
            use nix::mount::{MntFlags, MsFlags, mount, umount2};
            let directory = tempfile::tempdir().expect("a directory for temporary files");
            let size = format!("size={kib}k");
            let mounted = unshare(CloneFlags::CLONE_NEWNS)
                .and_then(|()| {
                    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
                })
                .and_then(|()| {
                    let (flags, size) = (MsFlags::empty(), Some(size.as_str()));
                    mount(Some("tmpfs"), directory.path(), Some("tmpfs"), flags, size)
                });
            if let Err(error) = mounted {
                testing::needs("mounts", format_args!("no file system of a fixed size: {error}"));
            }
            test(directory.path());
            umount2(directory.path(), MntFlags::MNT_DETACH).expect("it is mounted");
        };
        std::thread::scope(|scope| scope.spawn(with_it).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Processes other than this one that share the file systems of this thread.
fn processes_here() -> Vec<String> {
    let namespace = |pid: &Path| fs::read_link(pid.join("ns/mnt")).ok();
    let own = namespace(Path::new("/proc/thread-self"));
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let is_process = |name: OsString| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    let all = all.filter(|entry| is_process(entry.file_name())).map(|entry| entry.path());
    let here = all.filter(|pid| own.is_some() && namespace(pid) == own);
    here.filter_map(|pid| fs::read_to_string(pid.join("cmdline")).ok()).collect()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn a_full_disk_leaves_a_partial_bundle_that_verifies() {
    // Space for nothing; for the beginning; for some runs.
    for kib in [4, 32, 64] {
        with_small_disk(kib, |disk| {
            let out = disk.to_str().expect("UTF-8");
            let quick =
                ["lab", "run", "quick", "--protocol", "tcp", "--set", "bytes=128", "--no-prices"];
            // Many cells: on a busy machine an audit may end one at its first pair.
            let cells = ["--set", "connections=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"];
            let short = ["--pairs", "40", "--spares", "0", "--window", "0.05", "--warmup", "0.05"];
            let (code, _, told) = run(&[&quick[..], &cells, &short, &["--out", out]].concat());
            assert_eq!(code, Some(1), "{kib} KiB: {told}");
            let reason = told.lines().last().expect("a reason");
            assert!(reason.contains("No space left") && reason.contains("free some"), "{told}");
            assert!(!told.contains("panicked"), "{told}");
            assert_eq!(processes_here(), Vec::<String>::new(), "{kib} KiB: a process is left");
            let left = files(disk);
            let drafts =
                left.iter().filter(|path| path.extension().is_some_and(|it| it == "draft"));
            assert_eq!(drafts.count(), 0, "{left:?}");
            let Some(bundle) = left.iter().find(|path| path.ends_with("bundle.json")) else {
                assert_eq!(left, Vec::<PathBuf>::new(), "{kib} KiB: what is left is no bundle");
                return;
            };
            let bundle = bundle.parent().expect("a directory").to_str().expect("UTF-8");
            let (code, verified, told) = run(&["lab", "verify", bundle]);
            assert_eq!(code, Some(0), "{kib} KiB: {verified}{told}");
            // It says so if there was room to write that, and otherwise that there may have been none.
            let note = verified.lines().find(|it| it.starts_with("note: ")).expect("a note");
            let failed =
                note.contains("its lab failed: cannot write") && note.contains("No space left");
            assert!(failed || note.contains("could not write even that it failed"), "{verified}");
        });
    }
}

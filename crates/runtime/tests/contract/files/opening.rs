//! Opening stays beneath the directory, for any path and any link.

use super::tree::*;
use crate::support::*;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use twinring::fs::{Dir, Entry, Kind, Symlinks};

pub(crate) const RULES: &[Rule] = rules![
    paths_and_links_stay_beneath_the_directory,
    special_files_are_recognised_without_blocking,
    directories_are_listed,
    running_out_of_descriptors_is_an_error_and_passes,
];

async fn errno_of_opening(root: &Dir, path: &Path, symlinks: Symlinks) -> i32 {
    errno(&root.open_file(path, symlinks).await)
}

async fn paths_and_links_stay_beneath_the_directory(tree: Tree) {
    tree.write("file", b"inside");
    std::fs::create_dir(tree.path("sub")).expect("a directory");
    tree.write("sub/deep", b"deeper");
    let absolute = tree.path("file");
    for (link, target) in [
        ("to_file", "file"),
        ("to_sub", "sub"),
        ("sub/up", "../file"),
        ("twice", "to_file"),
        ("out", "../../../../../../etc/passwd"),
        ("absolute", "/etc/passwd"),
        ("absolute_inside", absolute.to_str().expect("UTF-8")),
        ("dangling", "nothing"),
        ("itself", "itself"),
    ] {
        symlink(target, tree.path(link)).expect("a link");
    }
    // The errors with links refused and with links followed.
    for (path, refused, followed) in [
        ("file", 0, 0),
        ("sub/deep", 0, 0),
        ("./sub//deep", 0, 0),
        ("sub/../file", 0, 0),
        ("nothing", libc::ENOENT, libc::ENOENT),
        ("nothing/file", libc::ENOENT, libc::ENOENT),
        ("file/", libc::ENOTDIR, libc::ENOTDIR),
        ("file/deep", libc::ENOTDIR, libc::ENOTDIR),
        ("../../../../../../etc/passwd", libc::EXDEV, libc::EXDEV),
        ("sub/../../../../../etc/passwd", libc::EXDEV, libc::EXDEV),
        (&"x".repeat(256), libc::ENAMETOOLONG, libc::ENAMETOOLONG),
        ("to_file", libc::ELOOP, 0),
        ("to_sub", libc::ELOOP, 0),
        ("to_sub/deep", libc::ELOOP, 0),
        ("sub/up", libc::ELOOP, 0),
        ("twice", libc::ELOOP, 0),
        ("out", libc::ELOOP, libc::EXDEV),
        ("absolute", libc::ELOOP, libc::EXDEV),
        ("absolute_inside", libc::ELOOP, libc::EXDEV),
        ("dangling", libc::ELOOP, libc::ENOENT),
        ("itself", libc::ELOOP, libc::ELOOP),
    ] {
        let name = tree.name(path);
        for (symlinks, expected) in [(Symlinks::Refuse, refused), (Symlinks::Beneath, followed)] {
            let got = errno_of_opening(&tree.root, &name, symlinks).await;
            assert_eq!(got, expected, "{path} with {symlinks:?}");
        }
    }
    // Magic links lead nowhere.
    let proc = proc();
    let inside = std::fs::File::open("/proc/version").expect("/proc is mounted");
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&inside);
    for (root, path, expected) in [
        (&tree.root, "/etc/passwd", libc::EXDEV),
        (&tree.root, "..", libc::EXDEV),
        (&tree.root, "", libc::ENOENT),
        (&proc, "version", 0),
        (&proc, "self/status", 0),
        (&proc, "self/root/etc/passwd", libc::ELOOP),
        (&proc, "self/root", libc::ELOOP),
        (&proc, "self/cwd/Cargo.toml", libc::ELOOP),
        (&proc, "self/exe", libc::ELOOP),
        (&proc, &format!("self/fd/{descriptor}"), libc::ELOOP),
        (&proc, "self/../../etc/passwd", libc::EXDEV),
        (&proc, "nothing", libc::ENOENT),
    ] {
        let got = errno_of_opening(root, Path::new(path), Symlinks::Beneath).await;
        assert_eq!(got, expected, "{path}");
    }
    let zero = tree.root.open_file(Path::new("fi\0le"), Symlinks::Beneath).await;
    assert_eq!(zero.expect_err("a zero byte").kind(), ErrorKind::InvalidInput);
    assert_eq!(errno(&Dir::open(&tree.path("nothing"))), libc::ENOENT);
    assert_eq!(errno(&Dir::open(&tree.path("file"))), libc::ENOTDIR);
}

async fn special_files_are_recognised_without_blocking(tree: Tree) {
    let made = Command::new("mkfifo").arg(tree.path("fifo")).status();
    assert!(made.expect("mkfifo").success());
    let fifo = tree.open("fifo").await;
    assert_eq!(fifo.metadata().await.expect("its status").kind, Kind::Other);
    assert_eq!(errno(&fifo.read_at(0, 10).await), libc::ESPIPE);
    let _listener = UnixListener::bind(tree.path("socket")).expect("a socket");
    let opened = errno_of_opening(&tree.root, &tree.name("socket"), Symlinks::Refuse).await;
    assert_eq!(opened, libc::ENXIO);
    std::fs::create_dir(tree.path("sub")).expect("a directory");
    let directory = tree.open("sub").await;
    assert_eq!(directory.metadata().await.expect("its status").kind, Kind::Directory);
    assert_eq!(errno(&directory.read_at(0, 10).await), libc::EISDIR);
    tree.write("file", b"");
    assert_eq!(tree.open("file").await.metadata().await.expect("a file").kind, Kind::File);
}

async fn directories_are_listed(tree: Tree) {
    let list = async |name: &str, symlinks, most| {
        let listed = tree.root.list(&tree.name(name), symlinks, most).await;
        listed.expect("a directory").entries
    };
    let names = |entries: &[Entry]| {
        entries.iter().map(|e| e.name.clone()).collect::<Vec<_>>().join("".as_ref())
    };
    std::fs::create_dir(tree.path("sub")).expect("a directory");
    assert_eq!(list("sub", Symlinks::Refuse, 100).await, []);
    tree.write("sub/b", b"four");
    tree.write("sub/c", b"");
    std::fs::create_dir(tree.path("sub/a")).expect("a directory");
    symlink("../sub/b", tree.path("sub/in")).expect("a link");
    symlink("/etc/passwd", tree.path("sub/out")).expect("a link");
    let listed = list("sub", Symlinks::Refuse, 100).await;
    assert_eq!(names(&listed), "abc");
    assert_eq!((listed[0].kind, listed[1].kind, listed[1].len), (Kind::Directory, Kind::File, 4));
    let metadata = tree.open("sub/b").await.metadata().await.expect("a file");
    assert_eq!(listed[1].modified, metadata.modified);
    let followed = list("sub", Symlinks::Beneath, 100).await;
    assert_eq!(names(&followed), "abcin");
    assert_eq!((followed[3].kind, followed[3].len), (Kind::File, 4));
    assert_eq!(list("sub", Symlinks::Refuse, 2).await.len(), 2);
    // More than one call of the kernel returns.
    for number in 0..500 {
        tree.write(&format!("sub/a/{number:03}-{}", "x".repeat(200)), b"");
    }
    assert_eq!(list("sub/a", Symlinks::Refuse, 1000).await.len(), 500);
    for (path, expected) in [("sub/b", libc::ENOTDIR), ("nothing", libc::ENOENT)] {
        let listed = tree.root.list(&tree.name(path), Symlinks::Refuse, 10).await;
        assert_eq!(errno(&listed), expected);
    }
    let above = tree.root.list(Path::new(".."), Symlinks::Beneath, 10).await;
    assert_eq!(errno(&above), libc::EXDEV);
}

fn running_out_of_descriptors_is_an_error_and_passes(configuration: Configuration) {
    alone(&[], 100, || {
        configuration.run(async {
            let (tree, proc) = (Tree::new(Ground::Disk), proc());
            tree.write("file", b"inside");
            // Both ways of opening, and the threads that the second may need.
            for (root, name) in [(&tree.root, "file"), (&proc, "version")] {
                let opening = || root.open_file(Path::new(name), Symlinks::Refuse);
                let before = open_descriptors();
                drop(opening().await.expect("a descriptor"));
                closed_down_to(before).await;
                let mut files = Vec::new();
                let ran_out = loop {
                    match opening().await {
                        Ok(file) => files.push(file),
                        error => break error,
                    }
                };
                assert_eq!(errno(&ran_out), libc::EMFILE);
                assert!(files.len() > 10, "{}", files.len());
                assert!(!files[0].read_at(0, 3).await.expect("an open file").is_empty());
                files.pop();
                let again = loop {
                    match opening().await {
                        Ok(file) => break file,
                        _not_closed_yet => yield_now().await,
                    }
                };
                assert_eq!(errno(&opening().await), libc::EMFILE);
                drop((again, files));
                closed_down_to(before).await;
            }
            // Accepting waits for a descriptor, and a file that is closed is one.
            let mut files = Vec::new();
            let listener = listen();
            let address = listener.local_addr();
            let peer = Peer::connect(address).expect("the backlog has room");
            while let Ok(file) = tree.root.open_file(Path::new("file"), Symlinks::Refuse).await {
                files.push(file);
            }
            let accepting = spawn(async move { listener.accept().await.expect("a connection") });
            settle().await;
            assert!(!accepting.is_finished());
            drop(files);
            drop(accepting.await.expect("not aborted"));
            drop(peer);
        });
    });
}

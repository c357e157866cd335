//! Files are written beneath the directory, and nothing else is.

use crate::support::*;
use crate::tree::*;
use std::os::unix::fs::symlink;
use std::path::Path;
use twinring::fs::{Create, Symlinks};

pub(crate) const RULES: &[Rule] = rules![
    what_is_written_is_read,
    existing_files_are_treated_as_requested,
    files_are_created_beneath_the_directory,
    a_file_for_reading_is_not_written,
];

fn what_is_written_is_read(configuration: Configuration) {
    on_all_grounds(configuration, |tree, _| async move {
        let path = tree.name("written");
        let create = tree.root.create_file(&path, Symlinks::Refuse, Create::New);
        let file = create.await.expect("a new file");
        assert_eq!(file.metadata().await.expect("open").len, 0);
        file.write_at(0, pattern(1, 0..300_000)).await.expect("room");
        assert_eq!(file.metadata().await.expect("open").len, 300_000);
        file.write_at(100_000, "in the middle").await.expect("room");
        file.write_at(300_010, "behind a hole").await.expect("room");
        file.sync().await.expect("a disk");
        let read = file.read_at(0, 1_000_000).await.expect("readable");
        assert_eq!(read.len(), 300_023);
        assert_pattern(1, 0, &read[..100_000]);
        assert_eq!(&read[100_000..100_013], b"in the middle");
        assert_pattern(1, 100_013, &read[100_013..300_000]);
        assert_eq!(&read[300_000..], b"\0\0\0\0\0\0\0\0\0\0behind a hole");
        file.set_len(5).await.expect("room");
        assert_eq!(std::fs::read(tree.path("written")).expect("a file"), pattern(1, 0..5));
        file.write_at(5, "").await.expect("nothing to write");
        for at in [u64::MAX, i64::MAX as u64 + 1] {
            assert_eq!(errno(&file.write_at(at, "x").await), libc::EINVAL);
        }
    });
}

fn existing_files_are_treated_as_requested(configuration: Configuration) {
    on_all_grounds(configuration, |tree, _| async move {
        for (create, left) in [(Create::Keep, "before"), (Create::Truncate, "")] {
            tree.write("existing", b"before");
            let path = tree.name("existing");
            let exists = tree.root.create_file(&path, Symlinks::Beneath, Create::New).await;
            assert_eq!(errno(&exists), libc::EEXIST);
            let file = tree.root.create_file(&path, Symlinks::Beneath, create).await;
            let file = file.expect("it exists");
            assert_eq!(file.read_at(0, 100).await.expect("readable"), left.as_bytes());
        }
    });
}

fn files_are_created_beneath_the_directory(configuration: Configuration) {
    on_all_grounds(configuration, |tree, _| async move {
        symlink("/tmp", tree.path("out")).expect("a link");
        symlink("target", tree.path("link")).expect("a link");
        for (path, symlinks, expected) in [
            ("../../../../../../escaped", Symlinks::Beneath, libc::EXDEV),
            ("out/escaped", Symlinks::Beneath, libc::EXDEV),
            ("out/escaped", Symlinks::Refuse, libc::ELOOP),
            ("link", Symlinks::Refuse, libc::ELOOP),
            ("nothing/file", Symlinks::Beneath, libc::ENOENT),
        ] {
            let path = tree.name(path);
            let created = tree.root.create_file(&path, symlinks, Create::Truncate).await;
            assert_eq!(errno(&created), expected, "{path:?}");
        }
        let link = tree.name("link");
        let through = tree.root.create_file(&link, Symlinks::Beneath, Create::Keep);
        through.await.expect("beneath").write_at(0, "x").await.expect("room");
        assert_eq!(std::fs::read(tree.path("target")).expect("a file"), b"x");
        let itself = tree.root.create_file(Path::new(""), Symlinks::Beneath, Create::Keep).await;
        assert_eq!(errno(&itself), libc::ENOENT);
    });
}

fn a_file_for_reading_is_not_written(configuration: Configuration) {
    on_all_grounds(configuration, |tree, _| async move {
        tree.write("file", b"as it was");
        let file = tree.root.open_file(&tree.name("file"), Symlinks::Refuse).await.expect("a file");
        assert_eq!(errno(&file.write_at(0, "changed").await), libc::EBADF);
        assert_eq!(errno(&file.set_len(0).await), libc::EINVAL);
        assert_eq!(std::fs::read(tree.path("file")).expect("a file"), b"as it was");
        std::fs::create_dir(tree.path("directory")).expect("a directory");
        let opened = tree.root.open_file(&tree.name("directory"), Symlinks::Refuse).await;
        let directory = opened.expect("a directory");
        assert_eq!(errno(&directory.write_at(0, "x").await), libc::EISDIR);
    });
}

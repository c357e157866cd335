//! A root directory for containers, made without an image: programs and libraries are those of this
//! machine, once `/usr` is mounted.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

pub(crate) fn make() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    for name in ["proc", "sys", "dev", "etc", "run", "tmp", "usr"] {
        fs::create_dir(path.join(name)).expect("a directory");
    }
    for name in ["bin", "lib", "lib64"] {
        symlink(Path::new("usr").join(name), path.join(name)).expect("a link");
    }
    for name in ["etc/passwd", "etc/group", "etc/ld.so.cache"] {
        fs::copy(Path::new("/").join(name), path.join(name)).expect("a file");
    }
    fs::write(path.join("etc/os-release"), "ID=test\n").expect("a file");
    directory
}

//! The server that ours are compared with.

use super::*;

/// Ended when dropped.
pub(crate) struct Nginx {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        kill(Pid::from_raw(self.process.id() as i32), Signal::SIGTERM)
            .expect("it was not waited for");
        // Fails only when it has ended.
        let _ended = self.process.wait();
    }
}

/// nginx with this configuration, in which its first address takes the place of `8080`.
pub(crate) fn nginx(text: &str, directory: &Path) -> Nginx {
    testing::needs_program("nginx");
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("bound");
    drop(free);
    let text =
        text.replace("listen 8080 default_server", &format!("listen {address} default_server"));
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|name| format!("{name}_temp_path temp;\n")).concat();
    let text = format!(
        "daemon off;\npid nginx.pid;\nerror_log stderr error;\nevents {{}}\n\
         http {{\naccess_log off;\n{temporary}include /etc/nginx/mime.types;\n{text}\n}}\n"
    );
    fs::write(directory.join("nginx.conf"), text).expect("a file");
    let mut command = Command::new("nginx");
    command.arg("-p").arg(directory).args(["-e", "stderr", "-c", "nginx.conf"]);
    let nginx = Nginx { process: command.spawn().expect("nginx starts"), address };
    wait_until("nginx accepts", || TcpStream::connect(address).is_ok());
    nginx
}

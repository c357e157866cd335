//! `twinring load http` over TLS, against a small server on rustls.

use crate::support::load::*;
use crate::support::tls::Identity;
use crate::support::*;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};
use twinring_lab::certificate::SelfSigned;

pub(crate) const TESTS: &[Test] = tests![
    answers_are_checked_through_tls_and_connections_end_in_order,
    sessions_are_resumed_unless_that_is_unwanted,
    servers_that_cannot_be_used_are_named_with_a_fix,
    an_answer_that_is_cut_off_inside_tls_is_not_taken_for_whole,
    the_certificates_of_the_system_are_where_its_variables_say
];

const HERE: &str = "127.0.0.1";

/// A certificate for some name, in a file, and a server that shows it.
struct Secure {
    identity: Identity,
    config: Arc<ServerConfig>,
    /// Connections that ended without close_notify.
    cut: Arc<AtomicUsize>,
}

impl Secure {
    fn new(identity: Identity, version: &'static SupportedProtocolVersion) -> Secure {
        let certificate = CertificateDer::from_pem_file(identity.certificate()).unwrap();
        let key = PrivateKeyDer::from_pem_file(identity.key()).unwrap();
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_protocol_versions(&[version])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate], key)
                .unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
        Secure { identity, config: Arc::new(config), cut: Arc::default() }
    }

    fn ca(&self) -> PathBuf {
        self.identity.certificate()
    }

    /// Answers every request with `answer`. Closes after one that asks for it, with close_notify
    /// if `ends`.
    fn serve(&self, answer: String, ends: bool) -> SocketAddr {
        let (config, cut) = (Arc::clone(&self.config), Arc::clone(&self.cut));
        serve(move |_, stream| {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            let ended = answer_each(&mut stream, |_, head, reader| {
                let stream = reader.get_mut();
                let sent = stream.write_all(answer.as_bytes()).and_then(|()| stream.flush());
                let last = head.contains("Connection: close") || !answer.contains("Content-Length");
                sent.is_ok() && !last
            });
            // Without close_notify the end is an error.
            cut.fetch_add(usize::from(ended.is_err()), Ordering::Relaxed);
            if ends {
                stream.conn.send_close_notify();
                let _ = stream.conn.complete_io(&mut stream.sock);
            }
        })
    }
}

fn load(target: SocketAddr, arguments: &str) -> Command {
    command("auto", "http", &format!("https://{target}/"), arguments)
}

fn run(target: SocketAddr, arguments: &str) -> Outcome {
    finished(load(target, arguments))
}

fn answers_are_checked_through_tls_and_connections_end_in_order() {
    for (version, name) in [(&TLS13, "TLSv1.3"), (&TLS12, "TLSv1.2")] {
        let secure = Secure::new(Identity::of(HERE), version);
        for content in ["hello".to_owned(), "0123456789".repeat(30_000)] {
            let target = secure.serve(ok(&content), true);
            for case in ["-c 4 -t 2", "-c 2 --pipeline 8", "-c 3 --rate 500"] {
                let ca = secure.ca().display().to_string();
                let arguments = format!("{case} -n 200 --verify-body --tls-ca {ca}");
                let outcome = run(target, &arguments);
                outcome.expect(0, &[]);
                outcome.has(&[
                    ("/whole_run/answered", 200),
                    ("/bytes/bodies", 200 * content.len() as u64),
                    ("/settings/tls/handshakes", outcome.number("/settings/connections")),
                ]);
                let tls = &outcome.result["settings"]["tls"];
                assert_eq!((&tls["protocol"], &tls["ca"]), (&name.into(), &ca.into()));
            }
            run(target, "-c 6 -n 60 --no-keepalive --insecure").expect(0, &[]);
        }
        assert_eq!(secure.cut.load(Ordering::Relaxed), 0, "connections without close_notify");
    }
}

fn sessions_are_resumed_unless_that_is_unwanted() {
    for version in [&TLS13, &TLS12] {
        let secure = Secure::new(Identity::of(HERE), version);
        let target = secure.serve(ok("hello"), true);
        let arguments = "-c 2 -n 60 --no-keepalive --insecure";
        let outcome = run(target, arguments);
        outcome.expect(0, &[]);
        assert!(outcome.number("/settings/tls/handshakes") >= 60);
        assert!(outcome.number("/settings/tls/resumed") >= 40, "{}", outcome.result);
        outcome.has(&[("/connections/kept_open", 0)]);
        let outcome = run(target, &format!("{arguments} --tls-full-handshake"));
        outcome.expect(0, &[]);
        outcome.has(&[("/settings/tls/resumed", 0)]);
    }
}

/// Without --tls-ca. A directory may hold other files, and links to the same one.
fn the_certificates_of_the_system_are_where_its_variables_say() {
    let secure = Secure::new(Identity::of(HERE), &TLS13);
    let target = secure.serve(ok("hello"), true);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("other"), "no certificate").unwrap();
    std::os::unix::fs::symlink(secure.ca(), directory.path().join("0a1b2c3d.0")).unwrap();
    let (file, directory) = (secure.ca(), directory.path().to_path_buf());
    let missing = directory.join("missing");
    for (variables, code) in [
        ([("SSL_CERT_FILE", &file), ("SSL_CERT_DIR", &missing)], 0),
        ([("SSL_CERT_FILE", &missing), ("SSL_CERT_DIR", &directory)], 0),
        ([("SSL_CERT_FILE", &missing), ("SSL_CERT_DIR", &missing)], 1),
    ] {
        let (found, _, told) = run_to_its_end(load(target, "-c 2 -n 20").envs(variables));
        assert_eq!(found, Some(code), "{variables:?}: {told}");
        assert!(code == 0 || told.contains("the system trusts no certificate"), "{told}");
    }
}

/// That of a CA certificate was `Other(OtherError(CaUsedAsEndEntity))`.
fn servers_that_cannot_be_used_are_named_with_a_fix() {
    let [here, elsewhere] =
        [HERE, "elsewhere.test"].map(|name| Secure::new(Identity::of(name), &TLS13));
    let identity = Identity::new();
    let made = SelfSigned::authority(vec![HERE.to_owned()]).unwrap();
    fs::write(identity.certificate(), made.certificate).unwrap();
    fs::write(identity.key(), made.key).unwrap();
    let authority = Secure::new(identity, &TLS13);
    let plain = serve(|_, mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        thread::sleep(Duration::from_secs(1));
    });
    let trusting = |secure: &Secure| format!("--tls-ca {}", secure.ca().display());
    let cases = [
        // Another certificate than the one that is trusted; the right one for another name.
        (&here, trusting(&elsewhere), "TLS: invalid peer certificate"),
        (&elsewhere, trusting(&elsewhere), "TLS: invalid peer certificate"),
        (&authority, trusting(&authority), "TLS: the server shows a CA certificate (CA:TRUE)"),
        (&here, "--insecure --http2".to_owned(), "ALPN"),
    ];
    let cases = cases.map(|(secure, arguments, named)| {
        let target = secure.serve(ok("hello"), true);
        run(target, "-c 2 -n 20 --insecure").expect(0, &[]);
        (target, arguments, named)
    });
    let without_tls = (plain, "--insecure".to_owned(), "does not speak TLS on this port");
    for (target, arguments, named) in cases.into_iter().chain([without_tls]) {
        assert_ended(&mut load(target, &format!("-c 2 {arguments}")), 1, &[named]);
    }
}

fn an_answer_that_is_cut_off_inside_tls_is_not_taken_for_whole() {
    let secure = Secure::new(Identity::of(HERE), &TLS13);
    let answer = || "HTTP/1.1 200 OK\r\n\r\nall of it".to_owned();
    let whole = run(secure.serve(answer(), true), "-c 1 -n 10 --insecure");
    whole.expect(0, &[]);
    let cut = run(secure.serve(answer(), false), "-c 1 -n 3 --insecure");
    cut.expect(1, &[("closed_early", 3)]);
    cut.has(&[("/whole_run/failed", 3)]);
}

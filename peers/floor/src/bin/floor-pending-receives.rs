//! A UDP reflector as AsyncUdpTests has it: one socket with N receives in flight, each with a buffer of its own. What
//! one of them received is sent back from its buffer, and then it is submitted again. `--epoll` is its counterpart.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::ExitCode;

use clap::Parser;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use peer_common::Common;

const NAME: &str = "floor-pending-receives";
const DEFAULT_BUFFER_BYTES: u32 = 2 * 1024;

/// What a completion belongs to: `user_data` is the number of the buffer, with this bit for a send.
const SEND: u64 = 1 << 32;

/// UDP reflector with N pending receives.
#[derive(Parser)]
#[command(name = NAME, version)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Receives in flight.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=16384))]
    pending: u16,
    /// Use epoll, with recvfrom and sendto.
    #[arg(long)]
    epoll: bool,
}

fn main() -> ExitCode {
    peer_common::finish(NAME, run(&Options::parse()))
}

fn run(options: &Options) -> io::Result<()> {
    let socket = peer_common::start_udp(&options.common)?;
    let buffer_bytes = options.common.buffer_bytes_or(DEFAULT_BUFFER_BYTES);
    let ready = format!("{NAME} listening on {}", socket.local_addr()?);
    if options.epoll {
        socket.set_nonblocking(true)?;
        peer_common::say(&ready)?;
        return reflect_on_epoll(&socket, buffer_bytes);
    }
    let pending = u32::from(options.pending);
    let mut server = Server {
        ring: IoUring::builder().setup_cqsize(4 * pending).build(2 * pending)?,
        socket: &socket,
        messages: (0..pending).map(|_| Message::new(buffer_bytes)).collect(),
    };
    for index in 0..u64::from(pending) {
        server.receive(index)?;
    }
    peer_common::say(&ready)?;
    server.run()
}

struct Server<'socket> {
    ring: IoUring,
    socket: &'socket UdpSocket,
    messages: Vec<Message>,
}

/// A buffer with what the kernel needs to know of it. It is leaked: the kernel has its address for as long as the
/// process lives.
struct Message {
    header: &'static mut libc::msghdr,
    buffer_bytes: usize,
}

impl Message {
    fn new(buffer_bytes: usize) -> Message {
        // SAFETY: all zeroes is a valid address, and a valid header: no name, no vector, no control data.
        let (address, header): (libc::sockaddr_storage, libc::msghdr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let bytes = vec![0_u8; buffer_bytes].leak();
        let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: buffer_bytes };
        let header = Box::leak(Box::new(header));
        header.msg_name = (&raw mut *Box::leak(Box::new(address))).cast();
        header.msg_iov = Box::leak(Box::new(vector));
        header.msg_iovlen = 1;
        Message { header, buffer_bytes }
    }

    fn set_len(&mut self, len: usize) {
        // SAFETY: the vector was leaked in `new`, and no operation with this message is in flight.
        unsafe { (*self.header.msg_iov).iov_len = len };
    }
}

impl Server<'_> {
    fn run(&mut self) -> io::Result<()> {
        let mut completions = Vec::new();
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                submitted => submitted?,
            };
            completions.extend(self.ring.completion());
            for completion in completions.drain(..) {
                let (user_data, result) = (completion.user_data(), completion.result());
                // A receive that failed (an ICMP error of an earlier send) is submitted again, and so is one whose
                // answer could not be sent: datagrams may be lost.
                match user_data & SEND {
                    0 if result >= 0 => self.send(user_data, result as usize)?,
                    _ => self.receive(user_data & !SEND)?,
                }
            }
        }
    }

    fn receive(&mut self, index: u64) -> io::Result<()> {
        let message = &mut self.messages[index as usize];
        message.set_len(message.buffer_bytes);
        message.header.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
        let entry = opcode::RecvMsg::new(Fd(self.socket.as_raw_fd()), &raw mut *message.header);
        let entry = entry.build().user_data(index);
        self.queue(&entry)
    }

    fn send(&mut self, index: u64, len: usize) -> io::Result<()> {
        let message = &mut self.messages[index as usize];
        message.set_len(len);
        let entry = opcode::SendMsg::new(Fd(self.socket.as_raw_fd()), &raw const *message.header);
        let entry = entry.build().user_data(index | SEND);
        self.queue(&entry)
    }

    fn queue(&mut self, entry: &Entry) -> io::Result<()> {
        // SAFETY: an entry points to a message, which is leaked, and whose parts are changed only when its one
        // operation has completed.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}

fn reflect_on_epoll(socket: &UdpSocket, buffer_bytes: usize) -> io::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    let mut buffer = vec![0; buffer_bytes];
    loop {
        match epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            waited => waited?,
        };
        loop {
            match socket.recv_from(&mut buffer) {
                // A full socket or an unreachable peer loses a datagram, as networks do.
                Ok((len, from)) => drop(socket.send_to(&buffer[..len], from)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
    }
}

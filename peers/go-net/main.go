// Command go-net-echo is a TCP echo server on Go's net package: one goroutine and one buffer per
// connection, one processor.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

const name = "go-net-echo"

// acceptRetry is how long accepting rests when descriptors or memory have run out: the connection
// stays in the backlog, and to try again at once would spin.
const acceptRetry = 100 * time.Millisecond

// bindPatience is how long binding is tried again while the port is in use: a ring that was killed
// releases its port only after its deferred teardown.
const bindPatience = time.Second

func main() {
	listen := flag.String("listen", "127.0.0.1:7100", "address and port to listen on")
	pin := flag.Int("pin", -1, "CPU to run on")
	buffer := flag.Int("buffer", 32*1024, "size of a receive buffer in bytes")
	flag.IntVar(buffer, "buffer-bytes", *buffer, "the same as -buffer")
	flag.Parse()
	if flag.NArg() > 0 || *buffer <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*listen, *pin, *buffer); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func run(address string, cpu, bufferBytes int) error {
	if cpu >= 0 {
		if err := pinProcess(cpu); err != nil {
			return fmt.Errorf("cannot pin to CPU %d: %w", cpu, err)
		}
	}
	// The other peers have one worker thread.
	runtime.GOMAXPROCS(1)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		os.Exit(0)
	}()
	listener, err := bind(address)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	fmt.Printf("%s listening on %s\n", name, listener.Addr())
	return serve(listener, bufferBytes)
}

// bind uses the backlog that the net package chooses: net.core.somaxconn.
func bind(address string) (net.Listener, error) {
	// Keep-alive would cost four setsockopt calls per connection that no other peer makes.
	config := net.ListenConfig{KeepAlive: -1}
	giveUp := time.Now().Add(bindPatience)
	for {
		listener, err := config.Listen(context.Background(), "tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(giveUp) {
			return listener, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func serve(listener net.Listener, bufferBytes int) error {
	for {
		connection, err := listener.Accept()
		switch {
		case err == nil:
			go echo(connection, bufferBytes)
		case errors.Is(err, net.ErrClosed):
			return err
		case outOfResources(err):
			time.Sleep(acceptRetry)
		}
		// Any other error is of a connection that died in the backlog: accept(2) says to go on.
	}
}

// echo ends with the connection's end or its first error. The net package sets TCP_NODELAY. Not
// io.Copy: between two sockets it splices through a pipe, which is slower for messages.
func echo(connection net.Conn, bufferBytes int) {
	defer connection.Close()
	buffer := make([]byte, bufferBytes)
	for {
		received, err := connection.Read(buffer)
		if err != nil {
			return
		}
		if _, err := connection.Write(buffer[:received]); err != nil {
			return
		}
	}
}

func outOfResources(err error) bool {
	for _, code := range []error{syscall.ENOMEM, syscall.ENFILE, syscall.EMFILE, syscall.ENOBUFS} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

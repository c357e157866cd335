package main

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// pinProcess makes the whole process run on one CPU. Affinity is a property of a thread, and the Go
// runtime has started some by now; so the program executes itself anew from a pinned thread, whose
// affinity all threads of the new image inherit. It returns nil once that has happened.
func pinProcess(cpu int) error {
	runtime.LockOSThread()
	var wanted, now unix.CPUSet
	wanted.Set(cpu)
	if err := unix.SchedGetaffinity(0, &now); err != nil {
		return err
	}
	if now == wanted {
		runtime.UnlockOSThread()
		return nil
	}
	if err := unix.SchedSetaffinity(0, &wanted); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(program, os.Args, os.Environ())
}

// Go takes SIGSEGV for nil pointers, and signals threads to preempt goroutines. Both must work before, between
// and after faults of the device.
package main

/*
#cgo LDFLAGS: -lprobe
int probe_start(void);
int probe_unmapped(void);
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
)

type node struct {
	value int
}

func load(n *node) (caught bool) {
	defer func() { caught = recover() != nil }()
	n.value++
	return false
}

func expect(holds bool, what string) {
	if !holds {
		fmt.Println(what)
		os.Exit(1)
	}
}

func main() {
	expect(load(nil), "nil pointer before the device")
	expect(C.probe_start() == 0, "start")
	done := make(chan bool)
	for i := 0; i < 4; i++ {
		go func() {
			for j := 0; j < 2000; j++ {
				expect(load(nil) && !load(&node{}), "nil pointer beside the device")
			}
			done <- true
		}()
	}
	for i := 0; i < 20; i++ {
		expect(C.probe_unmapped() == 0, "unmapped")
		runtime.GC()
	}
	for i := 0; i < 4; i++ {
		<-done
	}
	expect(load(nil), "nil pointer after the device")
	fmt.Println("ok")
}

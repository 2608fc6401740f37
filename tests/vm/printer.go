package main

import (
	"fmt"
	"io"
	"sync"
)

// printer writes whole lines of several machines to one place.
type printer struct {
	mu  sync.Mutex
	out io.Writer
}

func newPrinter(out io.Writer) *printer { return &printer{out: out} }

// say prints a line; who is the machine, "" for none.
func (p *printer) say(who, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if who != "" {
		line = who + " | " + line
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.out, line)
}

// Write lets others write lines.
func (p *printer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

package main

import (
	"fmt"
	"io"
	"sync"
)

// printer writes whole lines of several machines to one writer.
type printer struct {
	mu  sync.Mutex
	out io.Writer
}

func newPrinter(out io.Writer) *printer { return &printer{out: out} }

// say prints a line, with the machine as a prefix unless that is "".
func (p *printer) say(machine, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if machine != "" {
		line = machine + " | " + line
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.out, line)
}

// Write writes b, which has whole lines.
func (p *printer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

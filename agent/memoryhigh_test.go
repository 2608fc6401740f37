package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// The warning about memory.high is logged also if the start fails because of the
// configuration, which may have the removed field.
func TestMemoryHighOfAnEarlierRun(t *testing.T) {
	o := testOptions(t)
	boot, err := process.BootID(kernel.FS(o.Procfs))
	if err != nil {
		t.Fatal(err)
	}
	o.Cgroupfs = kerneltest.Tree(t, map[string]string{"cgroup.controllers": "memory pids\n", "kubepods/memory.high": "4096\n"})
	o.StateDir = kerneltest.Tree(t, map[string]string{"brake.json": `{"bootID":"` + boot + `","cgroup":"/kubepods","was":9216}`})
	var log bytes.Buffer
	if _, err := build(o, &asyncLog{Logger: slog.New(slog.NewTextHandler(&log, nil))}); err == nil {
		t.Fatal("build() without its configuration = nil; want an error")
	}
	if !strings.Contains(log.String(), "/kubepods/memory.high") {
		t.Errorf("log %q; want a warning about memory.high", log.String())
	}
}

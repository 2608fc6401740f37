package agent

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// The warning is logged also if the start fails because of the configuration, which may
// have the removed field.
func TestMemoryHighOfAnEarlierRun(t *testing.T) {
	boot, err := process.BootID(kernel.FS(Defaults().Procfs))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, content string
		want          []string // parts of the one warning; none wants no warning
	}{
		{"none", "", nil},
		{"of this boot", `{"bootID":"` + boot + `","cgroup":"/kubepods","id":7,"was":9216,"from":9216,"to":4096}`, []string{"/kubepods/memory.high", "limit=9216", "brake.json"}},
		{"no limit before", `{"bootID":"` + boot + `","cgroup":"/kubepods","id":7,"was":18446744073709551615,"from":4096,"to":4096}`, []string{"/kubepods/memory.high", "limit=max"}},
		{"of another boot", `{"bootID":"another","cgroup":"/kubepods","id":7,"was":9216,"from":9216,"to":4096}`, nil},
		{"unreadable", `{`, []string{"brake.json", "unexpected end of JSON input"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Defaults()
			o.Cgroupfs = kerneltest.Tree(t, map[string]string{"cgroup.controllers": "memory pids\n", "kubepods/memory.high": "4096\n"})
			o.StateDir = t.TempDir()
			o.ConfigPath, o.ConfigGiven = filepath.Join(t.TempDir(), "missing.yaml"), true
			if tt.content != "" {
				if err := os.WriteFile(filepath.Join(o.StateDir, "brake.json"), []byte(tt.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var log bytes.Buffer
			if _, err := build(o, &asyncLog{Logger: slog.New(slog.NewTextHandler(&log, nil))}); err == nil {
				t.Fatal("build() without its configuration = nil; want an error")
			}
			if n := strings.Count(log.String(), "level=WARN"); n != min(len(tt.want), 1) {
				t.Errorf("%d warnings: %s", n, log.String())
			}
			for _, part := range tt.want {
				if !strings.Contains(log.String(), part) {
					t.Errorf("log %q; want %q in it", log.String(), part)
				}
			}
		})
	}
}

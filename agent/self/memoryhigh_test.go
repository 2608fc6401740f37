package self

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestWarnMemoryHigh(t *testing.T) {
	h, err := cgroup.Find(kernel.FS(kerneltest.Tree(t, map[string]string{"cgroup.controllers": "memory pids\n", "kubepods/memory.high": "4096\n"})))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, content string
		want          []string // parts of the one warning; none wants no warning
	}{
		{"none", "", nil},
		{"of this boot", `{"bootID":"this","cgroup":"/kubepods","id":7,"was":9216,"from":9216,"to":4096}`, []string{"/kubepods/memory.high", "limit=9216", "brake.json"}},
		{"no limit before", `{"bootID":"this","cgroup":"/kubepods","id":7,"was":18446744073709551615,"from":4096,"to":4096}`, []string{"/kubepods/memory.high", "limit=max"}},
		{"of another boot", `{"bootID":"another","cgroup":"/kubepods","id":7,"was":9216,"from":9216,"to":4096}`, nil},
		{"unreadable", `{`, []string{"brake.json", "unexpected end of JSON input"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.content != "" {
				kerneltest.Write(t, dir, map[string]string{"brake.json": tt.content})
			}
			var log bytes.Buffer
			New("/proc", h, slog.New(slog.NewTextHandler(&log, nil))).WarnMemoryHigh(dir, "this")
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

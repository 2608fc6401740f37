package main

import (
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		node           string // NODE_NAME
		args           []string
		code           int
		stdout, stderr string
	}{
		{"", []string{"--version"}, exitOK, "evictd-kube ", ""},
		{"", []string{"--help"}, exitOK, "", "-node-name"},
		{"", nil, exitUsage, "", "no node name: set --node-name or NODE_NAME"},
		{"n1", []string{"now"}, exitUsage, "", `unexpected argument "now"`},
		{"n1", []string{"--log.format", "xml"}, exitUsage, "", `--log.format is text or json, not "xml"`},
		{"n1", []string{"--log.level", "loud"}, exitUsage, "", "log.level"},
		{"n1", []string{"--affinity-admission", "evict"}, exitUsage, "", `--affinity-admission is "evict"; want off or reject`},
		{"n1", []string{"--peers", "9448"}, exitUsage, "", "--peers is not ADDRESS:PORT"},
		{"n1", []string{"--peers", ":0"}, exitUsage, "", "--peers is not ADDRESS:PORT"},
		{strings.Repeat("n", 254), nil, exitUsage, "", "longer than 253 characters"},
	} {
		t.Setenv("NODE_NAME", tt.node)
		var stdout, stderr strings.Builder
		if code := run(tt.args, &stdout, &stderr); code != tt.code {
			t.Errorf("run(%q) = %d; want %d", tt.args, code, tt.code)
		}
		if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
			t.Errorf("run(%q) wrote %q and %q; want %q and %q", tt.args, &stdout, &stderr, tt.stdout, tt.stderr)
		}
	}
}

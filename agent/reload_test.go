package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/evictd/evictd/agent/control"
)

// A reload reads the files that evictd was started with, the kubelet's too. The status has
// what changed, what is wrong, and which fields need a restart.
func TestReload(t *testing.T) {
	d := buildHere(t)
	kubelet := filepath.Join(t.TempDir(), "kubelet.yaml")
	d.options.KubeletConfigPath = kubelet
	own, err := os.ReadFile(d.options.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { d.reload(ctx) })
	running.Go(func() { d.loop.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	for _, tt := range []struct {
		name, kubelet, own string
		err                string   // part of it
		changed            []string // fields
		restart            []string
	}{
		{"kubelet's file", header + "evictionHard: {memory.available: 200Mi}", "", "", []string{
			"evictionHard.memory.available", "evictionHard.imagefs.available", "evictionHard.imagefs.inodesFree", "evictionHard.nodefs.available", "evictionHard.nodefs.inodesFree",
		}, nil},
		{"mistake in it", header + "evictionHard: {memory.avialable: 200Mi}", "", kubelet + ":3: evictionHard.memory.avialable: ", nil, nil},
		{"corrected", header + "evictionHard: {memory.available: 200Mi}", "", "", []string{}, nil},
		{"needs a restart", header + "evictionHard: {memory.available: 200Mi}", "memoryAccounting: available\n", "", []string{"memoryAccounting"}, []string{"memoryAccounting"}},
		{"still needs a restart", header + "evictionHard: {memory.available: 200Mi}", "memoryAccounting: available\nmaxVictims: 5\n", "", []string{"maxVictims"}, []string{"memoryAccounting"}},
		{"reverted", header + "evictionHard: {memory.available: 200Mi}", "maxVictims: 5\n", "", []string{"memoryAccounting"}, nil},
	} {
		write(kubelet, tt.kubelet)
		write(d.options.ConfigPath, string(own)+tt.own)
		err := d.statusBackend.Reload(t.Context())
		if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: Reload() = %v; want %q in it", tt.name, err, tt.err)
		}
		c := d.statusBackend.Status().Config
		if (c.LastReloadError != "") != (tt.err != "") {
			t.Errorf("%s: last reload error = %q; want one: %t", tt.name, c.LastReloadError, tt.err != "")
		}
		var changed []string
		for _, change := range c.Changed {
			changed = append(changed, change.Field)
		}
		if tt.changed != nil && !slices.Equal(changed, tt.changed) {
			t.Errorf("%s: changed = %q; want %q", tt.name, changed, tt.changed)
		}
		if !slices.Equal(c.NeedsRestart, control.List[string](tt.restart)) {
			t.Errorf("%s: needs a restart = %q; want %q", tt.name, c.NeedsRestart, tt.restart)
		}
	}
}

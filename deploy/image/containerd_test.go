package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/tests/node"
)

// TestContainerd: containerd imports the image, and runs each program of it, evictd-kube and evictd-controller as users that
// have no entry in any /etc/passwd.
func TestContainerd(t *testing.T) {
	if err := node.Check(""); err != nil {
		t.Skipf("needs %v", err)
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -X github.com/evictd/evictd/agent/version.release=v9.9.9", "-o", dir+"/", "./cmd/...")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	image := filepath.Join(dir, "image.tar")
	runImage(t, "-o", image, "-version", "v9.9.9", runtime.GOARCH+"="+dir)
	n, err := node.Start(t.Context(), node.Options{Dir: filepath.Join(t.TempDir(), "n"), Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := n.ImportImage(t.Context(), image, "evictd:v9.9.9"); err != nil {
		t.Fatal(err)
	}
	runs := []struct {
		name string
		user int64
		argv []string
		want string
	}{
		{"evictctl", 0, []string{"/usr/bin/evictctl", "version"}, "v9.9.9"},
		{"evictd", 0, []string{"evictd", "--help"}, "--config"}, // found by PATH
		{"evictd-kube", 61119, []string{"/usr/bin/evictd-kube", "--version"}, "evictd-kube v9.9.9"},
		{"evictd-controller", 61120, []string{"/usr/bin/evictd-controller", "--version"}, "evictd-controller v9.9.9"},
	}
	spec := node.PodSpec{Name: "image"}
	for _, r := range runs {
		spec.Containers = append(spec.Containers, node.ContainerSpec{Name: r.name, Image: "evictd:v9.9.9", Command: r.argv, RunAsUser: r.user})
	}
	pod, err := n.RunPod(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		var log []byte
		for end := time.Now().Add(node.ScaleTimeout(20 * time.Second)); !strings.Contains(string(log), r.want); time.Sleep(5 * time.Millisecond) {
			if log, err = os.ReadFile(n.ContainerLog(pod, r.name)); err != nil || time.Now().After(end) {
				t.Fatalf("%q wrote %q, %v; want %q", r.argv, log, err, r.want)
			}
		}
	}
	if err := n.RemovePod(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

//go:build bench

package cluster

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// beforeClusters is the last revision at which evictd knew no API server.
const beforeClusters = "e80c4245^"

// TestFootprint measures the executables and the resident memory of evictd before it knew an API server,
// of evictd by itself and beside evictd-kube, and of evictd-kube.
func TestFootprint(t *testing.T) {
	const runs, pods, settle = 5, 100, 15 * time.Second
	file := os.Getenv(ResultsEnv)
	if file == "" {
		t.Skip(ResultsEnv + " is not set")
	}
	r := newRig(t)
	r.build()
	tree := filepath.Join(r.dir, "before")
	git := func(args ...string) string {
		out, err := exec.Command("git", append([]string{"-C", "../.."}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("worktree", "add", "--detach", tree, beforeClusters)
	t.Cleanup(func() { git("worktree", "remove", "--force", tree) })
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(r.dir, "evictd-before"), "./cmd/evictd")
	build.Dir, build.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build of %s: %v: %s", beforeClusters, err, out)
	}
	before := Footprint{Program: "evictd before it knew an API server (" + git("rev-parse", "--short", beforeClusters) + ")", Binary: r.size("evictd-before")}
	alone := Footprint{Program: "evictd by itself", Binary: r.size("evictd")}
	for range runs {
		for program, f := range map[string]*Footprint{"evictd-before": &before, "evictd": &alone} {
			run := t.TempDir()
			args := []string{"--config", r.write("idle.yaml", "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nruntimeEndpoint: none\ndryRun: true\n"),
				"--state-dir", filepath.Join(run, "state"), "--control-socket", filepath.Join(run, "s"), "--web.listen-address", "127.0.0.1:0"}
			if f == &alone {
				args = append(args, "--fence-file", filepath.Join(run, "fences"))
			}
			cmd := r.start(program, filepath.Join(r.dir, program), nil, args...)
			time.Sleep(settle)
			f.Resident = append(f.Resident, resident(cmd.Process.Pid))
			signal(t, cmd, syscall.SIGTERM)
			r.check(cmd.Wait())
		}
	}
	b := r.startWithPods(pods)
	time.Sleep(settle)
	beside := Footprint{Program: "evictd beside evictd-kube", Pods: pods, Binary: alone.Binary, Resident: []int{resident(b.cmd.Process.Pid)}}
	kube := Footprint{Program: "evictd-kube", Pods: pods, Binary: r.size("evictd-kube"), Resident: []int{resident(b.kube.Process.Pid)}}
	var lines []byte
	for _, f := range []Footprint{before, alone, beside, kube} {
		slices.Sort(f.Resident)
		line, err := json.Marshal(f)
		r.check(err)
		lines = append(append(lines, line...), '\n')
	}
	t.Logf("%s", lines)
	r.check(os.WriteFile(file, lines, 0o644))
}

// size returns the bytes of a program that was built.
func (r *rig) size(program string) int64 {
	r.t.Helper()
	info, err := os.Stat(filepath.Join(r.dir, program))
	r.check(err)
	return info.Size()
}

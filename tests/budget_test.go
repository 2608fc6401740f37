package tests

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The daemon is small, because under the pressure that it handles its pages are
// the first to be needed and the last to be there.
func TestDaemonBudget(t *testing.T) {
	const largestBinary, largestRSS = 32 << 20, 28 << 20
	dir := t.TempDir()
	binary := filepath.Join(dir, "evictd")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/evictd")
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build evictd: %v\n%s", err, out)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > largestBinary {
		t.Errorf("evictd is %d bytes; want at most %d", info.Size(), largestBinary)
	}

	if os.Geteuid() != 0 {
		t.Skip("needs root: to run evictd on this host")
	}
	config := filepath.Join(dir, "config.yaml")
	content := "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nruntimeEndpoint: none\ndryRun: true\n"
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "--config", config, "--state-dir", filepath.Join(dir, "state"),
		"--control-socket", filepath.Join(dir, "s"), "--web.listen-address", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	ready := make(chan bool, 1)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if strings.Contains(lines.Text(), "msg=ready") {
				ready <- true
			}
		}
	}()
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		t.Fatal("evictd is not ready after 30s")
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var kilobytes int
	for line := range strings.Lines(string(status)) {
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kilobytes); n == 1 {
			break
		}
	}
	if rss := kilobytes << 10; rss == 0 || rss > largestRSS {
		t.Errorf("resident memory of an idle evictd = %d bytes; want at most %d", rss, largestRSS)
	}
	t.Logf("binary %d bytes, resident %d kB", info.Size(), kilobytes)
}

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

// TestDaemonBudget: the executable and the resident memory of an idle evictd stay below their limits. Under memory
// pressure, evictd's pages must be resident.
func TestDaemonBudget(t *testing.T) {
	const largestBinary, largestRSS = 32 << 20, 28 << 20
	binary := buildEvictd(t)
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
	d := runBuilt(t, binary)
	rss := d.resident(t)
	if rss == 0 || rss > largestRSS {
		t.Errorf("resident memory of an idle evictd = %d bytes; want at most %d", rss, largestRSS)
	}
	t.Logf("binary %d bytes, resident %d kB", info.Size(), rss>>10)
}

// buildEvictd builds evictd as for a release and returns its path.
func buildEvictd(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "evictd")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/evictd")
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build evictd: %v\n%s", err, out)
	}
	return binary
}

// built is a running evictd, in dry run and without a runtime.
type built struct {
	pid int
	// web is the address of its metrics.
	web string
}

// runBuilt runs evictd until the test ends, and returns when it is ready.
func runBuilt(t *testing.T, binary string) built {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	content := "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nruntimeEndpoint: none\ndryRun: true\n"
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "--config", config, "--state-dir", filepath.Join(dir, "state"),
		"--control-socket", filepath.Join(dir, "s"), "--fence-file", filepath.Join(dir, "fences"), "--web.listen-address", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	d := built{pid: cmd.Process.Pid}
	ready, serving := make(chan bool, 1), make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if _, address, ok := strings.Cut(lines.Text(), `msg="Listening on" address=`); ok {
				serving <- address
			}
			if strings.Contains(lines.Text(), "msg=ready") {
				ready <- true
			}
		}
	}()
	timeout := time.After(30 * time.Second)
	for range cap(ready) + cap(serving) {
		select {
		case <-ready:
		case d.web = <-serving:
		case <-timeout:
			t.Fatal("evictd is not ready after 30s")
		}
	}
	return d
}

// resident returns its resident memory in bytes.
func (d built) resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid))
	if err != nil {
		t.Fatal(err)
	}
	var kilobytes int
	for line := range strings.Lines(string(status)) {
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kilobytes); n == 1 {
			break
		}
	}
	return kilobytes << 10
}

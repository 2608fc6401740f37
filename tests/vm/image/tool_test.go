package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestCheckTools(t *testing.T) {
	dir := t.TempDir()
	for tool := range tools {
		if tool == "debootstrap" || strings.HasPrefix(tool, "apt-") {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, tool), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var missing *MissingError
	if err := checkTools(dir); !errors.As(err, &missing) {
		t.Fatalf("checkTools = %v; want a MissingError", err)
	}
	want := &MissingError{Tools: []string{"apt-cache", "apt-get", "debootstrap"}, Packages: []string{"apt", "debootstrap"}}
	if diff := cmp.Diff(want, missing); diff != "" {
		t.Errorf("missing differs (-want +got):\n%s", diff)
	}
	if got, want := missing.Error(), "apt-cache, apt-get, debootstrap not found: apt-get install apt debootstrap"; got != want {
		t.Errorf("Error = %q; want %q", got, want)
	}
	for _, tool := range want.Tools {
		if err := os.WriteFile(filepath.Join(dir, tool), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkTools("/nowhere::" + dir); err != nil {
		t.Errorf("checkTools with all tools = %v; want nil", err)
	}
}

// TestCommandKillsDescendants: the end of the context kills the command and its descendants.
func TestCommandKillsDescendants(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := command(ctx, "sh", "-c", "sleep 1000 & echo; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // the grandchild has been started
		t.Fatal(err)
	}
	cancel()
	// The pipe reaches its end when the last process that has it open has exited.
	for err == nil {
		_, err = out.Read(make([]byte, 64))
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a command that was ended succeeds; want an error")
	}
	if err := unix.Kill(-cmd.Process.Pid, 0); !errors.Is(err, unix.ESRCH) && err != nil {
		t.Errorf("kill(0) of the process group: %v; want no process", err)
	}
}

func TestOutput(t *testing.T) {
	_, err := output(command(t.Context(), "sh", "-c", "echo why >&2; exit 3"))
	if err == nil || !strings.Contains(err.Error(), "exit status 3: why") {
		t.Errorf("output of a failed command = %v; want its status and the end of its standard error", err)
	}
	if got, err := output(command(t.Context(), "sh", "-c", "echo fine; echo noise >&2")); err != nil || got != "fine\n" {
		t.Errorf("output = %q, %v; want %q", got, err, "fine\n")
	}
}

package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// The status says whether evictd is ready by the checks of /readyz, and what is
// missing until then.
func TestStatusReady(t *testing.T) {
	d := buildHere(t)
	s := d.board.Status()
	if got := d.board.statusLine(); !strings.HasPrefix(got, "not ready") {
		t.Errorf("status line before the first observation = %q; want not ready", got)
	}
	if s.Ready || !slices.Contains(s.Missing, "observation: the first is not complete yet") {
		t.Errorf("status before the first observation: ready %t, missing %q; want the observation missing", s.Ready, s.Missing)
	}
	step := running(t, d)
	step()
	step() // the view of the first is there now
	if s := d.board.Status(); slices.Contains(s.Missing, "observation: the first is not complete yet") || s.Ready != (len(s.Missing) == 0) {
		t.Errorf("status after it: ready %t, missing %q; want no observation missing", s.Ready, s.Missing)
	}
}

// A root that is not pid 1's is that of evictd's own container.
func TestForeignRoot(t *testing.T) {
	own, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	host := t.TempDir()
	kerneltest.Write(t, host, map[string]string{"1/mountinfo": string(own), "self/mountinfo": string(own)})
	if err := os.Symlink("/proc/self/fdinfo", filepath.Join(host, "self", "fdinfo")); err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	kerneltest.Write(t, other, map[string]string{
		"1/mountinfo": "27 1 7:99 / / rw,relatime - ext4 /dev/loop99 rw\n", "self/mountinfo": string(own),
	})
	if err := os.Symlink("/proc/self/fdinfo", filepath.Join(other, "self", "fdinfo")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, proc, root, want string }{
		{"the host's", host, "/", ""},
		{"another", other, "/", "the root of the host is on 7:99"},
		{"none", host, "/nowhere", "no such file"},
		{"pid 1 is not shown", t.TempDir(), "/", ""},
	} {
		if got := foreignRoot(kernel.FS(tt.proc), tt.root); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: foreignRoot() = %q; want %q", tt.name, got, tt.want)
		}
	}
}
